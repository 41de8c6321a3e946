"""The walk through a pod: what is done with its procyard, and what must come of it."""

import base64
import json
import os
import signal
import time

SERVICE = "procyard.v1.ProcessService"

# Ends two seconds after it was asked to; what it waits for is not to be asked as well.
SLOW = "trap 'trap \"\" TERM; sleep 2; echo ended by itself; exit 0' TERM; echo up; while :; do sleep 0.1; done"


class Yard:
    """The procyard of a pod, as somebody calls it."""

    def __init__(self, pod, name, run, shown, address, binaries):
        self.pod, self.name, self.binaries = pod, name, binaries
        self.run, self.shown, self.address = run, shown, address

    def call(self, method, **request):
        """The messages of an answer."""
        asked = self.run("grpcurl", *self.shown, "-d", json.dumps(request), self.address, f"{SERVICE}/{method}")
        assert asked.returncode == 0, f"{method}: {asked.stderr}\n{self.pod.log(self.name)}"
        text, messages = asked.stdout.strip(), []
        while text:
            message, end = json.JSONDecoder().raw_decode(text)
            messages.append(message)
            text = text[end:].strip()
        return messages

    def start(self, line, wait=None, **more):
        argv = {"args": [f"{self.binaries}/sh", "-c", line]}
        spec = {"argv": argv, "env": {"set": {"PATH": self.binaries}}, **more}
        return self.call("Start", spec=spec, **({"wait": wait} if wait else {}))[0]


def text(chunks):
    return b"".join(base64.b64decode(chunk["data"]) for chunk in chunks).decode()


def what_runs_is_locked_in(yard):
    line = "id -u; pwd; grep -E 'CapBnd|NoNewPrivs|Seccomp:' /proc/self/status; touch ~/file && rm ~/file; (echo > /file) 2>&1; exit 3"
    answer = yard.start(line, wait={"exit": {}})
    said = text(answer["chunks"]).splitlines()
    assert answer["process"]["exit"]["code"] == 3, answer
    assert said[:2] == ["65532", "/workspace"], said
    capabilities, privileges, seccomp = (each.split()[1].strip("0") for each in said[2:5])
    assert (capabilities, privileges) == ("", "1"), said
    assert seccomp == "2" or not yard.pod.runtime.has_seccomp, said
    assert said[5].endswith("Read-only file system"), said


def a_script_has_its_file_and_its_result(yard):
    script = {"code": 'echo "{\\"n\\": $((6 * 7))}" >"$PROCYARD_OUTPUT"', "interpreter": [f"{yard.binaries}/sh"]}
    answer = yard.call("Start", spec={"script": script}, wait={"exit": {}})[0]
    assert answer["process"]["output"]["value"] == {"n": 42}, answer


def output_is_followed_to_its_end(yard):
    started = yard.start("for n in 1 2 3 4 5; do echo $n; sleep 0.1; done")
    messages = yard.call("Follow", id=started["process"]["id"])
    assert text(each["chunk"] for each in messages if "chunk" in each) == "1\n2\n3\n4\n5\n", messages
    assert messages[-1]["end"]["process"]["exit"]["outcome"] == "OUTCOME_SUCCEEDED", messages[-1]


def a_terminal_is_one(yard):
    answer = yard.start("tty", wait={"exit": {}}, terminal={})
    assert text(answer["chunks"]).startswith("/dev/pts/"), answer


def a_kill_ends_the_tree(yard):
    started = yard.start("sleep 1000 & sleep 1001 & echo up; wait", wait={"output": {"regex": "up"}})
    answer = yard.call("Kill", id=started["process"]["id"])[0]
    assert answer["processes"][0]["exit"]["cause"] == "CAUSE_KILLED", answer
    left = [command for command in yard.pod.commands(yard.name) if "sleep" in command]
    assert not left, left


def orphans_are_reaped(yard):
    yard.start("for n in 1 2 3 4 5 6 7 8 9; do (sleep 0.$n & sleep 0.1$n &); done", wait={"exit": {}})
    # A helper of the keeper has the keeper's command line.
    commands = lambda: (command[1:2] for command in yard.pod.commands(yard.name))
    left = lambda: [command for command in commands() if command != ["serve"]]
    yard.pod.until(lambda: left() == [["server"]], lambda: f"nobody is left but the server: {left()}")


def sigterm_ends_all_well_within_the_grace(yard):
    id = yard.start(SLOW, wait={"output": {"regex": "up"}})["process"]["id"]
    begin = time.monotonic()
    os.kill(yard.pod.init_of(yard.name), signal.SIGTERM)
    code = yard.pod.end(yard.name, within=yard.pod.spec.grace)
    took = time.monotonic() - begin
    assert code == 0, f"exit code {code}\n{yard.pod.log(yard.name)}"
    assert took >= 2, f"it did not wait for what it runs: {took:.1f} s\n{yard.pod.log(yard.name)}"
    print(f"  SIGTERM: over in {took:.1f} s of {yard.pod.spec.grace}")
    return id


def a_container_that_is_started_again_knows_what_was(yard, id):
    yard.pod.start(yard.name)
    yard.pod.until_started(yard.name)
    process = yard.call("Get", id=id)[0]["process"]
    assert process["exit"]["cause"] == "CAUSE_SHUTDOWN" and process["exit"]["code"] == 0, process
    said = text(yard.call("Read", id=id)[0]["chunks"])
    assert said.startswith("up\n") and said.endswith("ended by itself\n"), said
    os.kill(yard.pod.init_of(yard.name), signal.SIGTERM)
    assert yard.pod.end(yard.name, within=yard.pod.spec.grace) == 0


STEPS = [
    what_runs_is_locked_in,
    a_script_has_its_file_and_its_result,
    output_is_followed_to_its_end,
    a_terminal_is_one,
    a_kill_ends_the_tree,
    orphans_are_reaped,
]


def walk(yard):
    for kind in yard.pod.spec.container(yard.name).probes:
        tried = yard.pod.probe(yard.name, kind)
        assert tried.returncode == 0, (kind, tried)
    for step in STEPS:
        step(yard)
        print(f"  {step.__name__.replace('_', ' ')}")
    id = sigterm_ends_all_well_within_the_grace(yard)
    a_container_that_is_started_again_knows_what_was(yard, id)
