"""Fuzzes the samplers against each other: any logits, any parameters, several steps of a batch.

Invariant: the torch runner, the same with its rows in reverse, and the native one on every
instruction set of this machine sample the same tokens, fail the same rows, and tell the same bits
of logprobs. Logits have ties, both zeros, denormals, infinities and NaN; a fault is logits or
parameters spoiled a little before one side gets them.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import attrs
import numpy

from ...engine.step_messages import Mask, NewRow, RowSampling, Step, StepResult
from ..doubles.given_logits import LENGTH_MAX, GivenRunner, Logits, native_runners, torch_runner
from ..fuzzer import Fuzzer

# Successive steps that only decode, which the native runner does in a way of its own.
STEPS = 4
# Around a vector, a group of counters, a mask's word, the filters' first look, and beyond all.
VOCABULARIES = (2, 3, 31, 33, 64, 65, 127, 500, 1025)
NASTY = (-math.inf, -3e38, -88.0, -28.5, -1e-40, -0.0, 0.0, 1e-45, 1e-40, 0.5, 0.5, 4.0, 3e38)
PROMPT_MAX, OUTPUT_MAX, WORDS_MAX, BIASES_MAX, ALTERNATIVES_MAX = 6, 6, 12, 8, 20
# How often a row wishes for anything beyond temperature and filters, and has logits that are none.
EDITED, NO_NUMBERS = 0.5, 0.03


@attrs.frozen
class Ask:
    """Row to sample: its parameters, its tokens so far, and the seed of its logits at each step."""

    vocab_size: int
    sampling: RowSampling
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    allowed: tuple[int, ...] | None
    kind: str
    seed: int

    def logits(self, step: int, tokens: int) -> Logits:
        """Logits of some tokens, (T, V)."""
        random = numpy.random.default_rng([self.seed, step])
        drawn: Logits = KINDS[self.kind](random, (tokens, self.vocab_size)).astype(numpy.float32)
        if random.random() < NO_NUMBERS:
            wrong = random.choice([math.nan, math.inf, -math.inf])
            drawn[random.integers(tokens), random.integers(self.vocab_size)] = wrong
        return drawn


def _scaled(spread: float) -> "Kind":
    return lambda random, shape: random.standard_normal(shape) * spread


Kind = Callable[[numpy.random.Generator, tuple[int, int]], numpy.ndarray[Any, Any]]
KINDS: Mapping[str, Kind] = {
    "flat": _scaled(1.0),
    "peaked": _scaled(9.0),
    "nearly equal": _scaled(1e-6),
    "huge": _scaled(1e37),
    "denormal": _scaled(1e-40),
    "rounded": lambda random, shape: random.standard_normal(shape).round(1),
    "two values": lambda random, shape: random.integers(0, 2, shape),
    "both zeros": lambda random, shape: random.choice([0.0, -0.0], shape),
    "nasty": lambda random, shape: random.choice(NASTY, shape),
    "few allowed": lambda random, shape: numpy.where(random.random(shape) < 0.02, 1.5, -math.inf),
}


@attrs.frozen
class Spoiling:
    """Changes that one side gets instead of the truth."""

    ask: Callable[[Ask], Ask] = lambda ask: ask
    logits: Callable[[Logits], Logits] = lambda logits: logits


def draw(chance: Random, count: int) -> list[Ask]:
    """The rows of one batch: one vocabulary, everything else different."""
    vocab_size = chance.choice(VOCABULARIES)
    return [_draw_ask(chance, vocab_size) for _ in range(count)]


def _draw_ask(chance: Random, vocab_size: int) -> Ask:
    def tokens(least: int, most: int) -> list[int]:
        return [chance.randrange(vocab_size) for _ in range(chance.randint(least, most))]

    wishes: dict[str, Any] = {}
    if chance.random() < EDITED:
        wishes = {
            "min_tokens": chance.randint(0, 2 * OUTPUT_MAX),
            "suppressed_until_min": tokens(0, vocab_size),
            "repetition_penalty": chance.choice([1.0, 0.01, 0.7, 1.3, 100.0]),
            "frequency_penalty": chance.choice([0.0, -2.0, 0.1, 2.0]),
            "presence_penalty": chance.choice([0.0, -2.0, 0.7]),
            "logit_bias": [
                (token, chance.choice([-100.0, -0.1, 1e-40, 0.3, 100.0]))
                for token in set(tokens(0, BIASES_MAX))
            ],
            "allowed_token_ids": chance.choice([[], tokens(0, vocab_size)]),
            "bad_words": [tokens(1, 2) for _ in range(chance.randint(0, WORDS_MAX))],
        }
    sampling = RowSampling(
        temperature=chance.choice([0.0, 9e-6, 1e-5, 1e-3, 0.3, 1.0, 1.0, 2.5, 100.0]),
        top_k=chance.choice([0, 0, 1, 2, 40, chance.randint(1, 2 * vocab_size), 2**31 - 1]),
        top_p=chance.choice([1.0, 1.0, 5e-324, 0.1, 0.5, 0.9, chance.random(), 1 - 2**-53]),
        min_p=chance.choice([0.0, 0.0, 5e-324, 0.05, chance.random(), 1.0]),
        seed=chance.choice([0, chance.getrandbits(31), chance.getrandbits(63), 2**63 - 1]),
        choice=chance.choice([0, 0, 1, 127, 2**31 - 1]),
        logprobs=chance.choice([None, 0, 5, chance.randint(0, ALTERNATIVES_MAX)]),
        prompt_logprobs=chance.choice([None, None, None, 0, ALTERNATIVES_MAX]),
        **wishes,
    )
    return Ask(
        vocab_size=vocab_size,
        sampling=sampling,
        prompt=tuple(tokens(1, PROMPT_MAX)),
        output=tuple(tokens(0, OUTPUT_MAX)),
        allowed=chance.choice([None, None, tuple(tokens(0, vocab_size))]),
        kind=chance.choice(list(KINDS)),
        seed=chance.getrandbits(32),
    )


def check(asks: Sequence[Ask], spoiling: Spoiling) -> Counter[str]:
    """Run all samplers on the same rows, step by step; see the module's invariant."""
    reached: Counter[str] = Counter()
    if not asks:
        return reached
    expected = Batch(torch_runner(len(asks), asks[0].vocab_size), asks, Spoiling())
    others = [
        Batch(runner, asks, spoiling) for runner in native_runners(len(asks), asks[0].vocab_size)
    ]
    turned = Batch(torch_runner(len(asks), asks[0].vocab_size), asks[::-1], spoiling)
    last = len(asks) - 1
    for number in range(STEPS):
        result = expected.step(number)
        for other in others:
            found = other.step(number)
            assert found == result, difference(other.runner.name, found, result)
        found, wanted = _by_row(turned.step(number), last.__sub__), _by_row(result, int)
        assert found == wanted, difference("torch, turned round", found, wanted)
        reached += _reached(result, asks)
    reached[f"{len(others)} instruction sets"] += 1
    return reached


@attrs.define(eq=False)
class Batch:
    """Rows in one runner. A row that fails is finished by the next step."""

    runner: GivenRunner
    asks: Sequence[Ask]
    spoiling: Spoiling
    _failed: set[int] = attrs.field(factory=set, init=False)
    _finished: list[int] = attrs.field(factory=list, init=False)

    def step(self, number: int) -> StepResult:
        """Whole prompts at first, one token of each row that goes on later."""
        asks = {row: self.spoiling.ask(ask) for row, ask in enumerate(self.asks)}
        rows = [row for row in asks if row not in self._failed]
        lengths = {row: len(asks[row].prompt + asks[row].output) if not number else 1
                   for row in rows}  # fmt: skip
        logits = [self.asks[row].logits(number, lengths[row]) for row in rows]
        masked = [row for row in rows if asks[row].allowed is not None]
        step = Step(
            number=number,
            finished=self._finished,
            new=[_new_row(row, asks[row]) for row in rows] if not number else [],
            rows=rows,
            token_counts=[lengths[row] for row in rows],
            samples=[True] * len(rows),
            masked=masked,
        )
        mask = Mask(number, b"".join(_mask_words(asks[row]) for row in masked))
        none = numpy.zeros((0, 0), numpy.float32)
        given = self.spoiling.logits(numpy.concatenate(logits)) if logits else none
        result = self.runner.run(step, given, mask)
        self._finished = [row for row, _ in result.failed_rows]
        self._failed.update(self._finished)
        return result


def _new_row(row: int, ask: Ask) -> NewRow:
    assert len(ask.prompt + ask.output) + STEPS <= LENGTH_MAX
    return NewRow(
        row=row,
        token_ids=[*ask.prompt, *ask.output],
        prompt_tokens=len(ask.prompt),
        computed_tokens=0,
        block_ids=[0],
        sampling=ask.sampling,
    )


def _mask_words(ask: Ask) -> bytes:
    bits = numpy.zeros(-(-ask.vocab_size // 32) * 32, numpy.uint8)
    bits[list(ask.allowed or ())] = 1
    bits[ask.vocab_size :] = 1  # of no meaning
    return numpy.packbits(bits, bitorder="little").tobytes()


def difference(name: str, found: StepResult, expected: StepResult) -> str:
    """The first thing in which two results are not alike."""
    where = f"{name}, step {expected.number}"
    for one, other in zip(_parts(found), _parts(expected), strict=False):
        if one != other:
            return f"{where}: {one}, not {other}"
    return f"{where}: {len(found.rows)} rows, not {len(expected.rows)}"


def _parts(result: StepResult) -> list[object]:
    pairs = zip(result.rows, result.token_ids, strict=True)
    return [*result.failed_rows, *pairs, *result.logprobs]


def _by_row(result: StepResult, number_of: Callable[[int], int]) -> StepResult:
    """Number rows afresh, and put everything in their order."""
    pairs = zip(result.rows, result.token_ids, strict=True)
    tokens = sorted((number_of(row), token) for row, token in pairs)
    logprobs = [attrs.evolve(item, row=number_of(item.row)) for item in result.logprobs]
    return StepResult(
        result.number,
        [row for row, _ in tokens],
        [token for _, token in tokens],
        logprobs=sorted(logprobs, key=lambda item: (item.row, item.first)),
        failed_rows=sorted((number_of(row), reason) for row, reason in result.failed_rows),
    )


def _reached(result: StepResult, asks: Sequence[Ask]) -> Counter[str]:
    reached = Counter({"tokens": len(result.rows), "logprobs": len(result.logprobs)})
    reached += Counter(reason for _, reason in result.failed_rows)
    reached["greedy tokens"] += sum(asks[row].sampling.temperature == 0 for row in result.rows)
    return reached


# ---- planted faults


def _changed(**changes: Callable[[RowSampling], Any]) -> Spoiling:
    def spoil(ask: Ask) -> Ask:
        values = {name: change(ask.sampling) for name, change in changes.items()}
        return attrs.evolve(ask, sampling=attrs.evolve(ask.sampling, **values))

    return Spoiling(ask=spoil)


def _without_denormals(logits: Logits) -> Logits:
    zeros = numpy.copysign(numpy.float32(0), logits)
    return numpy.where(abs(logits) < numpy.finfo(numpy.float32).tiny, zeros, logits)


def _zeros_apart(logits: Logits) -> Logits:
    below = numpy.float32(-1e-45)
    return numpy.where((logits == 0) & numpy.signbit(logits), below, logits)


def _numbers(logits: Logits) -> Logits:
    return numpy.nan_to_num(logits, nan=0.0, posinf=3e38, neginf=-math.inf)


def _prompt_is_output(ask: Ask) -> Ask:
    return attrs.evolve(ask, prompt=ask.prompt[:1], output=ask.prompt[1:] + ask.output)


FUZZER = Fuzzer[Ask, Spoiling](
    name="sampler",
    invariant="all samplers draw the same tokens and tell the same bits of logprobs",
    draw=draw,
    check=check,
    target=Spoiling(),
    faults={
        "denormals are zeros": Spoiling(logits=_without_denormals),
        "-0 comes after 0": Spoiling(logits=_zeros_apart),
        "what is no number is one": Spoiling(logits=_numbers),
        "logits are rounded to bfloat16's steps": Spoiling(
            logits=lambda logits: (logits.view(numpy.int32) & ~0xFFFF).view(numpy.float32)
        ),
        "prompt tokens count as output": Spoiling(ask=_prompt_is_output),
        "top_k is one more": _changed(top_k=lambda s: min(s.top_k + (s.top_k > 0), 2**31 - 1)),
        "top_p is a little less": _changed(top_p=lambda s: s.top_p * 0.95),
        "min_p is doubled": _changed(min_p=lambda s: min(1.0, 2 * s.min_p)),
        "half of the seed is used": _changed(seed=lambda s: s.seed & 0xFFFFFFFF),
        "a mask is not obeyed": Spoiling(ask=lambda ask: attrs.evolve(ask, allowed=None)),
        "bad words are forgotten": _changed(bad_words=lambda s: []),
        "min_tokens is one less": _changed(min_tokens=lambda s: max(0, s.min_tokens - 1)),
    },
    round_events=16,
    smoke_rounds=10,
    reaches=frozenset(
        {"tokens", "logprobs", "greedy tokens", "a logit is not a finite number",
         "every token is forbidden"}
    ),
)  # fmt: skip
