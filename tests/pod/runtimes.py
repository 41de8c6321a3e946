"""The two ways to run a bundle: runc, and unshare where runc cannot run.

Owns processes and what they leave; never looks into manifests.
"""

import json
import subprocess
import sys
from pathlib import Path

UNSHARED = str(Path(__file__).with_name("unshared.py"))

# A small machine that does other things takes its time.
PATIENCE = 60


class Runc:
    """Debian's runc."""

    name = "runc"
    has_seccomp = True

    def __init__(self, place):
        self.command = ["runc", "--root", str(place / "runc")]
        self.started = []

    def start(self, name, bundle, **streams):
        """Starts a container; the process that comes back ends as it does."""
        command = [*self.command, "run", "--bundle", bundle, name]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **streams)
        self.started.append(name)
        return process

    def pid(self, name):
        """Its PID 1, as it is seen from outside; none: not there yet."""
        state = subprocess.run([*self.command, "state", name], capture_output=True, text=True)
        return state.returncode == 0 and json.loads(state.stdout)["pid"] or None

    def inside(self, name, argv):
        """The command that runs another one in a container."""
        return [*self.command, "exec", name, *argv]

    def remove(self):
        for name in self.started:
            subprocess.run([*self.command, "delete", "--force", name], capture_output=True)
        self.started.clear()


class Unshare:
    """The same with namespaces of our own making."""

    name = "unshare (no seccomp, no limits)"
    has_seccomp = False

    def __init__(self):
        self.started = {}

    def start(self, name, bundle, **streams):
        spaces = ["--mount", "--pid", "--uts", "--fork", "--kill-child"]
        command = ["unshare", *spaces, sys.executable, UNSHARED, "run", str(bundle)]
        self.started[name] = (subprocess.Popen(command, stdin=subprocess.DEVNULL, **streams), bundle)
        return self.started[name][0]

    def pid(self, name):
        process = self.started[name][0].pid
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return int(children[0]) if children else None

    def inside(self, name, argv):
        bundle = str(self.started[name][1])
        spaces = ["--target", str(self.pid(name)), "--mount", "--pid", "--net", "--ipc"]
        return ["nsenter", *spaces, sys.executable, UNSHARED, "exec", bundle, *argv]

    def remove(self):
        for process, _ in self.started.values():
            process.kill()
            process.wait()
        self.started.clear()
