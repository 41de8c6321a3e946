"""The step of the walk in which the server is killed: whoever uses `resuming` does not notice."""

import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import resuming
from procyard.v1.events_pb2 import KIND_COMPLETED, KIND_STARTED, WatchRequest
from procyard.v1.process_pb2 import OUTCOME_SUCCEEDED
from procyard.v1.records_pb2 import Selector
from procyard.v1.spec_pb2 import Argv, Pipes, Spec, Terminal

# How often the server is killed, and how many processes are started meanwhile each time.
KILLS, STARTS = 5, 10
KILL_SERVER = Path(__file__).parent.parent / "kill-server"


def no_restart_loses_or_doubles_anything(walk):
    if "PROCYARD_KEEPER" not in os.environ:
        return print("   skipped: PROCYARD_KEEPER does not tell whose server to kill")
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor() as pool:
        restarts = Restarts(walk, Path(place))
        watching = pool.submit(restarts.told, resuming.watch(walk.client, restarts.all))
        work = (
            pool.submit(restarts.follow, "printed", "\n"),
            pool.submit(restarts.follow, "drawn", "\r\n", terminal=Terminal()),
            pool.submit(restarts.type),
            pool.submit(restarts.start_while_servers_die),
        )
        try:
            for part in work:
                part.result()
        finally:
            restarts.begin("last", shell="exit 0")
        restarts.check_events(watching.result())


class Restarts:
    def __init__(self, walk, place):
        self.over, self.log = place / "over", place / "log"
        self.walk = walk
        self.client = walk.client
        self.workspace = walk.id("restarts")
        self.all = Selector(workspace=self.workspace)
        self.begun = []

    def begin(self, name, **spec):
        id = self.walk.id(name)
        resuming.start(self.client, id, Spec(workspace=self.workspace, **spec))
        self.walk.made.append(id)
        self.begun.append(id)
        return id

    def printed(self, id):
        """All that a process prints. Every chunk comes once, none is missing, and the end is last."""
        text = ""
        for number, message in enumerate(resuming.follow(self.client, id), 1):
            if message.HasField("end"):
                process = message.end.process
                assert process.exit.outcome == OUTCOME_SUCCEEDED, message
                assert process.transcript.total_bytes == len(text), (process, text)
                return text
            assert message.chunk.seq == number, (number, message)
            text += message.chunk.data.decode()
        raise AssertionError(f"{id} has no end")

    def follow(self, name, newline, **io):
        """Every line of one who prints all the time comes once, and in order."""
        printer = f"n=0; until [ -e {self.over} ]; do echo $n; n=$((n + 1)); sleep 0.01; done"
        text = self.printed(self.begin(name, shell=printer, **io))
        assert text == "".join(f"{n}{newline}" for n in range(text.count("\n"))), text

    def type(self):
        """Every byte that is typed comes back once."""
        id = self.begin("typed", argv=Argv(args=["cat"]), pipes=Pipes(stdin=True))
        typed = b""
        while not self.over.exists():
            line = b"%d\n" % len(typed)
            next = resuming.write(self.client, id, len(typed), line)
            typed += line
            assert next == len(typed), (next, typed)
        resuming.write(self.client, id, len(typed), b"", eof=True)
        assert self.printed(id) == typed.decode(), typed

    def start_while_servers_die(self):
        """Every id is one process, which says so in a file of all."""
        started = []
        try:
            for _ in range(KILLS):
                killing = subprocess.Popen(KILL_SERVER)
                for _ in range(STARTS):
                    said = f"echo $PROCYARD_ID | tee -a {self.log}"
                    started.append(self.begin(f"short-{len(started)}", shell=said))
                    assert self.printed(started[-1]) == started[-1] + "\n"
                assert killing.wait() == 0
        finally:
            self.over.touch()
        assert self.log.read_text().split() == started, (started, self.log.read_text())

    def told(self, watching):
        """All events, until the last process has completed."""
        told = []
        for message in watching:
            told.append(message.event)
            if (message.event.process_id, message.event.kind) == (self.walk.id("last"), KIND_COMPLETED):
                return told

    def check_events(self, told):
        for id in self.begun:
            kinds = [event.kind for event in told if event.process_id == id]
            assert kinds == [KIND_STARTED, KIND_COMPLETED], (id, kinds)
        replay = self.client.Watch(WatchRequest(selector=self.all, since_event=0, replay_only=True))
        kept = [message.event.seq for message in replay if message.HasField("event")]
        assert [event.seq for event in told] == kept, (told, kept)
