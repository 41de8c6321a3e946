"""The walk in Python. Each step is a function; all of them share the Walk."""

import os
import queue
import uuid

import grpc
import resuming
from door import the_door_knows_who_calls
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, ResourceInfo
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from procyard.v1.events_pb2 import KIND_COMPLETED, KIND_STARTED, SleepRequest, WatchRequest
from procyard.v1.info_pb2 import GetServerInfoRequest
from procyard.v1.input_pb2 import (
    AttachRequest,
    AttachStart,
    Keys,
    ResizeRequest,
    ScreenRequest,
    WriteStdinRequest,
)
from procyard.v1.lifecycle_pb2 import DeleteRequest, KillRequest, RunRequest, StartRequest
from procyard.v1.process_pb2 import (
    CAUSE_EXITED,
    CAUSE_KILLED,
    OUTCOME_CANCELED,
    OUTCOME_FAILED,
    OUTCOME_SUCCEEDED,
    STATE_EXITED,
    STATE_QUEUED,
    STATE_RUNNING,
)
from procyard.v1.records_pb2 import GetRequest, ListRequest, Selector
from procyard.v1.service_pb2_grpc import ProcessServiceStub
from procyard.v1.spec_pb2 import MODE_SERVICE, Argv, Pipes, Readiness, Script, Spec, Terminal
from procyard.v1.transcript_pb2 import STREAM_STDERR, STREAM_STDOUT, FollowRequest, ReadRequest, View
from procyard.v1.wait_pb2 import WaitFor, WaitRequest
from restarting import no_restart_loses_or_doubles_anything

EXIT = WaitFor(exit=WaitFor.Exit())
# Two sleeps, and a word when both of them are executed.
TREE = "for n in 1 2; do sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; done; echo up; wait"
SCRIPT = """echo out; echo err >&2; printf '{"run": %s}' "$PROCYARD_RUN" >"$PROCYARD_OUTPUT\""""


class Walk:
    def __init__(self, channel):
        self.health = health_pb2_grpc.HealthStub(channel)
        self.client = ProcessServiceStub(channel)
        self.name = f"python-{uuid.uuid4().hex[:8]}"
        self.made = []
        self.follower = None
        self.followed = []

    def id(self, name):
        return f"{self.name}-{name}"

    def failure(self, call):
        return failure(call)

    def start(self, name, spec, wait=None):
        id = self.id(name)
        if id not in self.made:
            self.made.append(id)
        return self.client.Start(StartRequest(id=id, spec=spec, wait=wait))

    def get(self, name):
        return self.client.Get(GetRequest(id=self.id(name))).process

    def wait(self, name, wait=EXIT):
        return self.client.Wait(WaitRequest(id=self.id(name), wait=wait))

    def follow_until(self, is_enough):
        for message in self.follower:
            self.followed.append(message)
            if is_enough():
                return

    def output(self):
        """What the follower was sent so far."""
        return text_of(message.chunk for message in self.followed)


def sleep(**scope):
    return Spec(argv=Argv(args=["sleep", "1000"]), **scope)


def output_until(regex):
    return WaitFor(output=WaitFor.Output(regex=regex))


def text_of(chunks):
    return b"".join(chunk.data for chunk in chunks)


def output_of(chunks, stream):
    return text_of(chunk for chunk in chunks if chunk.stream == stream)


def the_server_is_there(walk):
    info = walk.client.GetServerInfo(GetServerInfoRequest())
    assert info.version and info.instance_id, info
    health = walk.health.Check(health_pb2.HealthCheckRequest())
    assert health.status == health_pb2.HealthCheckResponse.SERVING, health


def a_repeated_start_is_no_second_process(walk):
    cat = Spec(argv=Argv(args=["/bin/cat"]), pipes=Pipes(stdin=True))
    first, second = walk.start("cat", cat), walk.start("cat", cat)
    assert not first.existed and second.existed, second
    assert first.process.pid == second.process.pid, second


def a_repeated_write_is_no_second_write(walk):
    walk.follower = walk.client.Follow(FollowRequest(id=walk.id("cat")))
    hello = WriteStdinRequest(id=walk.id("cat"), text="hello", enter=True, offset=0)
    first, second = walk.client.WriteStdin(hello), walk.client.WriteStdin(hello)
    assert (first.bytes_written, first.accepted_bytes) == (6, 6), first
    assert (second.bytes_written, second.accepted_bytes) == (0, 6), second
    walk.follow_until(lambda: len(walk.output()) >= 6)
    assert walk.output() == b"hello\n", walk.followed


def a_timeout_is_an_answer(walk):
    met = walk.wait("cat", output_until("hello")).wait
    assert met.met and not met.timed_out and met.match.text == "hello" and met.match.seq, met
    soon = WaitFor(exit=WaitFor.Exit(), timeout=Duration(nanos=100_000_000))
    late = walk.wait("cat", soon).wait
    assert late.timed_out and not late.met, late


def exit_codes_are_told(walk):
    three = walk.start("three", Spec(shell="echo out; echo err >&2; exit 3"), EXIT)
    end = three.process.exit
    assert three.wait.met and end.HasField("code") and end.code == 3, three
    assert (end.outcome, end.cause) == (OUTCOME_FAILED, CAUSE_EXITED), three
    assert output_of(three.chunks, STREAM_STDOUT) == b"out\n", three
    assert output_of(three.chunks, STREAM_STDERR) == b"err\n", three
    zero = walk.start("zero", Spec(shell="exit 0"), EXIT).process.exit
    assert zero.HasField("code") and zero.code == 0, zero
    assert zero.outcome == OUTCOME_SUCCEEDED, zero


def the_end_comes_once_and_last(walk):
    walk.client.WriteStdin(WriteStdinRequest(id=walk.id("cat"), eof=True))
    walk.follow_until(lambda: False)
    ends = [message.HasField("end") for message in walk.followed]
    assert ends[-1] and ends.count(True) == 1, walk.followed
    assert walk.followed[-1].end.process.exit.outcome == OUTCOME_SUCCEEDED, walk.followed
    assert walk.output() == b"hello\n", walk.followed


def a_kill_ends_the_tree(walk):
    up = walk.start("tree", Spec(shell=TREE), output_until("up"))
    assert up.wait.met, up
    answer = walk.client.Kill(KillRequest(id=walk.id("tree")))
    end = answer.processes[0].exit
    assert (end.outcome, end.cause) == (OUTCOME_CANCELED, CAUSE_KILLED), answer
    assert [killed.command for killed in answer.killed].count("sleep") == 2, answer


def no_event_is_lost_or_doubled(walk):
    replay = events(walk.client.Watch(WatchRequest(since_event=0, replay_only=True)))
    for id in walk.made:
        completed = [e for e in replay if e.process_id == id and e.kind == KIND_COMPLETED]
        assert len(completed) == 1, (id, completed)

    live = walk.client.Watch(WatchRequest())
    assert next(live).HasField("heartbeat")
    walk.start("first", Spec(shell="exit 0"), EXIT)
    seen = events(live, lambda event: event.process_id == walk.id("first"))
    live.cancel()
    walk.start("second", Spec(shell="exit 0"), EXIT)
    resumed = walk.client.Watch(WatchRequest(since_event=seen[-1].seq))
    seen += events(resumed, lambda e: (e.process_id, e.kind) == (walk.id("second"), KIND_COMPLETED))
    resumed.cancel()
    assert [e.seq for e in seen] == list(range(seen[0].seq, seen[0].seq + len(seen))), seen
    assert [(e.process_id, e.kind) for e in seen if e.process_id in walk.made] == [
        (walk.id(name), kind) for name in ("first", "second") for kind in (KIND_STARTED, KIND_COMPLETED)
    ], seen


def events(stream, is_last=lambda event: False):
    """The events of a watch, up to the last one that is wanted."""
    found = []
    for message in stream:
        if message.HasField("event"):
            found.append(message.event)
            if is_last(message.event):
                break
    return found


def a_queue_runs_one_at_a_time(walk):
    name, ref = walk.id("queue"), walk.id("ref")
    first = walk.start("sleeper", sleep(queue=name)).process
    assert first.state == STATE_RUNNING, first
    script = Script(code=SCRIPT, interpreter=["/bin/sh", "-eu"])
    second = walk.start("script", Spec(script=script, queue=name, ref=ref)).process
    assert (second.state, second.queue_position) == (STATE_QUEUED, 1), second
    listed = walk.client.List(ListRequest(selector=Selector(ref=ref))).processes
    assert [(p.id, p.state) for p in listed] == [(second.id, STATE_QUEUED)], listed
    walk.client.Kill(KillRequest(id=first.id))
    assert walk.wait("script").process.exit.outcome == OUTCOME_SUCCEEDED, walk.get("script")


def a_script_sets_its_output(walk):
    output = walk.get("script").output
    assert output.value.struct_value == {"run": 1}, output
    for stream, printed in ((STREAM_STDOUT, b"out\n"), (STREAM_STDERR, b"err\n")):
        read = walk.client.Read(ReadRequest(id=walk.id("script"), streams=[stream]))
        assert read.ended and text_of(read.chunks) == printed, read


def only_force_clears_what_was_printed(walk):
    code, details = failure(lambda: walk.client.Run(RunRequest(id=walk.id("script"))))
    assert code == grpc.StatusCode.FAILED_PRECONDITION, code
    assert details[ErrorInfo].reason == "HAS_OUTPUT", details
    again = walk.client.Run(RunRequest(id=walk.id("script"), force=True)).process
    assert again.run == 2, again
    output = walk.wait("script").process.output
    assert output.value.struct_value == {"run": 2}, output


def a_service_is_there_once(walk):
    service = Spec(
        shell="echo up; exec sleep 1000",
        mode=MODE_SERVICE,
        service=walk.name,
        workspace=walk.name,
        readiness=Readiness(output_regex="up"),
    )
    first = walk.start("service", service, WaitFor(ready=WaitFor.Ready()))
    assert first.wait.met and first.process.ready, first
    code, details = failure(lambda: walk.client.Start(StartRequest(spec=service)))
    assert code == grpc.StatusCode.ALREADY_EXISTS, code
    assert details[ErrorInfo].reason == "SERVICE_RUNNING", details
    assert details[ErrorInfo].metadata["id"] == walk.id("service"), details


def a_selector_spares_services(walk):
    walk.start("worker", sleep(workspace=walk.name))
    work = walk.client.Kill(KillRequest(selector=Selector(workspace=walk.name))).processes
    assert [p.id for p in work] == [walk.id("worker")], work
    assert walk.get("service").state == STATE_RUNNING, walk.get("service")
    services = Selector(workspace=walk.name, mode=MODE_SERVICE)
    ended = walk.client.Kill(KillRequest(selector=services)).processes
    assert [(p.id, p.state) for p in ended] == [(walk.id("service"), STATE_EXITED)], ended


def a_terminal_shows_what_was_typed(walk):
    id = walk.start("terminal", Spec(argv=Argv(args=["cat"]), terminal=Terminal())).process.id
    echo = output_until(r"hello\s+hello")
    typed = walk.client.WriteStdin(WriteStdinRequest(id=id, text="hello", enter=True, wait=echo))
    assert typed.wait.met, typed
    walk.client.Resize(ResizeRequest(id=id, rows=30, cols=100))
    screen = walk.client.Screen(ScreenRequest(id=id))
    assert screen.rows[:2] == ["hello", "hello"], screen
    assert (screen.size.rows, screen.size.cols) == (30, 100), screen
    end = Keys(names=["ctrl+d"])
    ended = walk.client.WriteStdin(WriteStdinRequest(id=id, keys=end, wait=EXIT)).process
    assert ended.exit.outcome == OUTCOME_SUCCEEDED, ended


def a_view_counts_what_it_leaves_out(walk):
    id = walk.start("lines", Spec(shell="seq 1000"), EXIT).process.id
    some = walk.client.Read(ReadRequest(id=id, view=View(grep="^500$", context=1)))
    assert text_of(some.chunks) == b"499\n500\n501\n", some
    assert some.omitted.lines == 997, some
    followed = list(walk.client.Follow(FollowRequest(id=id, view=View(grep="^1000$"))))
    assert text_of(message.chunk for message in followed) == b"1000\n", followed
    assert followed[-1].end.omitted.lines == 999, followed


def a_completion_wakes_a_sleeper(walk):
    long, often = Duration(seconds=600), Duration(seconds=5)
    alarm = Selector(ref=walk.id("alarm"))
    sleeping = walk.client.Sleep(SleepRequest(duration=long, tick_interval=often, wake_on=alarm))
    assert next(sleeping).HasField("tick")
    walk.start("alarm", Spec(shell="exit 0", ref=walk.id("alarm")))
    *_, last = sleeping
    assert last.done.interrupted and last.done.event.process_id == walk.id("alarm"), last


def leaving_ends_nothing(walk):
    id = walk.start("attached", Spec(argv=Argv(args=["cat"]), pipes=Pipes(stdin=True))).process.id
    typed = queue.SimpleQueue()
    attached = walk.client.Attach(iter(typed.get, None))
    typed.put(AttachRequest(start=AttachStart(id=id)))
    assert next(attached).attached.process.id == id
    typed.put(AttachRequest(text="hello\n"))
    assert next(attached).chunk.data == b"hello\n"
    attached.cancel()
    typed.put(None)
    assert walk.get("attached").state == STATE_RUNNING, walk.get("attached")
    walk.client.Kill(KillRequest(id=id))


def errors_carry_their_details(walk):
    code, details = failure(lambda: walk.get("nobody"))
    assert code == grpc.StatusCode.NOT_FOUND, code
    assert details[ErrorInfo].domain == "procyard", details
    assert details[ErrorInfo].reason == "PROCESS_NOT_FOUND", details
    assert details[ResourceInfo].resource_name == walk.id("nobody"), details

    bad = Spec(shell="exit 0", labels={"a bad key": ""}, timeout=Duration(seconds=-1))
    code, details = failure(lambda: walk.client.Start(StartRequest(id="../x", spec=bad)))
    assert code == grpc.StatusCode.INVALID_ARGUMENT, code
    assert details[ErrorInfo].reason == "INVALID_FIELD", details
    fields = [violation.field for violation in details[BadRequest].field_violations]
    for name in ("id", "spec.labels", "spec.timeout"):
        assert any(field.startswith(name) for field in fields), (name, fields)


def failure(call):
    """The code of a call that must fail, and its details by their types."""
    try:
        answer = call()
    except grpc.RpcError as error:
        details = {}
        for packed in rpc_status.from_call(error).details:
            for kind in (BadRequest, ErrorInfo, ResourceInfo):
                if packed.Is(kind.DESCRIPTOR):
                    details[kind] = kind.FromString(packed.value)
        return error.code(), details
    raise AssertionError(f"no error, but {answer}")


def what_was_deleted_is_gone(walk):
    for id in walk.made:
        walk.client.Delete(DeleteRequest(id=id))
        code, _ = failure(lambda: walk.client.Get(GetRequest(id=id)))
        assert code == grpc.StatusCode.NOT_FOUND, (id, code)


STEPS = (
    the_server_is_there,
    a_repeated_start_is_no_second_process,
    a_repeated_write_is_no_second_write,
    a_timeout_is_an_answer,
    exit_codes_are_told,
    the_end_comes_once_and_last,
    a_kill_ends_the_tree,
    no_event_is_lost_or_doubled,
    a_queue_runs_one_at_a_time,
    a_script_sets_its_output,
    only_force_clears_what_was_printed,
    a_service_is_there_once,
    a_selector_spares_services,
    a_terminal_shows_what_was_typed,
    a_view_counts_what_it_leaves_out,
    a_completion_wakes_a_sleeper,
    leaving_ends_nothing,
    no_restart_loses_or_doubles_anything,
    errors_carry_their_details,
    the_door_knows_who_calls,
    what_was_deleted_is_gone,
)

with resuming.connect(f"unix://{os.environ['PROCYARD_SOCKET']}") as channel:
    walk = Walk(channel)
    for number, step in enumerate(STEPS, 1):
        print(f"{number:2} {step.__name__.replace('_', ' ')}", flush=True)
        step(walk)
