"""An engine in name alone: says what an engine says on its control socket, as its acts tell it.

The acts are in `settings.model`, as JSON {rank: [act of each life]}; the last act goes on. The
first life has epoch 1, the next epoch 2, … (so lives are counted for a single engine only).

"busy N"         READY, and has a request until its tree was asked for so often
"other"          READY with another numerics id, then as "ready"
"ready"          READY, then tells what it heard when its tree is asked for
"workers PID"    says that PID is its worker, then as "ready"
"late PID"       READY, and at SIGUSR1 says that PID is its worker
"failing"        READY, and at SIGUSR1 says that it is about to end, which it is not
"shown PID"      as "workers PID", and both have a slot on the progress page
"raise"          raises before READY
"refuse"         says that it can never start
"hang"           neither READY nor progress
"starved"        READY, and starts a thread that finds no memory to begin with
"deaf"           READY, and takes no message ever after
"noise"          READY, then sends what no codec knows, then as "ready"
"""

import json
import os
import resource
import struct
import threading
from typing import Any

import attrs
import msgspec
import trio

from triolet.engine.control_messages import (
    ENGINE_TO_ROOT,
    ROOT_TO_ENGINE,
    Drain,
    EngineInit,
    EngineReady,
    Failing,
    FrontendMembership,
    Passed,
    TreeReply,
    TreeRequest,
    WorkersChanged,
)
from triolet.nurseries.processes.child import ChildFds, run_child
from triolet.nurseries.processes.progress_page import SLOT_BYTES, open_slot, passes_shown
from triolet.nurseries.processes.watched import Watch, Watched
from triolet.nurseries.tasks.task_tree import ProcessTree
from triolet.transports.control.channel import ControlChannel
from triolet.transports.control.handshake import ChildHandshake

from .stage import Stage, play

READY = EngineReady(
    kv_blocks=8,
    block_tokens=16,
    max_model_len=128,
    max_num_seqs=4,
    vocab_size=320,
    numerics_id="acting",
    bitwise=True,
    settings_digest="",
)


async def main(fds: ChildFds) -> None:
    await play(act_engine, fds)


async def act_engine(stage: Stage) -> None:
    handshake = await stage.enter("engine", ENGINE_TO_ROOT, ROOT_TO_ENGINE)
    control = stage.control
    init = msgspec.msgpack.decode(handshake.init, type=EngineInit)
    acts = json.loads(init.settings.model)[str(init.rank)]
    act, _, argument = acts[min(init.epoch, len(acts)) - 1].partition(" ")
    await boot(act, argument, control, handshake)
    ready = attrs.evolve(READY, numerics_id="other") if act == "other" else READY
    await handshake.ready(msgspec.msgpack.encode(ready))
    match act:
        case "noise":
            stage.socket.send(b"\xffnoise")
        case "deaf":
            await trio.sleep_forever()
        case "starved":
            with open_slot(handshake.fds[0], 0) as slot, passes_shown(slot):
                await trio.lowlevel.checkpoint()
                start_thread_without_memory()
        case "passed":
            assert control.send_nowait(Passed({argument.encode(): 7}))
        case "late":
            await stage.wait_cue()
            await tell_worker(control, int(argument))
        case "failing":
            await stage.wait_cue()
            assert control.send_nowait(Failing("a worker died"))
    await serve(stage, init, busy=int(argument) if act == "busy" else 0)


async def boot(act: str, argument: str, control: ControlChannel, handshake: ChildHandshake) -> None:
    await handshake.progress("load", 0.5)
    match act:
        case "raise":
            raise ValueError("told to raise")
        case "refuse":
            await handshake.refuse("/m: is truncated")
        case "hang":
            await trio.sleep_forever()
        case "workers":
            await tell_worker(control, int(argument))
        case "shown":
            await tell_worker(control, int(argument))
            for place, pid in enumerate((os.getpid(), int(argument))):
                words = (pid, 0, 0, 0, 0, 0, 1)  # its loop waits
                os.pwrite(handshake.fds[0], struct.pack("<7Q", *words), SLOT_BYTES * place)


def start_thread_without_memory() -> None:
    """It never returns: the stack of a thread that has ended is there for the next, and no room for
    its first frame of Python (`Thread.start` waits for a word of it)."""
    threading.Thread(target=bool).start()
    while len(os.listdir("/proc/self/task")) > 1:
        os.sched_yield()
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        resource.setrlimit(limit, (2**20, -1))
    threading.Thread(target=bool).start()


async def tell_worker(control: ControlChannel, pid: int) -> None:
    await control.send(WorkersChanged([pid]), [os.pidfd_open(pid)])


async def serve(stage: Stage, init: EngineInit, *, busy: int = 0) -> None:
    control, settings = stage.control, init.settings
    heard: dict[str, Any] = {
        "memberships": "",
        "drains": 0,
        "on": f"{settings.device} {settings.isa}",
    }
    while True:
        message, _ = await control.receive()
        match message:
            case FrontendMembership(number=number):
                heard["memberships"] += f"{number} "
            case Drain():
                heard["drains"] += 1
            case Watch(number=number):
                await control.send(Watched(f'{{"engine heard":{number}}}'))
            case TreeRequest(call_id=call_id):
                heard["running"], busy = int(busy > 0), busy - 1
                tree = ProcessTree(f"engine {init.rank}", stage.pid, facts=heard)
                await control.send(TreeReply(call_id, msgspec.json.encode(tree).decode()))


if __name__ == "__main__":
    run_child(main)
