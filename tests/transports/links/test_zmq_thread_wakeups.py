"""No wake-up of the bridge is lost, wherever the loop and the thread interrupt one another.

All ways in which one side runs so many statements, then the other, then the first again, and so on
until neither can go on. With one statement of the bridge moved a line, some of them lose a message.

The source of a function becomes a generator with a step before each statement. Where the original
would wait (for a poll, or a readable descriptor) the generator gives out what for, and is sent the
answer. What it calls runs whole: only the functions that are given here are taken apart.
"""

import ast
import inspect
import itertools
import select
import textwrap
from collections import Counter
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio

from triolet.transports.links.zmq_thread import Burst, LinkOutbox, SendFrames, SocketThread

# What a step gives out: None, or ("poll", timeout), or ("readable", descriptor).
Wanted = tuple[str, Any] | None
Steps = Generator[Wanted, Any, Any]


class _Taker(ast.NodeTransformer):
    """Puts a step before each statement, and makes a step of each wait."""

    def _stepped(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [part for statement in body for part in (_step(), statement)]

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body:
                setattr(node, field, self._stepped(body))
        return node

    def visit_Await(self, node: ast.Await) -> ast.expr:
        call = node.value
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Attribute)
        if call.func.attr == "checkpoint":
            return ast.Yield()
        assert call.func.attr == "wait_readable", call.func.attr
        return _wait("readable", call.args[0])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "poll":
            return _wait("poll", node.args[0])
        return node


def _step() -> ast.stmt:
    return ast.Expr(ast.Yield())


def _wait(kind: str, argument: ast.expr) -> ast.expr:
    return ast.Yield(ast.Tuple([ast.Constant(kind), argument], ast.Load()))


def taken_apart(function: Callable[..., object], **replaced: object) -> Callable[..., Steps]:
    """`function`, plain or async, as a generator function; `replaced` are globals it sees."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    for argument in ast.walk(definition.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    plain = ast.FunctionDef(
        name=definition.name, args=definition.args, body=definition.body, decorator_list=[]
    )
    tree.body = [_Taker().generic_visit(plain)]  # type: ignore[list-item]  # it stays a statement
    ast.fix_missing_locations(tree)
    space: dict[str, Any] = {**function.__globals__, **replaced}
    code = compile(tree, f"<{definition.name}, taken apart>", "exec")
    exec(code, space)  # noqa: S102 (our own source)
    made: Callable[..., Steps] = space[definition.name]
    return made


THREAD_BELL, TASK_BELL = 100, 101
MESSAGES = 3
# As if the last round had taken all it may: then the thread looks again before it sleeps.
ROOM = 512
# Statements of one side, of the other, of the first again: a round of the thread has some twenty,
# and with sixty it is back where it waits.
SCHEDULES = list(itertools.product(range(45), range(30), (0, 5, 60)))


@attrs.define(eq=False)
class FakeOs:
    """Eventfds as counts."""

    counts: Counter[int] = attrs.field(factory=Counter)

    def eventfd_write(self, bell: int, count: int) -> None:
        self.counts[bell] += count

    def eventfd_read(self, bell: int) -> int:
        count, self.counts[bell] = self.counts[bell], 0
        assert count, "a read of a bell that was not rung would block"
        return count


@attrs.define(eq=False)
class FakeSockets:
    """One socket that takes everything; what arrives was put into `incoming`."""

    incoming: list[bytes] = attrs.field(factory=list)
    sent: list[Any] = attrs.field(factory=list)

    def sockets(self) -> dict[object, object]:
        return {None: None}

    def send(self, key: object, frames: Any) -> str:
        self.sent.append(frames)
        return ""

    def receive(self, socket: object, limit: int) -> list[bytes]:
        burst, self.incoming = self.incoming[:limit], self.incoming[limit:]
        return burst


@attrs.define(eq=False)
class Side:
    """One of two threads: where it is, and what it waits for."""

    steps: Steps
    wanted: Wanted = None
    ended: bool = False

    def answer(self) -> object:
        """What its wait brings now; None while it must go on waiting."""
        if self.wanted is None:
            return ()
        kind, argument = self.wanted
        if kind == "readable":
            return () if OS.counts[argument] else None
        rung = [(THREAD_BELL, select.POLLIN)] if OS.counts[THREAD_BELL] else []
        return rung if rung or argument == 0 else None

    def advance(self) -> bool:
        """One statement; False if it waits or has ended."""
        answer = None if self.ended else self.answer()
        if answer is None:
            return False
        try:
            self.wanted = self.steps.send(None if self.wanted is None else answer)
        except StopIteration:
            self.ended = True
        return True


OS = FakeOs()
QUIET = SimpleNamespace(select=lambda *_: None)  # a flood's pause
ROUND = taken_apart(SocketThread._round, os=OS, select=QUIET)
SUBMIT = taken_apart(SocketThread.submit, os=OS)
RING = taken_apart(SocketThread.ring, os=OS)
HAND_OVER = taken_apart(SocketThread._hand_over, os=OS)


class World:
    """A bridge whose functions run by statements."""

    def __init__(self) -> None:
        OS.counts.clear()
        self.sockets = FakeSockets()
        self.handled: list[object] = []
        sockets: Any = self.sockets
        self.bridge = SocketThread("test", sockets, self.handled.append)
        self.bridge._thread_bell, self.bridge._task_bell = THREAD_BELL, TASK_BELL
        self.bridge.bound = {}

    def thread(self, largest: int = ROOM) -> Steps:
        while True:
            largest = yield from ROUND(self.bridge, None, largest)

    def interleave(self, first: Steps, second: Steps, schedule: tuple[int, ...]) -> None:
        """As scheduled, beginning with `second`, then both until neither can go on."""
        sides = (Side(first), Side(second))
        for turn, statements in enumerate(schedule, 1):
            for _ in range(statements):
                sides[turn % 2].advance()
        for _ in range(10_000):
            if not (sides[0].advance() or sides[1].advance()):
                return
        raise AssertionError("they do not come to rest")


def _submit_all(schedule: tuple[int, ...]) -> list[object]:
    """What the thread has sent in the end."""
    world = World()
    outbox = LinkOutbox("peer", MESSAGES)

    def loop() -> Steps:
        for number in range(MESSAGES):
            yield from SUBMIT(world.bridge, SendFrames(outbox, (bytes([number]),)))
            yield from RING(world.bridge)

    world.interleave(loop(), world.thread(), schedule)
    return [frame for (frame,) in world.sockets.sent]


def _receive_all(schedule: tuple[int, ...]) -> list[object]:
    """What the task has handled in the end."""
    world = World()
    OS.counts[TASK_BELL] = 1  # the sockets are open

    def thread() -> Steps:
        # A message comes before each of the first rounds, then none.
        largest = ROOM
        for number in range(MESSAGES):
            world.sockets.incoming.append(bytes([number]))
            largest = yield from ROUND(world.bridge, None, ROOM)
        yield from world.thread(largest)

    task = HAND_OVER(world.bridge, trio.TASK_STATUS_IGNORED)
    world.interleave(task, thread(), schedule)
    bursts = [arrival for arrival in world.handled if isinstance(arrival, Burst)]
    return [message for burst in bursts for message in burst.messages]


@pytest.mark.parametrize("run", [_submit_all, _receive_all])
def test_neither_side_sleeps_while_something_is_there(
    run: Callable[[tuple[int, ...]], list[object]],
) -> None:
    whole = [bytes([number]) for number in range(MESSAGES)]
    assert [schedule for schedule in SCHEDULES if run(schedule) != whole] == []
