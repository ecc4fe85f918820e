"""Lines of a run's events, which people read."""

import io

import pytest

from triolet.engine.control_messages import BootPhase
from triolet.runtime import events
from triolet.runtime.event_lines import PHASES, LineReport, sentence

EVENTS: list[tuple[events.RunEvent, str]] = [
    (
        events.FileDownloaded("o/n", "m.bin", 1_200_000, 2.0),
        "o/n: m.bin downloaded (1.2 MB in 2.0 s)",
    ),
    (events.ModelFetched("o/n", "c0ffee"), "o/n: revision c0ffee"),
    (
        events.ModelFetched("o/n", "c0ffee", "from the cache"),
        "o/n: revision c0ffee, from the cache",
    ),
    (events.ChildStarting("engine 0", 3), ""),
    (events.ChildPhaseEnded("engine 0", "start", 0.62), "engine 0: started in 0.6 s"),
    (events.ChildProgress("engine 0", "load weights", 0.5), ""),
    (events.ChildPhaseEnded("engine 0", "load weights", 0.4), "engine 0: weights loaded in 0.4 s"),
    (events.ChildPhaseEnded("engine 0", "dig", 1.0), "engine 0: dig done in 1.0 s"),
    (events.ChildPhaseEnded("engine 0", "KV memory", 0.02), "engine 0: KV memory taken in 0.02 s"),
    (events.ChildReady("engine 0", 3, 1.25), "engine 0: ready after 1.2 s (epoch 3)"),
    (
        events.EngineDiffers("engine 0", 3, "native-b", "native-a"),
        "engine 0: computes otherwise than engines before it (epoch 3, native-b, not native-a): its"
        " model folder or code was exchanged; what was begun before does not go on there",
    ),
    (events.ChildGone("engine 0", 3, "was killed by SIGKILL"), "engine 0: was killed by SIGKILL"),
    (
        events.ChildHung("engine 0", 3, "worker 1 hung: stopped for 0.5 s"),
        "engine 0: worker 1 hung: stopped for 0.5 s; it is killed",
    ),
    (events.ChildStopped("engine 0", 3), ""),
    (events.ChildFailed("engine 0", "exited with code 1"), "engine 0: given up"),
    (events.Serving("http://127.0.0.1:8000", 2.0), "serving on http://127.0.0.1:8000"),
    (events.Draining(2, 10.0), "draining: 2 open streams, at most 10 s"),
    (events.Draining(1, 10.0), "draining: 1 open stream, at most 10 s"),
    (events.Stopped(), "stopped: every process has ended"),
]


def test_every_phase_of_an_engine_has_words_for_people() -> None:
    assert {*BootPhase} <= set(PHASES)


@pytest.mark.parametrize(("event", "words"), EVENTS)
def test_every_event_has_its_sentence(event: events.RunEvent, words: str) -> None:
    assert sentence(event).startswith(words)
    assert bool(sentence(event)) == bool(words)


def test_lines_are_whole_and_empty_ones_left_out() -> None:
    stream = io.StringIO()
    for event, _ in EVENTS:
        LineReport(stream)(event)
    lines = stream.getvalue().splitlines()
    assert len(lines) == sum(bool(words) for _, words in EVENTS)
