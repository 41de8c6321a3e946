# A user's systemd in namespaces of its own, so that it is in nobody's way and nothing of it is left.
# Takes the directory that has `home` and `run`, and then, on stdin, what systemctl is to do, line by
# line. Says "ready", or nothing where it cannot run; after each line "done" and the exit code.
if [ "$1" = inside ]; then
    umount /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup || exit 0
    # It runs only where it is the system's, too.
    mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system || exit 0
    export HOME="$2/home" XDG_RUNTIME_DIR="$2/run"
    unset XDG_CONFIG_HOME XDG_STATE_HOME XDG_DATA_HOME DBUS_SESSION_BUS_ADDRESS NOTIFY_SOCKET
    /lib/systemd/systemd --user >"$2/systemd.log" 2>&1 </dev/null &
    tries=0
    until systemctl --user list-units >/dev/null 2>&1; do
        kill -0 $! 2>/dev/null && [ $((tries += 1)) -lt 200 ] || exit 0
        sleep 0.1
    done
    echo ready
    while read -r line; do
        systemctl --user --no-pager $line 2>&1
        echo "done $?"
    done
    # Whoever is left ends with this process, the first of its namespace.
    exit 0
fi
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup || exit 0
own=/sys/fs/cgroup/procyard-test-$$
mkdir "$own" || exit 0
# In the end it is stopped even if whoever gives the lines does not come to it.
timeout 300 sh -c 'echo $$ >"$2/cgroup.procs" && exec unshare --cgroup --pid --fork --kill-child \
    --mount-proc sh "$0" inside "$1"' "$0" "$1" "$own"
tries=0
until find "$own" -depth -type d -exec rmdir {} \; 2>/dev/null && [ ! -e "$own" ]; do
    [ $((tries += 1)) -lt 600 ] || exit 1
    sleep 0.1
done
