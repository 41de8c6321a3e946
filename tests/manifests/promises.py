"""Whether the manifests keep what deploy/kubernetes/README.md promises. Tells all that is wrong."""

import sys

import yaml

# Within which procyard ends all that it runs when it is told to, in seconds.
DRAIN = 25


def wrong_in_pod(spec):
    security = spec.get("securityContext", {})
    yield spec.get("terminationGracePeriodSeconds", 0) > DRAIN, "the grace is not longer than the drain"
    yield spec.get("automountServiceAccountToken") is False, "it has a token for the cluster's API"
    yield spec.get("enableServiceLinks") is False, "Services make variables in it"
    yield security.get("runAsNonRoot") is True, "it may be root"
    yield security.get("runAsUser", 0) > 0 and security.get("runAsGroup", 0) > 0, "it has no user"
    yield security.get("fsGroup", 0) > 0, "its volumes have no group"
    yield security.get("fsGroupChangePolicy") == "OnRootMismatch", "what its volumes hold is opened to the group"
    for volume in spec["volumes"]:
        bounded = "emptyDir" not in volume or "sizeLimit" in volume["emptyDir"]
        yield bounded, f"its volume {volume['name']} may fill the node's disk"
    yield security.get("seccompProfile") == {"type": "RuntimeDefault"}, "it has no seccomp profile"


def wrong_in_container(container):
    security = container.get("securityContext", {})
    resources = container.get("resources", {})
    yield security.get("allowPrivilegeEscalation") is False, "it may gain privileges"
    yield security.get("readOnlyRootFilesystem") is True, "its root can be written"
    yield security.get("capabilities") == {"drop": ["ALL"]}, "it has capabilities"
    yield security.get("runAsUser", 1) > 0 and not security.get("privileged"), "it is root"
    for kind in ("requests", "limits"):
        yield {"cpu", "memory"} <= set(resources.get(kind, {})), f"it has no {kind}"
    yield container["image"].count(":") == 1 and "/" in container["image"], "its image is not replaced"


def wrong_in_server(container, is_sidecar):
    """What is wrong with who runs `procyard serve`."""
    args = container["args"]
    # A sidecar's start is what the app waits for: it needs no readiness.
    kinds = ["startup", "liveness"] + ([] if is_sidecar else ["readiness"])
    # Kubernetes' own gRPC probes speak no TLS, and know no Unix sockets.
    tcp = any(arg.startswith("--listen=tcp:") for arg in args)
    plain = tcp and not any(arg.startswith("--tls-cert=") for arg in args)
    for kind in kinds:
        probe = container.get(f"{kind}Probe", {})
        command = probe.get("exec", {}).get("command", [])
        yield "grpc" in probe if plain else command[1:2] == ["healthcheck"], f"it has no {kind} probe that fits where it listens"
        yield probe.get("timeoutSeconds", 1) >= 5, f"its {kind} probe gives up before a busy machine answers"
        yield {"periodSeconds", "failureThreshold"} <= set(probe), f"how often its {kind} probe is tried is not said"
    yield any(arg.startswith("--root=") for arg in args) and "--no-new-privileges" in args, "what it runs is not confined"
    yield "--grant-children=none" in args, "what it runs is an admin on its socket"
    mounts = [each["mountPath"] for each in container["volumeMounts"]]
    env = {each["name"]: each["value"] for each in container.get("env", [])}
    state = env.get("PROCYARD_STATE_DIR", "")
    yield any(state.startswith(f"{mount}/") for mount in mounts), "its state is not in a directory of a volume"
    yield env.get("HOME") in mounts, "its home cannot be written"
    kept = next((int(arg.partition("=")[2]) for arg in args if arg.startswith("--max-transcripts-mib=")), None)
    memory = int(container["resources"]["limits"]["memory"].removesuffix("Gi")) * 1024
    yield kept is not None and kept <= memory / 2, "output may take the memory of what runs"


def wrong(document):
    spec = document["spec"]["template"]["spec"]
    yield from wrong_in_pod(spec)
    servers = 0
    for container in spec.get("initContainers", []) + spec["containers"]:
        for holds, what in wrong_in_container(container):
            yield holds, f"{container['name']}: {what}"
        if container.get("args", [""])[0] == "serve":
            servers += 1
            for holds, what in wrong_in_server(container, container.get("restartPolicy") == "Always"):
                yield holds, f"{container['name']}: {what}"
    yield servers == 1, "not one container serves"


def wrong_for_callers(workload, services):
    """What is wrong with how a StatefulSet is found and whom it lets in."""
    args = [arg for container in workload["spec"]["template"]["spec"]["containers"] for arg in container["args"]]
    yield any(arg.startswith("--tls-client-ca=") for arg in args), "callers need no certificates"
    names = [service["metadata"]["name"] for service in services]
    yield names == [workload["spec"]["serviceName"]], "not one Service is its own"
    labels = workload["spec"]["template"]["metadata"]["labels"]
    for service in (service["spec"] for service in services):
        yield service.get("clusterIP") == "None", "its Service is not headless"
        yield service.get("publishNotReadyAddresses") is True, "who is busy cannot be found"
        yield service["selector"].items() <= labels.items(), "its Service selects others"


def main(path):
    with open(path) as file:
        documents = list(yaml.safe_load_all(file))
    services = [each for each in documents if each["kind"] == "Service"]
    workloads = [each for each in documents if each["kind"] != "Service"]
    checks = [check for workload in workloads for check in wrong(workload)]
    for workload in workloads:
        if workload["kind"] == "StatefulSet":
            checks += wrong_for_callers(workload, services)
    problems = [what for holds, what in checks if not holds]
    if len(workloads) != 1:
        problems.append("not one workload")
    sys.exit("\n".join(f"{path}: {problem}" for problem in problems) or None)


main(*sys.argv[1:])
