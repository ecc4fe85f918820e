"""A frontend in name alone: takes connections and says what it heard, as its settings tell it.

The settings are JSON {rank: [act of each life]}; the last act goes on. Lives are told apart by the
epoch as in `acting_engine`, so where they matter there is one frontend and epochs begin with 1.
Each life notes its epoch in its journal, and says what it found there.

"ready"    READY; answers each connection with "RANK EPOCH" and closes it; if it has a slot, with
           "RANK EPOCH ID SLOT", and "again" if it was another's before
"slow"     READY, and begins at SIGUSR1 what "keep" does
"keep"     as "ready", but closes connections when a drain begins only
"plain"    as "keep", but could not map its connection slots
"leaves"   as "keep", but hands its connections over to its next life when it is asked to
"asks"     as "ready", but first asks the other of two frontends for a response
"watches"  as "ready", and has a viewer from the beginning
"deaf"     READY, and takes no message ever after
"stunned"  as "deaf", but first reports that it could serve
"late"     says how far it is, then as "ready" at SIGUSR1
"raise"    raises before READY
"refuse"   says that it can never start
"""

import contextlib
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

import attrs
import msgspec
import trio

from triolet.engine.control_messages import Drain, TreeReply, TreeRequest
from triolet.nurseries.processes.child import ChildFds, run_child
from triolet.nurseries.processes.process_exit import EXIT_HANDED_OVER
from triolet.nurseries.tasks.task_tree import ProcessTree
from triolet.runtime.fleet.membership import reply_to
from triolet.runtime.messages import (
    FRONTEND_TO_ROOT,
    ROOT_TO_FRONTEND,
    EngineMembership,
    ForeignCall,
    ForeignOutcome,
    ForeignReply,
    ForeignVerb,
    FormLink,
    FrontendInit,
    FrontendLoad,
    FrontendReady,
    FrontendStates,
    HandOver,
    PassConnection,
    ServerNews,
    WatchServer,
)
from triolet.transports.control.channel import ControlChannel
from triolet.transports.control.passed_fds import close_fds

from .stage import Stage, play

# Anywhere behind the header of a journal.
NOTES_AT = 2**20


async def main(fds: ChildFds) -> None:
    await play(act_frontend, fds)


async def act_frontend(stage: Stage) -> None:
    handshake = await stage.enter("frontend", FRONTEND_TO_ROOT, ROOT_TO_FRONTEND)
    init = msgspec.msgpack.decode(handshake.init, type=FrontendInit)
    named = dict(zip(init.descriptors, handshake.fds, strict=True))
    journal = notes_in(named.get("journal"), init.epoch)
    acts = json.loads(init.settings)[str(init.rank)]
    act = acts[min(init.epoch, len(acts)) - 1]
    if act == "raise":
        raise ValueError("told to raise")
    if act == "refuse":
        await handshake.refuse("/m/tokenizer.json: is not a tokenizer")
    if act == "late":
        await handshake.progress("load", 0.5)
        await stage.wait_cue()
    ready = FrontendReady(
        input_endpoint=f"in-{init.epoch}",
        output_endpoint=f"out-{init.epoch}",
        has_slots="connections" in named and act != "plain",
    )
    await handshake.ready(msgspec.msgpack.encode(ready))
    if act == "slow":
        await stage.wait_cue()
    if act == "deaf":
        await trio.sleep_forever()
    frontend = ActingFrontend(stage, init, act, journal)
    if act == "stunned":
        await frontend.report()
        await trio.sleep_forever()
    try:
        await frontend.run()
    finally:
        for connection in frontend.kept.values():
            connection.close()


def notes_in(journal: int | None, epoch: int) -> str:
    """What earlier lives noted in the journal; then also this one."""
    if journal is None:
        return "no journal"
    notes = os.pread(journal, 100, NOTES_AT).rstrip(b"\0")
    os.pwrite(journal, f"{epoch} ".encode(), NOTES_AT + len(notes))
    return f"noted: {notes.decode()}"


@attrs.define(eq=False)
class ActingFrontend:
    stage: Stage
    init: FrontendInit
    act: str
    journal: str
    received: int = 0
    # {its slot, or less than none: a connection that stays open}
    kept: dict[int, socket.socket] = attrs.field(factory=dict)
    heard: dict[str, Any] = attrs.field(
        factory=lambda: {
            "memberships": "",
            "drains": 0,
            "replies": "",
            "up": "",
            "failed": "",
        }
    )

    @property
    def control(self) -> ControlChannel:
        return self.stage.control

    async def run(self) -> None:
        await self.report()
        if self.act == "watches":
            await self.control.send(WatchServer(1))
        while True:
            message, fds = await self.control.receive()
            match message:
                case PassConnection():
                    await self.take(socket.socket(fileno=fds[0]), message)
                case EngineMembership(number=number):
                    self.heard["memberships"] += f"{number} "
                case FrontendStates(ready=ready, failed=failed):
                    self.heard["up"] = "".join(f"{rank} {epoch};" for rank, epoch in ready.items())
                    self.heard["failed"] = "".join(f"{r} {why};" for r, why in failed.items())
                case HandOver() if self.act == "leaves":
                    self.stage.exit(EXIT_HANDED_OVER)
                    await trio.sleep_forever()
                case Drain() | HandOver():
                    self.heard["drains"] += 1
                    await self.end(dict(self.kept))
                case ForeignCall(response_id=response_id, frontend=home):
                    text = f"{response_id} of {home}"
                    await self.control.send(reply_to(message, ForeignOutcome.FOUND, text))
                case ForeignReply(outcome=outcome, text=text, call_id=call_id):
                    self.heard["replies"] += f"{call_id} {outcome} {text};"
                case ServerNews(texts=texts, is_whole=is_whole):
                    self.heard["snapshots"] = self.heard.get("snapshots", 0) + is_whole
                    self.heard["news"] = self.heard.get("news", 0) + len(texts)
                case TreeRequest(call_id=call_id):
                    facts = {
                        **self.heard,
                        "draining": int(self.init.draining),
                        "journal": self.journal,
                    }
                    tree = ProcessTree(f"frontend {self.init.rank}", self.stage.pid, facts=facts)
                    await self.control.send(TreeReply(call_id, msgspec.json.encode(tree).decode()))
                case FormLink():
                    close_fds(fds)

    async def take(self, connection: socket.socket, passed: PassConnection) -> None:
        self.received += 1
        words = [self.init.rank, self.init.epoch]
        if passed.slot >= 0:
            words += [passed.connection_id, passed.slot]
        self.kept[passed.slot if passed.slot >= 0 else -self.received] = connection
        with contextlib.suppress(BrokenPipeError):  # its client may have left
            connection.send(" ".join(map(str, words)).encode() + b" again" * passed.is_taken_over)
        if self.act == "asks":
            await self.ask()
        if self.act in ("keep", "slow", "plain", "leaves"):
            await self.report()
        else:
            await self.end(dict(self.kept))

    async def end(self, connections: dict[int, socket.socket]) -> None:
        for key, connection in connections.items():
            with contextlib.suppress(OSError):  # its client may have left
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
            del self.kept[key]
        await self.report([key for key in connections if key >= 0])

    async def ask(self) -> None:
        call = ForeignCall(
            caller=self.init.rank,
            caller_epoch=self.init.epoch,
            call_id=self.received,
            frontend=1 - self.init.rank,
            verb=ForeignVerb.GET,
            response_id="resp",
            principal="",
        )
        await self.control.send(call)

    async def report(self, ended: Sequence[int] = ()) -> None:
        load = FrontendLoad(len(self.kept), 0, self.received, engines_ready=1, ended=list(ended))
        await self.control.send(load)


if __name__ == "__main__":
    run_child(main)
