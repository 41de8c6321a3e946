"""Runs each example of deploy/kubernetes as a pod, one after the other, in the directory that is named."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import fixtures
import manifest
import runtimes
from pod import Running
from walk import Yard, walk

# An app that does nothing by itself, and whose user the manifest says.
APP = manifest.Image(["/bin/sleep"], ["1000000"], 0, 0)

# As the group of the volumes, so that commands may write there, too.
BRING = "umask 002 && mkdir /workspace/bin && cp /bin/busybox /workspace/bin && /workspace/bin/busybox --install -s /workspace/bin"


def sidecar(pod, _place, _token):
    """The app brings programs, as the sidecar's image has none, and calls as its user."""
    pod.start("procyard")
    pod.until_started("procyard")
    pod.start("app")
    brought = pod.inside("app", "/bin/sh", "-c", BRING)
    assert brought.returncode == 0, brought
    finds_it_by_itself(pod, "procyard")
    address = pod.spec.container("app").env["PROCYARD_SERVER"]
    yard = Yard(pod, "procyard", lambda *argv: pod.inside("app", *argv), ["-plaintext"], address, "/workspace/bin")
    written = yard.start("echo hi >/workspace/bin/written", wait={"exit": {}})
    assert written["process"]["exit"]["outcome"] == "OUTCOME_SUCCEEDED", written
    return yard


def side_loaded(pod, _place, token):
    """An init container brings the binary; somebody else in the cluster calls, with a token."""
    pod.start("install")
    assert pod.end("install", within=runtimes.PATIENCE) == 0, pod.log("install")
    pod.start("app")
    pod.until_started("app")
    finds_it_by_itself(pod, "app")
    shown = ["-plaintext", "-H", f"authorization: Bearer {token}"]
    return Yard(pod, "app", pod.outside, shown, "127.0.0.1:7450", "/bin")


def statefulset(pod, place, _token):
    """Somebody else in the cluster calls, with a certificate; programs are in the workspace already."""
    fixtures.make_busybox(pod.volumes / "workspace/bin", "/workspace/bin")
    pod.start("procyard")
    pod.until_started("procyard")
    finds_it_by_itself(pod, "procyard")
    own = place / "secrets"
    shown = ["-cacert", f"{own}/ca.pem", "-cert", f"{own}/client.pem", "-key", f"{own}/client.key"]
    return Yard(pod, "procyard", pod.outside, [*shown, "-authority", "localhost"], "127.0.0.1:7450", "/workspace/bin")


def finds_it_by_itself(pod, name):
    """A procyard that somebody runs inside (kubectl exec) needs no options."""
    asked = pod.inside(name, pod.spec.container(name).argv[0], "info")
    assert asked.returncode == 0, asked


def can_run(runtime, place, pod, roots, secrets):
    """Why a runtime cannot run the very container that comes first; none: it can."""
    container = replace(pod.container("procyard"), argv=["/procyard", "--version"], is_init=True)
    trial = Running(place / "try", replace(pod, containers=[container]), runtime, roots, secrets)
    try:
        trial.start("procyard")
        return None if trial.end("procyard", within=runtimes.PATIENCE) == 0 else trial.log("procyard").strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return error
    finally:
        trial.close()


def choose_runtime(place, *trial):
    """runc if it can run a container here, else unshare."""
    if os.environ.get("PROCYARD_POD_RUNTIME") != "unshare":
        runc = runtimes.Runc(place)
        why = can_run(runc, place, *trial)
        if why is None:
            return runc
        print(f"runc cannot be used: {why}")
    return runtimes.Unshare()


def main(place):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    images = {"procyard": manifest.dockerfile(), "app": APP}
    roots = {"procyard": fixtures.IMAGE, "app": fixtures.make_app(place / "app")}
    token, secrets = fixtures.make_secrets(place / "secrets")
    runtime = choose_runtime(place, manifest.pod("sidecar", images), roots, secrets)
    print(f"by {runtime.name}")
    for example in (sidecar, side_loaded, statefulset):
        name = example.__name__.replace("_", "-")
        print(name)
        pod = Running(place / name, manifest.pod(name, images), runtime, roots, secrets)
        try:
            walk(example(pod, place, token))
        finally:
            pod.close()
    print("all pods do what their manifests say")


main(Path(sys.argv[1]))
