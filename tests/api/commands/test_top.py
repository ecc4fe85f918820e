"""Keys of `triolet top`: what is chosen, and a kill only when it is confirmed."""

import re

import pytest
from rich.console import Console

from triolet.api.commands.top import HELP, Screen
from triolet.runtime.control.calls import Signal, SignalOrder

from .test_overview import CHANGE, HOST, SNAPSHOT, overview_of

DOWN, UP = "[B", "[A"


def screen_at(place: str) -> Screen:
    return Screen(overview_of(SNAPSHOT, CHANGE), place)


def shown(screen: Screen) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(screen.render())
    return capture.get()


def test_arrows_choose_and_stop_at_the_ends() -> None:
    screen, chosen = screen_at("root"), []
    for key in (UP, DOWN, DOWN, DOWN, DOWN, UP, "OA"):
        screen.handle_key(key)
        chosen.append(screen.place)
    assert chosen == [
        "root", "engine 0", "engine 0 worker 0", "frontend 0", "frontend 0",
        "engine 0 worker 0", "engine 0",
    ]  # fmt: skip


def test_what_is_gone_is_not_chosen_any_more() -> None:
    screen = screen_at("engine 9")
    screen.handle_key(DOWN)
    assert screen.place == "root"


def test_a_kill_is_confirmed_and_of_the_process_that_was_shown() -> None:
    screen = screen_at("engine 0")
    assert screen.handle_key("k") is None
    assert "kill engine 0 (pid 2)?" in shown(screen)
    assert screen.handle_key("y") == SignalOrder("engine 0", Signal.KILL, 2)
    assert screen.handle_key("y") is None


@pytest.mark.parametrize("key", ["n", "q", "k", DOWN, "\r"])
def test_any_other_key_kills_nothing(key: str) -> None:
    screen = screen_at("engine 0")
    screen.handle_key("k")
    assert screen.handle_key(key) is None
    assert not screen.is_over
    assert HELP in shown(screen)


def test_what_takes_no_signals_says_so() -> None:
    screen = screen_at("root")
    for key in "ksc":
        assert screen.handle_key(key) is None
        assert "root takes no signals" in shown(screen)


def test_q_and_the_end_of_the_input_are_the_end() -> None:
    for key in ("q", "\x04"):
        screen = screen_at("root")
        screen.handle_key(key)
        assert screen.is_over


def test_the_picture_has_every_process_and_what_happened() -> None:
    text = shown(screen_at("engine 0"))
    for words in ("toy", "root", "  engine 0", "frontend 0", "2 of 8 KV blocks", "ready after 1 s"):
        assert words in text


def test_a_silent_host_is_struck() -> None:
    silent = {"t": 22_500, "processes": [{"place": "host b", "state": "silent", "since": 20_400}]}
    console = Console(width=100, force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(Screen(overview_of(SNAPSHOT, HOST, silent)).render())
    struck = [line for line in capture.get().splitlines() if re.search(r"\x1b\[(\d+;)*9m", line)]
    assert ["host b" in struck[0], "silent for 2.1 s" in struck[0]] == [True] * 2
    assert ["engine 4" in struck[1], "engine 4 worker 0" in struck[2]] == [True] * 2
    assert len(struck) == 3
