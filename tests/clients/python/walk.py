"""The walk in Python. Each step is a function; all of them share the Walk."""

import os
import uuid

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, ResourceInfo
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from procyard.v1.events_pb2 import KIND_COMPLETED, KIND_STARTED, WatchRequest
from procyard.v1.info_pb2 import GetServerInfoRequest
from procyard.v1.input_pb2 import WriteStdinRequest
from procyard.v1.lifecycle_pb2 import DeleteRequest, KillRequest, StartRequest
from procyard.v1.process_pb2 import (
    CAUSE_EXITED,
    CAUSE_KILLED,
    OUTCOME_CANCELED,
    OUTCOME_FAILED,
    OUTCOME_SUCCEEDED,
)
from procyard.v1.records_pb2 import GetRequest
from procyard.v1.service_pb2_grpc import ProcessServiceStub
from procyard.v1.spec_pb2 import Argv, Pipes, Spec
from procyard.v1.transcript_pb2 import STREAM_STDERR, STREAM_STDOUT, FollowRequest
from procyard.v1.wait_pb2 import WaitFor, WaitRequest

EXIT = WaitFor(exit=WaitFor.Exit())
# Two sleeps, and a word when both of them are executed.
TREE = "for n in 1 2; do sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; done; echo up; wait"


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

    def start(self, name, spec, wait=None):
        id = self.id(name)
        if id not in self.made:
            self.made.append(id)
        return self.client.Start(StartRequest(id=id, spec=spec, wait=wait))

    def follow_until(self, is_enough):
        for message in self.follower:
            self.followed.append(message)
            if is_enough():
                return

    def output(self):
        """What the follower was sent so far."""
        return b"".join(m.chunk.data for m in self.followed if m.HasField("chunk"))


def output_of(chunks, stream):
    return b"".join(chunk.data for chunk in chunks if chunk.stream == stream)


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
    hello = WaitFor(output=WaitFor.Output(regex="hello"))
    met = walk.client.Wait(WaitRequest(id=walk.id("cat"), wait=hello)).wait
    assert met.met and not met.timed_out and met.match.text == "hello" and met.match.seq, met
    soon = WaitFor(exit=WaitFor.Exit(), timeout=Duration(nanos=100_000_000))
    late = walk.client.Wait(WaitRequest(id=walk.id("cat"), wait=soon)).wait
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
    up = walk.start("tree", Spec(shell=TREE), WaitFor(output=WaitFor.Output(regex="up")))
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


def errors_carry_their_details(walk):
    code, details = failure(lambda: walk.client.Get(GetRequest(id=walk.id("nobody"))))
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
    errors_carry_their_details,
    what_was_deleted_is_gone,
)

with grpc.insecure_channel(f"unix://{os.environ['PROCYARD_SOCKET']}") as channel:
    walk = Walk(channel)
    for number, step in enumerate(STEPS, 1):
        print(f"{number:2} {step.__name__.replace('_', ' ')}", flush=True)
        step(walk)
