"""The handshake's machines: a table of refusals, then every message dropped, doubled, delayed."""

import math

import hypothesis
import hypothesis.strategies as st
import pytest

from triolet.transports.control.handshake import (
    REASON_CHARACTERS_MAX,
    REFUSALS_KEPT,
    Advanced,
    ChildSide,
    ChildState,
    Done,
    Fail,
    Ignore,
    Initialised,
    ParentSide,
    ParentState,
    SendInit,
)
from triolet.transports.control.handshake_messages import (
    DuplicateMessage,
    HandshakeError,
    HandshakeMessage,
    HandshakeTimeout,
    Hello,
    Init,
    OutOfOrder,
    PeerRefused,
    Progress,
    Ready,
    Refused,
    StaleMessage,
    StrayPeer,
    TooLate,
    WrongKey,
    WrongVersion,
)

HELLO = Hello(wire_version=1, role="worker", pid=7, key=b"key", capabilities=("bitwise",))
HALF = Progress(epoch=3, number=1, phase="loading", fraction=0.5)
READY = Ready(epoch=3, payload=b"limits")
REFUSED = Refused(epoch=3, reason="/m: has no weights")


def parent() -> ParentSide:
    return ParentSide(
        who="worker 1",
        role="worker",
        init=b"settings",
        boot_timeout_s=10,
        started_at=100,
        epoch=3,
        pid=7,
        key=b"key",
    )


def test_the_way_it_should_go() -> None:
    side = parent()
    assert (side.next_deadline(), side.phase) == (110, "waiting for HELLO")
    init = Init(epoch=3, payload=b"settings")
    assert side.handle_message(HELLO, 101) == SendInit(init)
    assert (side.next_deadline(), side.phase) == (111, "booting")
    assert side.capabilities == ("bitwise",)
    assert side.handle_message(HALF, 105) == Advanced("loading", 0.5)
    assert (side.next_deadline(), side.phase) == (115, "loading (50%)")
    assert side.handle_message(READY, 106) == Done(b"limits")
    assert side.next_deadline() == math.inf
    assert side.handle_timeout(1e9) is None
    assert side.refused == 0


def with_hello(**changed: object) -> Hello:
    values: dict[str, object] = {"wire_version": 1, "role": "worker", "pid": 7, "key": b"key"}
    return Hello(**{**values, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hello", "error"),
    [
        (with_hello(wire_version=2), WrongVersion("worker 1", 2, 1)),
        (with_hello(key=b"other"), WrongKey("worker 1")),
        (with_hello(key=b""), WrongKey("worker 1")),
        (with_hello(role="engine"), StrayPeer("worker 1", "a process of role 'engine'")),
        (with_hello(pid=8), StrayPeer("worker 1", "process 8, not 7")),
    ],
)
def test_the_wrong_peer_fails_for_good(hello: Hello, error: HandshakeError) -> None:
    side = parent()
    decision = side.handle_message(hello, 101)
    assert isinstance(decision, Fail)
    assert (type(decision.error), str(decision.error)) == (type(error), str(error))
    assert side.state is ParentState.FAILED
    late = side.handle_message(HELLO, 102)
    assert isinstance(late, Ignore)
    assert isinstance(late.error, TooLate)


@pytest.mark.parametrize(
    ("before", "message", "error"),
    [
        ([], HALF, OutOfOrder),
        ([], READY, OutOfOrder),
        ([], REFUSED, OutOfOrder),
        ([], Init(epoch=3, payload=b""), OutOfOrder),
        ([], "another object", OutOfOrder),
        ([HELLO], HELLO, DuplicateMessage),
        ([HELLO], with_hello(pid=8), DuplicateMessage),
        ([HELLO], Ready(epoch=2, payload=b""), StaleMessage),
        ([HELLO], Refused(epoch=2, reason=""), StaleMessage),
        ([HELLO], Progress(epoch=4, number=1, phase="", fraction=0), StaleMessage),
        ([HELLO, HALF], HALF, DuplicateMessage),
        ([HELLO], Init(epoch=3, payload=b""), OutOfOrder),
        ([HELLO, READY], READY, TooLate),
        ([HELLO, READY], HALF, TooLate),
        ([HELLO, READY], REFUSED, TooLate),
        ([HELLO, REFUSED], READY, TooLate),
    ],
)
def test_a_wrong_message_is_ignored_and_changes_nothing(
    before: list[HandshakeMessage], message: object, error: type[HandshakeError]
) -> None:
    side = parent()
    for number, earlier in enumerate(before):
        side.handle_message(earlier, 100 + number)
    as_it_was = (side.state, side.phase, side.next_deadline())
    decision = side.handle_message(message, 109)
    assert isinstance(decision, Ignore)
    assert type(decision.error) is error
    assert (side.state, side.phase, side.next_deadline()) == as_it_was
    assert side.refused == 1


def test_a_refusal_ends_it_with_the_childs_own_sentence() -> None:
    side = parent()
    side.handle_message(HELLO, 101)
    side.handle_message(HALF, 102)
    decision = side.handle_message(REFUSED, 103)
    assert isinstance(decision, Fail)
    assert isinstance(decision.error, PeerRefused)
    assert str(decision.error) == "worker 1 refused: /m: has no weights"
    assert (side.state, side.next_deadline()) == (ParentState.FAILED, math.inf)


def test_reasons_are_bounded_on_both_sides() -> None:
    side, child = parent(), ChildSide(hello=HELLO)
    side.handle_message(HELLO, 101)
    child.handle_message(Init(epoch=3, payload=b""))
    assert len(child.refuse("x" * 99_999).reason) == REASON_CHARACTERS_MAX
    decision = side.handle_message(Refused(epoch=3, reason="x" * 99_999), 102)
    assert isinstance(decision, Fail)
    assert isinstance(decision.error, PeerRefused)
    assert len(decision.error.reason) == REASON_CHARACTERS_MAX


def test_a_timeout_says_in_which_phase_and_what_came_instead() -> None:
    side = parent()
    side.handle_message(HELLO, 101)
    side.handle_message(HALF, 105)
    side.handle_message(HALF, 106)
    side.handle_refusal(ValueError("noise"))
    assert side.handle_timeout(114.9) is None
    decision = side.handle_timeout(115)
    assert isinstance(decision, Fail)
    assert isinstance(decision.error, HandshakeTimeout)
    assert str(decision.error) == (
        "worker 1 made no progress for 10 s in the phase: loading (50%);"
        " worker 1 sent Progress twice; noise"
    )
    assert side.state is ParentState.FAILED


def test_kept_refusals_are_bounded() -> None:
    side = parent()
    for _ in range(REFUSALS_KEPT + 5):
        side.handle_message(READY, 100)
    assert len(side.refusals) == REFUSALS_KEPT
    side.check_invariants()


@pytest.mark.parametrize(("fraction", "seen"), [(-1, 0), (2, 1), (math.nan, 0), (0.25, 0.25)])
def test_fractions_are_fractions(fraction: float, seen: float) -> None:
    side = parent()
    side.handle_message(HELLO, 101)
    progress = Progress(epoch=3, number=1, phase="p" * 999, fraction=fraction)
    decision = side.handle_message(progress, 102)
    assert isinstance(decision, Advanced)
    assert decision.fraction == seen
    assert len(decision.phase) == 200


def test_the_child_takes_one_init_and_refuses_the_rest() -> None:
    child = ChildSide(hello=HELLO)
    assert child.next_deadline() == math.inf
    init = Init(epoch=3, payload=b"settings")
    table: list[tuple[object, object]] = [
        (READY, OutOfOrder),
        (init, Initialised),
        (init, DuplicateMessage),
        (Init(epoch=4, payload=b""), OutOfOrder),
    ]
    for message, expected in table:
        decision = child.handle_message(message)
        assert type(decision.error if isinstance(decision, Ignore) else decision) is expected
    assert child.progress("a", 0.5) == Progress(epoch=3, number=1, phase="a", fraction=0.5)
    assert child.progress("b", 0.1).number == 2
    assert child.ready(b"x") == Ready(epoch=3, payload=b"x")
    late = child.handle_message(Init(epoch=4, payload=b""))
    assert isinstance(late, Ignore)
    assert isinstance(late.error, TooLate)
    assert child.refused == 4


@pytest.mark.parametrize("state", [ChildState.AWAIT_INIT, ChildState.READY, ChildState.REFUSED])
def test_the_child_speaks_only_between_init_and_ready(state: ChildState) -> None:
    child = ChildSide(hello=HELLO)
    if state is not ChildState.AWAIT_INIT:
        child.handle_message(Init(epoch=3, payload=b""))
    if state is ChildState.READY:
        child.ready(b"")
    if state is ChildState.REFUSED:
        child.refuse("no")
    with pytest.raises(AssertionError):
        child.progress("a", 0)
    with pytest.raises(AssertionError):
        child.ready(b"")
    with pytest.raises(AssertionError):
        child.refuse("no")


class Exchange:
    """Both machines and a network that can spoil the n-th message of the whole exchange."""

    def __init__(self, n: int, fault: str, delay: int = 0) -> None:
        self.parent = parent()
        self.child = ChildSide(hello=HELLO)
        self.n, self.fault, self.delay = n, fault, delay
        self.sent = 0
        # (delivered after so many deliveries, number, to the parent?, message)
        self.network: list[tuple[int, int, bool, object]] = []
        self.events: list[object] = []
        self.now = 100.0

    def send(self, message: object, *, to_parent: bool) -> None:
        number = self.sent
        self.sent += 1
        if number == self.n and self.fault == "drop":
            return
        due = number + (self.delay if number == self.n and self.fault == "delay" else 0)
        self.network.append((due, number, to_parent, message))
        if number == self.n and self.fault == "double":
            self.network.append((due, number, to_parent, message))

    def run(self) -> None:
        self.send(HELLO, to_parent=True)
        while self.network:
            self.network.sort(key=lambda entry: entry[:2])
            _, _, to_parent, message = self.network.pop(0)
            self.now += 0.1
            if to_parent:
                self.to_parent(message)
            else:
                self.to_child(message)
            self.parent.check_invariants()
        timeout = self.parent.handle_timeout(self.now + 10)
        if timeout is not None:
            self.events.append(timeout)

    def to_parent(self, message: object) -> None:
        decision = self.parent.handle_message(message, self.now)
        self.events.append(decision)
        if isinstance(decision, SendInit):
            self.send(decision.message, to_parent=False)

    def to_child(self, message: object) -> None:
        decision = self.child.handle_message(message)
        self.events.append(decision)
        if isinstance(decision, Initialised):
            for number in range(3):
                self.send(self.child.progress("loading", number / 3), to_parent=True)
            self.send(self.child.ready(b"limits"), to_parent=True)


# HELLO, INIT, three PROGRESS, READY.
MESSAGES = 6


@pytest.mark.parametrize("n", range(MESSAGES))
@pytest.mark.parametrize("fault", ["drop", "double", "delay"])
def test_the_nth_message_dropped_doubled_or_delayed(n: int, fault: str) -> None:
    exchange = Exchange(n, fault, delay=2)
    exchange.run()
    essential = n in (0, 1, 5)
    ended = Fail if fault == "drop" and essential else Done
    assert sum(isinstance(event, Done | Fail) for event in exchange.events) == 1
    assert sum(isinstance(event, ended) for event in exchange.events) == 1
    refused = exchange.parent.refused + exchange.child.refused
    assert refused == (1 if fault == "double" or (fault == "delay" and n in (2, 3, 4)) else 0)


@pytest.mark.slow
@hypothesis.settings(deadline=None)
@hypothesis.given(
    st.lists(
        st.sampled_from(
            [HELLO, HALF, READY, REFUSED, with_hello(pid=8), "noise", Init(epoch=3, payload=b"")]
        )
        | st.builds(Ready, epoch=st.integers(2, 4), payload=st.just(b""))
        | st.builds(
            Progress,
            epoch=st.integers(2, 4),
            number=st.integers(-1, 5),
            phase=st.just(""),
            fraction=st.floats(),
        ),
    ),
    st.floats(0.1, 5),
)
def test_any_order_of_messages_ends_once(messages: list[object], pause_s: float) -> None:
    side = parent()
    now = 100.0
    ends = 0
    for message in messages:
        now += pause_s
        decision = side.handle_timeout(now) or side.handle_message(message, now)
        ends += isinstance(decision, Done | Fail)
        side.check_invariants()
    ends += side.handle_timeout(max(now, min(side.next_deadline(), now + 10))) is not None
    assert ends == 1
