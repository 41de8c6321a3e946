"""A pod that runs: its network, its volumes, its containers, and calls from inside and outside.

Owns the order in which a kubelet does things; the walks say what is expected.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import bundle

# What nothing takes here unless it hangs.
PATIENCE = 60

# A process that has the network of a pod, with loopback up, as long as it is there.
SANDBOX = """
import fcntl, signal, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 0x41))
print("up", flush=True)
signal.pause()
"""

# For who is not known, and thus has no reflection: what a kubelet knows of health.
HEALTH = """syntax = "proto3";
package grpc.health.v1;
message HealthCheckRequest { string service = 1; }
enum ServingStatus { UNKNOWN = 0; SERVING = 1; NOT_SERVING = 2; }
message HealthCheckResponse { ServingStatus status = 1; }
service Health { rpc Check(HealthCheckRequest) returns (HealthCheckResponse); }
"""


class Running:
    """A pod whose containers are started one by one, each with a copy of its image's root."""

    def __init__(self, place, spec, runtime, roots, secrets):
        self.place, self.spec, self.runtime, self.roots = place, spec, runtime, roots
        self.volumes = place / "volumes"
        place.mkdir()
        self.processes = {}
        self.sandbox = subprocess.Popen(
            ["unshare", "--net", "--ipc", sys.executable, "-c", SANDBOX], stdout=subprocess.PIPE, text=True
        )
        assert self.sandbox.stdout.readline() == "up\n"
        for name, source in spec.volumes.items():
            bundle.volume(self.volumes / name, source, spec.group, secrets)
        (place / "health.proto").write_text(HEALTH)

    def start(self, name):
        """Starts a container: one that was there before is started again with the same volumes."""
        container = self.spec.container(name)
        count = sum(known.startswith(name) for known in os.listdir(self.place))
        place = self.place / f"{name}-{count}"
        # By it run finds what somebody left who was killed.
        cgroup = f"{self.place.parent.name}-{self.place.name}"
        bundle.make(place, container, self.roots[container.image], self.volumes, self.sandbox.pid, cgroup)
        log = open(place / "log", "w")
        known = f"{self.place.name}-{name}-{count}"
        self.processes[name] = (known, self.runtime.start(known, place, stdout=log, stderr=log), place)
        if not container.is_init:
            self.until(lambda: self.init_of(name), lambda: f"{name} has started: {self.log(name)}")

    def end(self, name, within):
        """Waits for the end of a container. Returns its exit code."""
        return self.processes[name][1].wait(within)

    def init_of(self, name):
        """PID 1 of a container, as seen from here, once it is what the manifest says."""
        known, process, _ = self.processes[name]
        assert process.poll() is None, f"{name} has ended: {self.log(name)}"
        try:
            pid = self.runtime.pid(known)
            command = pid and Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return pid if command == self.spec.container(name).argv[0] else None

    def log(self, name):
        return (self.processes[name][2] / "log").read_text()

    def inside(self, name, *argv):
        """Runs a command in a container, as its user."""
        return self.run(self.runtime.inside(self.processes[name][0], argv))

    def outside(self, *argv):
        """Runs a command beside the containers, in the network of the pod."""
        return self.run(["nsenter", f"--net=/proc/{self.sandbox.pid}/ns/net", *argv])

    def run(self, argv):
        return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)

    def probe(self, name, kind):
        """Whether a probe of the manifest succeeds, done as a kubelet does it."""
        probe = self.spec.container(name).probes[kind]
        if "exec" in probe:
            return self.inside(name, *probe["exec"]["command"])
        proto = ["-import-path", str(self.place), "-proto", "health.proto", "-plaintext"]
        asked = self.outside("grpcurl", *proto, f"127.0.0.1:{probe['grpc']['port']}", "grpc.health.v1.Health/Check")
        asked.returncode = asked.returncode or json.loads(asked.stdout) != {"status": "SERVING"}
        return asked

    def until_started(self, name):
        """Tries the startup probe as often as the manifest says."""
        probe = self.spec.container(name).probes["startup"]
        for _ in range(probe["failureThreshold"]):
            tried = self.probe(name, "startup")
            if tried.returncode == 0:
                return
            time.sleep(probe["periodSeconds"])
        raise AssertionError(f"{name} does not start: {tried}\n{self.log(name)}")

    def commands(self, name):
        """The commands of all processes of a container, but PID 1. A zombie has none, and is there."""
        init = self.init_of(name)
        own = os.readlink(f"/proc/{init}/ns/pid")
        commands = []
        for process in Path("/proc").glob("[1-9]*"):
            try:
                if process.name != str(init) and os.readlink(process / "ns/pid") == own:
                    commands.append((process / "cmdline").read_bytes().decode().split("\0")[:-1])
            except (FileNotFoundError, ProcessLookupError):
                continue
        return commands

    def until(self, holds, what):
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, f"not so in {PATIENCE} s: {what()}"
            time.sleep(0.05)

    def close(self):
        self.runtime.remove()
        self.sandbox.kill()
        self.sandbox.wait()
