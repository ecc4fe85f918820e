"""Times and lengths as the ledger counts them: each token's time once, gaps by their cause."""

from collections.abc import Sequence

import attrs

from triolet.engine.messages import (
    AddRequest,
    FinishReason,
    RequestKey,
    RequestOutput,
    ResyncReply,
    StepOutputs,
)
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.frontend.latencies import Histogram, Latencies
from triolet.runtime.frontend.ledger import Ledger
from triolet.runtime.journal.records import Placement
from triolet.transports.links.channel import Peer

ENGINE, OTHER = Peer("engine", 0, 1), Peer("engine", 1, 1)


@attrs.define(eq=False)
class Bed:
    """A ledger whose requests are numbered as they come, so that a name says the attempt, too."""

    ledger: Ledger = attrs.field(factory=Ledger)
    attempts: dict[str, int] = attrs.field(factory=dict)

    def add(self, name: str, now: float, engine: Peer = ENGINE) -> None:
        request = AddRequest(
            request_id=name,
            attempt=0,
            prompt_token_ids=[1, 2, 3],
            sampling=SamplingParams(seed=1),
        )
        self.attempts[name] = self.ledger.handle_add(request, engine, now).attempt

    def step(
        self,
        names: Sequence[str],
        now: float,
        engine: Peer = ENGINE,
        *,
        whole: bool = False,
        end: FinishReason | None = None,
        prefill_s: float = 0.0,
    ) -> None:
        """One message with a token for each, in columns or as outputs."""
        entries = {name: self.ledger.get(name) for name in names}
        indices = [len(entry.token_ids) for entry in entries.values() if entry is not None]
        if not whole:
            attempts = [self.attempts[name] for name in names]
            message = StepOutputs(1, [], attempts, indices, [7] * len(names))
        else:
            rows = [
                RequestOutput(
                    request_id=name,
                    attempt=self.attempts[name],
                    first_index=index,
                    token_ids=[7],
                    finish_reason=end,
                    prefill_s=prefill_s,
                )
                for name, index in zip(names, indices, strict=True)
            ]
            message = StepOutputs(1, rows)
        accepted = self.ledger.handle_outputs(engine, message, now)
        assert len(accepted.tokens) + len(accepted.outputs) == len(names)
        self.ledger.check_invariants()

    def move(self, name: str, engine: Peer, now: float) -> None:
        """It waits, and goes to this engine."""
        entry = self.ledger.get(name)
        assert entry is not None
        self.attempts[name] = self.ledger.handle_replay(entry, engine, now).attempt

    @property
    def latencies(self) -> Latencies:
        return self.ledger.latencies


def seen(histogram: Histogram) -> dict[float, int]:
    """{bound: how many were in its bucket}, without empty ones."""
    bounds = [*histogram.bounds, float("inf")]
    return {bound: n for bound, n in zip(bounds, histogram.counts, strict=True) if n}


def test_a_bucket_holds_what_is_at_most_its_bound() -> None:
    histogram = Histogram((0.1, 1))
    for seconds in (0.05, 0.1, 0.5):
        histogram.observe(seconds)
    histogram.observe(3.5, 2)
    assert histogram.cumulative() == [("0.1", 2), ("1.0", 3), ("+Inf", 5)]
    assert histogram.sum == 7.65


def test_each_token_after_the_first_counts_the_time_since_the_one_before() -> None:
    bed = Bed()
    bed.add("a", 10.0)
    bed.add("b", 10.0)
    bed.step("a", 10.5, whole=True)
    bed.step("ab", 10.625)  # 0.125 and a first one
    bed.step("ab", 10.875)  # 0.25 twice
    bed.step("b", 11.25)  # 0.375
    bed.step("ab", 11.5)  # 0.625, as a was not in the message before, and 0.25
    bed.step("ba", 12.5, whole=True)  # 1.0 twice
    assert seen(bed.latencies.first_token) == {0.5: 1, 0.75: 1}
    assert seen(bed.latencies.inter_token) == {0.15: 1, 0.3: 3, 0.4: 1, 0.75: 1, 1.0: 2}
    assert bed.latencies.inter_token.sum == 0.125 + 3 * 0.25 + 0.375 + 0.625 + 2 * 1.0
    assert seen(bed.latencies.gaps_of_engines) == {}


def test_a_death_is_a_gap_of_every_stream_that_had_tokens() -> None:
    bed = Bed()
    for name in "abc":
        bed.add(name, 0.0)
    bed.step("ab", 1.0)
    bed.ledger.handle_peer_gone(ENGINE, "died", 1.5)
    for name in "abc":
        bed.move(name, OTHER, 1.5)
    bed.step("a", 1.875, OTHER)
    bed.step("abc", 3.0, OTHER)
    assert seen(bed.latencies.gaps_of_engines) == {1.0: 1, 2.0: 1}
    assert bed.latencies.gaps_of_engines.sum == 0.875 + 2.0
    assert bed.latencies.inter_token.sum == 0.875 + 2.0 + 1.125
    assert seen(bed.latencies.first_token) == {1.0: 2, 5.0: 1}
    bed.step("abc", 3.5, OTHER)
    assert sum(bed.latencies.gaps_of_engines.counts) == 2


def test_one_that_comes_back_to_its_engine_has_a_gap_though_no_message_was_between() -> None:
    bed = Bed()
    bed.add("a", 0.0)
    bed.add("b", 0.0)
    bed.step("ab", 1.0)
    bed.ledger.handle_resync_reply(ENGINE, ResyncReply([RequestKey("a", bed.attempts["a"])]), 1.0)
    bed.move("a", ENGINE, 1.0)
    bed.step("ab", 1.5)
    assert seen(bed.latencies.gaps_of_engines) == {0.5: 1}
    assert seen(bed.latencies.inter_token) == {0.5: 2}


def test_what_another_life_began_has_its_gap_and_lengths_but_no_times() -> None:
    bed = Bed(Ledger(term=1))
    request = AddRequest(
        request_id="a",
        attempt=4,
        prompt_token_ids=[1],
        sampling=SamplingParams(seed=1),
        output_token_ids=[5, 6],
    )
    numerics = Placement("a", 4, None, "numerics")
    entry = bed.ledger.handle_adopted(request, ENGINE, 20.0, ready=numerics)
    entry.token_at, bed.attempts["a"] = 18.0, 4
    bed.step("a", 21.0, whole=True)
    assert seen(bed.latencies.gaps_of_frontends) == {3.0: 1}
    bed.ledger.handle_peer_gone(ENGINE, "died", 21.0)
    bed.move("a", OTHER, 21.0)
    bed.step("a", 21.25, OTHER)
    assert seen(bed.latencies.gaps_of_engines) == {0.25: 1}
    bed.step("a", 21.5, OTHER, whole=True, end=FinishReason.STOP)
    assert (bed.latencies.prompt_tokens.sum, bed.latencies.output_tokens.sum) == (1, 5)
    for histogram in (bed.latencies.first_token, bed.latencies.whole, bed.latencies.queue):
        assert seen(histogram) == {}


def test_a_request_counts_at_its_end_with_its_parts() -> None:
    bed = Bed()
    bed.add("a", 10.0)
    bed.step("a", 10.5, whole=True, prefill_s=0.125)
    for number in range(1, 4):
        bed.step("a", 10.5 + number / 8)
    bed.step("a", 12.0, whole=True, end=FinishReason.LENGTH)
    latencies = bed.latencies
    sums = [each.sum for each in (latencies.queue, latencies.prefill, latencies.decode)]
    assert sums == [0.375, 0.125, 1.5]
    assert (latencies.first_token.sum, latencies.whole.sum) == (0.5, 2.0)
    assert latencies.per_token.sum == 0.375
    assert (latencies.prompt_tokens.sum, latencies.output_tokens.sum) == (3, 5)
    assert isinstance(latencies.output_tokens.sum, int)


def test_without_a_token_no_time_is_counted() -> None:
    bed = Bed()
    for name in "ab":
        bed.add(name, 0.0)
    bed.ledger.handle_abort("a", 1.0)
    bed.step("b", 1.0, whole=True, end=FinishReason.STOP)
    assert seen(bed.latencies.first_token) == seen(bed.latencies.whole) == {1.0: 1}
    assert seen(bed.latencies.per_token) == {}
    assert seen(bed.latencies.output_tokens) == {1: 2}
