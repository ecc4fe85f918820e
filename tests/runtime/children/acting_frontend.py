"""A frontend in name alone: takes connections and says what it heard, as its settings tell it.

The settings are JSON {rank: [act of each life]}; the last act goes on. Lives are told apart by the
epoch as in `acting_engine`, so where they matter there is one frontend and epochs begin with 1.
Each life notes its epoch in its journal, and says what it found there.

"ready"    READY; answers each connection with "RANK EPOCH" and closes it
"keep"     as "ready", but closes connections when a drain begins only
"asks"     as "ready", but first asks the other of two frontends for a response
"deaf"     READY, and takes no message ever after
"stunned"  as "deaf", but first reports that it could serve
"late"     says how far it is, then as "ready" at SIGUSR1
"raise"    raises before READY
"refuse"   says that it can never start
"""

import json
import os
import signal
import socket
from typing import Any

import attrs
import msgspec
import trio

from triolet.engine.messages import Drain, TreeReply, TreeRequest
from triolet.nurseries.processes.child import ChildFds, run_child
from triolet.nurseries.tasks.task_tree import ProcessTree
from triolet.runtime.messages import (
    FRONTEND_TO_ROOT,
    ROOT_TO_FRONTEND,
    EngineMembership,
    ForeignCall,
    ForeignOutcome,
    ForeignReply,
    ForeignVerb,
    FrontendInit,
    FrontendLoad,
    FrontendReady,
    FrontendStates,
    PassConnection,
)
from triolet.runtime.processes.membership import reply_to
from triolet.transports.control.channel import ControlChannel
from triolet.transports.control.handshake import perform_child_handshake

# Anywhere behind the header of a journal.
NOTES_AT = 2**20


async def main(fds: ChildFds) -> None:
    control = ControlChannel(fds.control, sends=FRONTEND_TO_ROOT, receives=ROOT_TO_FRONTEND)
    handshake = await perform_child_handshake(control, "frontend")
    init = msgspec.msgpack.decode(handshake.init, type=FrontendInit)
    journal = notes_in(handshake.fds[1:-1], init.epoch)
    acts = json.loads(init.settings)[str(init.rank)]
    act = acts[min(init.epoch, len(acts)) - 1]
    if act == "raise":
        raise ValueError("told to raise")
    if act == "refuse":
        await handshake.refuse("/m/tokenizer.json: is not a tokenizer")
    if act == "late":
        with trio.open_signal_receiver(signal.SIGUSR1) as signals:
            await handshake.progress("load", 0.5)
            await anext(signals)
    ready = FrontendReady(input_endpoint=f"in-{init.epoch}", output_endpoint=f"out-{init.epoch}")
    await handshake.ready(msgspec.msgpack.encode(ready))
    if act == "deaf":
        await trio.sleep_forever()
    frontend = ActingFrontend(control, init, act, journal)
    if act == "stunned":
        await frontend.report()
        await trio.sleep_forever()
    await frontend.run()


def notes_in(journal: list[int], epoch: int) -> str:
    """What earlier lives noted in the journal; then also this one."""
    if not journal:
        return "no journal"
    notes = os.pread(journal[0], 100, NOTES_AT).rstrip(b"\0")
    os.pwrite(journal[0], f"{epoch} ".encode(), NOTES_AT + len(notes))
    return f"noted: {notes.decode()}"


@attrs.define(eq=False)
class ActingFrontend:
    control: ControlChannel
    init: FrontendInit
    act: str
    journal: str
    received: int = 0
    kept: list[socket.socket] = attrs.field(factory=list)
    heard: dict[str, Any] = attrs.field(
        factory=lambda: {"memberships": "", "drains": 0, "replies": "", "up": "", "failed": ""}
    )

    async def run(self) -> None:
        await self.report()
        while True:
            message, fds = await self.control.receive()
            match message:
                case PassConnection():
                    await self.take(socket.socket(fileno=fds[0]))
                case EngineMembership(number=number):
                    self.heard["memberships"] += f"{number} "
                case FrontendStates(ready=ready, failed=failed):
                    self.heard["up"] = "".join(f"{rank} {epoch};" for rank, epoch in ready.items())
                    self.heard["failed"] = "".join(f"{r} {why};" for r, why in failed.items())
                case Drain():
                    self.heard["drains"] += 1
                    while self.kept:
                        self.kept.pop().close()
                    await self.report()
                case ForeignCall(response_id=response_id):
                    text = f"{response_id} of {self.init.rank}"
                    await self.control.send(reply_to(message, ForeignOutcome.FOUND, text))
                case ForeignReply(outcome=outcome, text=text, call_id=call_id):
                    self.heard["replies"] += f"{call_id} {outcome} {text};"
                case TreeRequest(call_id=call_id):
                    facts = {
                        **self.heard,
                        "draining": int(self.init.draining),
                        "journal": self.journal,
                    }
                    tree = ProcessTree(f"frontend {self.init.rank}", os.getpid(), facts=facts)
                    await self.control.send(TreeReply(call_id, msgspec.json.encode(tree).decode()))

    async def take(self, connection: socket.socket) -> None:
        self.received += 1
        connection.send(f"{self.init.rank} {self.init.epoch}".encode())
        if self.act == "asks":
            await self.ask()
        if self.act == "keep":
            self.kept.append(connection)
        else:
            connection.close()
        await self.report()

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

    async def report(self) -> None:
        await self.control.send(FrontendLoad(len(self.kept), 0, self.received, engines_ready=1))


if __name__ == "__main__":
    run_child(main)
