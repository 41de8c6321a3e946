"""What a runtime is given: a directory with a root file system and a config.json (OCI).

Owns how a container of a manifest reads in that format, and what volumes look like.
"""

import json
import os
import shutil

# Some of what the usual profile (RuntimeDefault) denies to who has no capabilities.
DENIED = """acct add_key bpf chroot delete_module finit_module fsconfig fsmount fsopen fspick init_module
io_uring_enter io_uring_register io_uring_setup kcmp kexec_load keyctl lookup_dcookie mbind mount mount_setattr
move_mount move_pages name_to_handle_at open_by_handle_at open_tree perf_event_open pivot_root quotactl reboot
request_key set_mempolicy setns sethostname settimeofday swapoff swapon syslog umount2 unshare userfaultfd""".split()
NAMESPACES = [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000]
EPERM, ENOSYS = 1, 38


def make(place, container, root, volumes, sandbox, cgroup):
    """Makes the bundle of a container in a directory. Its root is a copy: mount points are made in it."""
    shutil.copytree(root, place / "rootfs", symlinks=True)
    (place / "config.json").write_text(json.dumps(config(container, volumes, sandbox, cgroup)))


def config(container, volumes, sandbox, cgroup):
    capabilities = ("bounding", "effective", "permitted", "inheritable", "ambient")
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": container.uid, "gid": container.gid, "additionalGids": container.groups},
            "args": container.argv,
            "env": [f"{name}={value}" for name, value in container.env.items()],
            "cwd": "/",
            "capabilities": {kind: container.capabilities for kind in capabilities},
            "noNewPrivileges": container.no_new_privileges,
        },
        "root": {"path": "rootfs", "readonly": container.read_only},
        "mounts": mounts(container, volumes),
        "linux": {
            "cgroupsPath": f"{cgroup}-{container.name}",
            "resources": {"memory": {"limit": container.memory}},
            # Containers of a pod have one network.
            "namespaces": [
                *({"type": kind} for kind in ("pid", "mount", "uts")),
                {"type": "network", "path": f"/proc/{sandbox}/ns/net"},
                {"type": "ipc", "path": f"/proc/{sandbox}/ns/ipc"},
            ],
            "readonlyPaths": ["/proc/sys", "/proc/irq", "/proc/bus"],
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list"],
            **({"seccomp": seccomp()} if container.seccomp else {}),
        },
    }


def mounts(container, volumes):
    def special(kind, at, *options):
        return {"destination": at, "type": kind, "source": kind, "options": list(options)}

    def volume(name, at, read_only):
        options = ["rbind", "ro" if read_only else "rw"]
        return {"destination": at, "type": "bind", "source": str(volumes / name), "options": options}

    return [
        special("proc", "/proc"),
        special("tmpfs", "/dev", "nosuid", "mode=755", "size=65536k"),
        special("devpts", "/dev/pts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
        special("tmpfs", "/dev/shm", "nosuid", "nodev", "noexec", "mode=1777", "size=65536k"),
        *(volume(*mount) for mount in container.mounts),
    ]


def seccomp():
    def deny(names, errno, *args):
        return {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": errno, "args": list(args)}

    def has(flag):
        return {"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"}

    calls = [deny(DENIED, EPERM), deny(["clone3"], ENOSYS)]
    calls += [deny(["clone"], EPERM, has(flag)) for flag in NAMESPACES]
    return {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": calls}


def volume(place, source, group, secrets):
    """Makes a volume as a kubelet does: root's, and the group's of the pod."""
    place.mkdir(parents=True)
    if "secret" in source:
        secret = source["secret"]
        _write_secret(place, secrets[secret["secretName"]], secret["defaultMode"], group)
    os.chown(place, 0, group)
    os.chmod(place, 0o2775 if "claim" in source else 0o2777)


def _write_secret(place, files, mode, group):
    """Files behind two links, so that all of them change at once."""
    inner = place / "..2026_01_01"
    inner.mkdir()
    (place / "..data").symlink_to(inner.name)
    for name, text in files.items():
        file = inner / name
        file.write_text(text)
        file.chmod(mode)
        os.chown(file, 0, group)
        (place / name).symlink_to(f"..data/{name}")
