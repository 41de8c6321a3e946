"""The inside of a container that `unshare` makes: mounts what config.json says, gives up all
privileges, and becomes the program. `exec` does the same in a container that is there.

Owns nothing that lasts: mounts are those of its namespace.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
DEVICES = ["null", "zero", "full", "random", "urandom", "tty"]
libc = ctypes.CDLL(None, use_errno=True)


def mount(*args):
    subprocess.run(["mount", *map(str, args)], check=True)


def mount_all(config, root):
    mount("--bind", root, root)
    for one in config["mounts"]:
        target = root / one["destination"].lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        if one["type"] == "bind":
            mount("--bind", one["source"], target)
            if "ro" in one["options"]:
                mount("-o", "remount,bind,ro", target)
        else:
            mount("-t", one["type"], "-o", ",".join(one["options"] or ["rw"]), one["source"], target)
        if one["destination"] == "/dev":
            make_devices(target)
    if config["root"]["readonly"]:
        mount("-o", "remount,bind,ro", root)


def make_devices(target):
    for name in DEVICES:
        (target / name).touch()
        mount("--bind", f"/dev/{name}", target / name)
    (target / "ptmx").symlink_to("pts/ptmx")
    (target / "fd").symlink_to("/proc/self/fd")


def become(process, root, argv):
    os.chroot(root)
    os.chdir(process["cwd"])
    capability = 0
    while libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    user = process["user"]
    os.setgroups(user["additionalGids"])
    os.setresgid(user["gid"], user["gid"], user["gid"])
    os.setresuid(user["uid"], user["uid"], user["uid"])
    if process["noNewPrivileges"] and libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    env = dict(each.split("=", 1) for each in process["env"])
    os.execvpe(argv[0], argv, env)


def main(what, bundle, *argv):
    config = json.loads(Path(bundle, "config.json").read_text())
    root = Path(bundle, config["root"]["path"])
    if what == "run":
        for space in config["linux"]["namespaces"]:
            if "path" in space:
                with open(space["path"]) as file:
                    assert libc.setns(file.fileno(), 0) == 0, space
        mount_all(config, root)
    become(config["process"], root, list(argv) or config["process"]["args"])


main(*sys.argv[1:])
