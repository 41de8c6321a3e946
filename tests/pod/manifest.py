"""What the manifests and the Dockerfile say, read as a kubelet would.

Owns the reading; never runs anything but Kustomize.
"""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy/image/Dockerfile"
EXAMPLES = ROOT / "deploy/kubernetes"

# What runtimes set where an image says nothing.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Image:
    """What an image says about its containers."""

    entrypoint: list
    command: list
    uid: int
    gid: int


@dataclass
class Container:
    """One container, all defaults filled in."""

    name: str
    image: str
    argv: list
    env: dict
    uid: int
    gid: int
    groups: list
    mounts: list
    read_only: bool
    capabilities: list
    no_new_privileges: bool
    seccomp: bool
    memory: int
    probes: dict
    is_init: bool


@dataclass
class Pod:
    """A pod as its template has it."""

    name: str
    containers: list
    volumes: dict
    group: int
    grace: int

    def container(self, name):
        return next(one for one in self.containers if one.name == name)


def dockerfile():
    """The image that the Dockerfile makes, and that it makes it of what deploy/image/build makes."""
    lines = [line.split(None, 1) for line in DOCKERFILE.read_text().splitlines() if line and line[0] != "#"]
    last = max(at for at, (word, _) in enumerate(lines) if word == "FROM")
    build, final = lines[:last], lines[last:]
    words = dict(final)
    assert [word for word, _ in final] == ["FROM", "COPY", "USER", "ENTRYPOINT", "CMD"], final
    assert words["FROM"] == "scratch"
    assert build[0][1].endswith(" AS build"), build[0]
    made = re.fullmatch(r"deploy/image/build (/\S+)", build[-1][1])
    assert made and words["COPY"] == f"--from=build {made[1]}/ /", "another directory is copied than is made"
    rust = re.search(r'rust-version = "(.*)"', (ROOT / "Cargo.toml").read_text())[1]
    assert build[0][1].startswith(f"rust:{rust}-"), "another Rust than Cargo.toml asks for"
    uid, gid = map(int, words["USER"].split(":"))
    return Image(json.loads(words["ENTRYPOINT"]), json.loads(words["CMD"]), uid, gid)


def render(example):
    """What Kustomize makes of an example."""
    tool = ["kubectl", "kustomize"] if shutil.which("kubectl") else ["kustomize", "build"]
    text = subprocess.run([*tool, EXAMPLES / example], check=True, capture_output=True, text=True).stdout
    return list(yaml.safe_load_all(text))


def pod(example, images):
    """The pod of an example; images are known by the last part of their names."""
    workload = next(one for one in render(example) if "template" in one["spec"])
    spec = workload["spec"]["template"]["spec"]
    volumes = {one.pop("name"): one for one in spec["volumes"]}
    for claim in workload["spec"].get("volumeClaimTemplates", []):
        volumes[claim["metadata"]["name"]] = {"claim": claim["spec"]}
    inits = [_container(one, spec, images, True) for one in spec.get("initContainers", [])]
    others = [_container(one, spec, images, False) for one in spec["containers"]]
    security = spec["securityContext"]
    return Pod(example, inits + others, volumes, security["fsGroup"], spec["terminationGracePeriodSeconds"])


def _container(one, spec, images, is_init):
    name = one["image"].rsplit("/")[-1].split(":")[0]
    image = images[name]
    entrypoint = one.get("command", image.entrypoint)
    # Arguments of an image belong to its own entrypoint only.
    command = one.get("args", [] if "command" in one else image.command)
    security = {**spec["securityContext"], **one["securityContext"]}
    uid = security.get("runAsUser", image.uid)
    assert uid != 0 or not security.get("runAsNonRoot"), f"{one['name']} would be root"
    return Container(
        name=one["name"],
        image=name,
        argv=entrypoint + command,
        env={"PATH": PATH, "HOME": "/", **{each["name"]: each["value"] for each in one.get("env", [])}},
        uid=uid,
        gid=security.get("runAsGroup", image.gid),
        groups=[security["fsGroup"]] if "fsGroup" in security else [],
        mounts=[(each["name"], each["mountPath"], each.get("readOnly", False)) for each in one["volumeMounts"]],
        read_only=security.get("readOnlyRootFilesystem", False),
        capabilities=[] if "ALL" in security.get("capabilities", {}).get("drop", []) else ["CAP_KILL", "CAP_CHOWN"],
        no_new_privileges=not security.get("allowPrivilegeEscalation", True),
        seccomp=security.get("seccompProfile", {}).get("type") == "RuntimeDefault",
        memory=_bytes(one["resources"]["limits"]["memory"]),
        probes={each: one[f"{each}Probe"] for each in ("startup", "liveness", "readiness") if f"{each}Probe" in one},
        is_init=is_init and one.get("restartPolicy") != "Always",
    )


def _bytes(quantity):
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", quantity).groups()
    return int(number) << {"Mi": 20, "Gi": 30}[unit]
