"""When the loop makes way for the bridge's thread, which CPython may starve."""

from typing import Any

import attrs

from triolet.transports.links.zmq_thread import PATIENCE_S, Ringer, SocketThread

SLEEPS_S, BUSY_S = 1.0, 0.0


@attrs.define(eq=False)
class Turns:
    """A loop's turns against a thread that makes its rounds when the test says so."""

    bridge: SocketThread = attrs.field(init=False)
    ringer: Ringer = attrs.field(init=False)
    now_s: float = 100.0
    pauses: int = 0

    def __attrs_post_init__(self) -> None:
        no_sockets: Any = None
        self.bridge = SocketThread("test", no_sockets, lambda _: None)
        self.ringer = Ringer(self.bridge, now_s=lambda: self.now_s, pause=self._pause)

    def _pause(self) -> None:
        self.pauses += 1

    def turn(self, timeout_s: float = BUSY_S, *, after_s: float, rounds: int = 0) -> int:
        """One turn of the loop so long after the last; how often the loop has paused by then."""
        self.now_s += after_s
        self.bridge.rounds += rounds
        self.ringer.before_io_wait(timeout_s)
        return self.pauses


def test_a_starved_thread_is_made_way_for_once_in_its_patience() -> None:
    turns = Turns()
    step_s = PATIENCE_S / 4
    # The first busy turn begins the count, and so does the first after a pause.
    assert [turns.turn(after_s=step_s) for _ in range(14)] == [0] * 5 + [1] * 6 + [2] * 3


def test_a_loop_that_sleeps_or_a_thread_that_comes_round_needs_no_pause() -> None:
    turns = Turns()
    for _ in range(100):
        turns.turn(after_s=PATIENCE_S * 2 / 3)
        turns.turn(SLEEPS_S, after_s=PATIENCE_S * 2 / 3)
    for _ in range(100):
        turns.turn(after_s=PATIENCE_S * 2 / 3)
        turns.turn(after_s=PATIENCE_S * 2 / 3, rounds=1)
    assert turns.pauses == 0
