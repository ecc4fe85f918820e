"""Loops over n in simulations: a death at every token, at every store, and every pair of faults."""

import itertools
from typing import Any

import attrs
import pytest

from triolet.fuzz.simulator.plan import (
    OF_FORMS,
    OF_HOSTS,
    SHARED_PROMPT,
    Fault,
    FaultKind,
    Request,
    Setup,
)
from triolet.fuzz.simulator.simulation import simulate

TOKENS = 8
REQUEST = Request(name="a", at_s=0.0, frontend=0, prompt=[9, 8], seed=3, max_tokens=TOKENS)
# What a request may ask for; what its tokens are like is the oracle's affair.
FEATURES: dict[str, dict[str, Any]] = {
    "seeded": {},
    "logprobs": {"logprobs": 2},
    "least length": {"min_tokens": 3},
    "stop token": {"stop_at": 5},
    "stop string": {"stop_text_at": 4},
    "two choices": {"n": 2, "logprobs": 0},
    "credit by and by": {"grants": 1},
    "not streaming": {"streaming": False},
    "chunks of a long prompt": {"prompt": [*SHARED_PROMPT, *range(20, 40)]},
}
DEATHS = (FaultKind.KILL_ENGINE, FaultKind.KILL_FRONTEND, FaultKind.KILL_BOTH)
# Stores of an engine, and of a frontend, that serves one request of `TOKENS` tokens; at least.
STORES = {FaultKind.KILL_AT_STORE: 30, FaultKind.KILL_FRONTEND_AT_STORE: 10}
BESIDE = [attrs.evolve(REQUEST, name=f"beside-{n}", prompt=[9, n], seed=100 + n) for n in range(3)]


@pytest.mark.parametrize("kind", DEATHS)
@pytest.mark.parametrize("feature", FEATURES)
def test_a_death_at_every_token(feature: str, kind: FaultKind) -> None:
    request = attrs.evolve(REQUEST, **FEATURES[feature])
    for index in range(request.n * TOKENS + 1):
        kill = Fault(kind=kind, at_s=0.0, tokens=index)
        reached = simulate([Setup(engines=1 + index % 2), request, kill]).reached
        assert reached["stream finished"] == reached[str(kind)] == 1, index


@pytest.mark.parametrize("is_torn", [False, True], ids=["between", "within"])
@pytest.mark.parametrize("kind", STORES)
def test_a_death_at_every_store_to_memory_that_outlives_the_process(
    kind: FaultKind, is_torn: bool
) -> None:
    place = "crash within a store" if is_torn else "crash between two stores"
    for n in itertools.count(1):
        kill = Fault(kind=kind, at_s=0.0, steps=n, is_torn=is_torn)
        reached = simulate([Setup(engines=1), REQUEST, kill]).reached
        assert reached["stream finished"] == 1, n
        if not reached[place]:
            break
    assert n > STORES[kind], "each of its stores was the last one once"


# A spare may have been taken, or not be there yet; a form is checked before the first token;
# hosts have a fuzzer of their own.
KINDS: list[FaultKind] = [
    kind for kind in FaultKind if kind not in (FaultKind.KILL_SPARE, *OF_FORMS, *OF_HOSTS)
]


@pytest.mark.slow
@pytest.mark.parametrize("first", KINDS)
def test_every_pair_of_faults(first: FaultKind) -> None:
    """One while the other's recovery is under way, over few blocks and rows."""
    setup = Setup(engines=2, frontends=2, spare_engines=1, kv_blocks=17, max_num_seqs=2)
    for second in KINDS[KINDS.index(first) :]:
        faults = [
            Fault(kind=first, at_s=0.0, tokens=4, for_s=0.3),
            Fault(kind=second, at_s=0.0, tokens=5, steps=7, for_s=0.3, engine=1),
        ]
        reached = simulate([setup, REQUEST, *BESIDE, *faults]).reached
        assert reached[str(first)] >= 1, second
        assert reached[str(second)] >= 1, second
        assert reached["stream finished"] == 4, second
