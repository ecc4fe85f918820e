"""Frontends without a link are given up after their time, and no other."""

import math

from triolet.engine.process.orphan_watch import OrphanWatch


def test_a_frontend_is_given_up_once_after_its_time() -> None:
    watch = OrphanWatch[str](orphan_s=10.0)
    watch.handle_down("a", now=1.0)
    watch.handle_down("a", now=9.0)  # a repeat does not extend the wait
    assert watch.next_deadline() == 11.0
    assert watch.handle_timeout(10.9) == []
    assert watch.handle_timeout(11.0) == ["a"]
    assert watch.handle_timeout(99.0) == []
    assert watch.next_deadline() == math.inf


def test_a_link_that_comes_back_saves_its_requests() -> None:
    watch = OrphanWatch[str](orphan_s=10.0)
    watch.handle_down("a", now=0.0)
    watch.handle_down("b", now=5.0)
    watch.handle_up("a")
    assert watch.next_deadline() == 15.0
    assert watch.handle_timeout(20.0) == ["b"]
