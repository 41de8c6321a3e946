"""Calls that go on by themselves when the server is replaced. Made to be copied.

The server may be replaced at any moment: by an upgrade, or because it died. Processes run on, and
who connects meanwhile waits, since the listening sockets stay open. What breaks is a connection,
with every call on it, and nobody can tell which of them had been obeyed.

So what may be done twice is done again: a stream goes on after the last number that came, a write
is repeated at its offset, a start under its id, and by `call` any of Get, List, Read, Wait, Kill,
Resize, Screen, GetServerInfo, and Delete with `allow_missing`.

Never repeated is what would happen twice: a start without an id, a write without an offset, Run,
Signal, and what was typed in an Attach. Ask with Get what has become of those. Sleep would begin
anew.
"""

import time

import grpc
from procyard.v1.events_pb2 import WatchRequest
from procyard.v1.info_pb2 import GetServerInfoRequest
from procyard.v1.input_pb2 import WriteStdinRequest
from procyard.v1.lifecycle_pb2 import StartRequest
from procyard.v1.transcript_pb2 import FollowRequest

# How long a call may take in all, and a stream be without a server, in seconds.
PATIENCE = 60
# Between two attempts.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0


def connect(address):
    """A channel that tries to connect as often as we do; its own first pause would be a second."""
    pauses = {"initial": FIRST_PAUSE, "max": LONGEST_PAUSE}
    options = [(f"grpc.{which}_reconnect_backoff_ms", int(1000 * pause)) for which, pause in pauses.items()]
    return grpc.insecure_channel(address, options=options)


def start(stub, id, spec, patience=PATIENCE):
    """Starts a process. `existed` in the answer may also mean that an earlier attempt has started it."""
    if not id:
        raise ValueError("without an id, a second attempt would be a second process")
    return call(stub.Start, StartRequest(id=id, spec=spec), patience)


def write(stub, id, offset, data, eof=False, patience=PATIENCE):
    """Types into a process whose only writer this is; returns the offset of the next write."""
    request = WriteStdinRequest(id=id, offset=offset, data=data, eof=eof)
    return call(stub.WriteStdin, request, patience).accepted_bytes


def follow(stub, id, since=None, patience=PATIENCE):
    """Yields messages with a `chunk`, a `gap`, or at last the `end` of a transcript, each once."""
    # Not with a view: there a chunk may come in pieces that have its number.
    for message in _resumed(lambda: stub.Follow(FollowRequest(id=id, since_seq=since)), patience):
        if message.HasField("heartbeat"):
            since = message.heartbeat.seq
            continue
        since = message.gap.to_seq + 1 if message.HasField("gap") else message.chunk.seq + 1
        yield message
        if message.HasField("end"):
            return


def watch(stub, selector, since=None, patience=PATIENCE):
    """Yields messages with an `event` or a `gap`, each once: after the event `since`, or from now on."""
    if since is None:
        # Now, not when the first one is asked for, nor when a broken stream is begun again.
        since = call(stub.GetServerInfo, GetServerInfoRequest(), patience).counts.latest_event
    return _watch(stub, selector, since, patience)


def _watch(stub, selector, since, patience):
    watching = lambda: stub.Watch(WatchRequest(selector=selector, since_event=since))
    for message in _resumed(watching, patience):
        if message.HasField("heartbeat"):
            since = message.heartbeat.seq
            continue
        since = message.gap.to_seq if message.HasField("gap") else message.event.seq
        yield message


def call(method, request, patience=PATIENCE):
    """The answer to a call that may be made twice."""
    attempts = _Attempts(patience)
    while True:
        try:
            # Waits for a connection instead of failing for want of one.
            return method(request, timeout=attempts.time_left(), wait_for_ready=True)
        except grpc.RpcError as error:
            attempts.pause_after(error)


def _resumed(begin, patience):
    """The messages of a stream and of those that are begun in its place when it breaks."""
    attempts = None
    while True:
        # A stream has no deadline, so it does not wait for a connection for ever either.
        stream = begin()
        try:
            for message in stream:
                attempts = None
                yield message
            return
        except grpc.RpcError as error:
            attempts = attempts or _Attempts(patience)
            attempts.pause_after(error)
        finally:
            stream.cancel()


class _Attempts:
    def __init__(self, patience):
        self.until = time.monotonic() + patience
        self.pause = FIRST_PAUSE

    def time_left(self):
        return self.until - time.monotonic()

    def pause_after(self, error):
        """Pauses after a connection was lost; any other error, and the last one, is the caller's."""
        if error.code() != grpc.StatusCode.UNAVAILABLE or self.time_left() <= self.pause:
            raise error
        time.sleep(self.pause)
        self.pause = min(2 * self.pause, LONGEST_PAUSE)
