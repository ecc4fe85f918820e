"""The sampler against its specification, against exact probabilities, and against its own batch."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from triolet.engine.step_messages import RowSampling
from triolet.engine.worker import sampler
from triolet.engine.worker.philox import philox4x32
from triolet.engine.worker.sampler import SampledRow, sample_tokens, unpack_mask

DRAWS = 4000


def sampling(**changes: Any) -> RowSampling:
    return RowSampling(
        **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1, **changes}
    )


def sample(logits: Tensor, *rows: SampledRow, **keywords: Any) -> list[int]:
    return sample_tokens(logits.clone(), rows, **keywords)


def random_logits(rows: int, vocab_size: int, seed: int = 0, spread: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((rows, vocab_size), generator=generator) * spread


# ---- the specification, one token at a time, in plain Python


def f32(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))


def gumbel(seed: int, position: int, choice: int, token: int) -> float:
    words = philox4x32(
        (
            torch.tensor(token // 4),
            torch.tensor(position),
            torch.tensor(choice),
            torch.tensor(0),
        ),
        (torch.tensor(seed % 2**32), torch.tensor(seed // 2**32)),
    )
    uniform = (int(words[token % 4]) >> 8) * 2.0**-24 + 2.0**-25
    return f32(-math.log(-math.log(uniform)))


def specified(logits: list[float], row: SampledRow) -> int:
    s = row.sampling
    x = list(logits)
    if row.position < s.min_tokens:
        for token in s.suppressed_until_min:
            x[token] = -math.inf
    largest = max(x)
    if s.temperature < 1e-5:
        return x.index(largest)
    y = [f32(f32(value - largest) / f32(s.temperature)) for value in x]
    w = [int(f32(math.exp(value)) * 2**40) for value in y]
    order = sorted(range(len(x)), key=lambda token: (-y[token], token))
    if s.top_k:
        order = order[: s.top_k]
    if s.top_p < 1:
        needed = max(1, int(float(sum(w[token] for token in order)) * s.top_p))
        before, kept = 0, []
        for token in order:
            if before >= needed:
                break
            kept.append(token)
            before += w[token]
        order = kept
    order = [token for token in order if w[token] >= max(1, int(s.min_p * 2**40))]
    scores = {t: f32(y[t] + gumbel(s.seed, row.position, s.choice, t)) for t in order}
    return min(scores, key=lambda token: (-scores[token], token))


@given(
    logits=st.lists(st.sampled_from([-30.0, -5.0, -1.5, 0.0, 0.5, 0.5, 2.0, 4.0]), min_size=1,
                    max_size=23),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.integers(0, 25),
    top_p=st.sampled_from([1e-9, 0.3, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(0, 2**63 - 1),
    position=st.integers(0, 5),
)  # fmt: skip
def test_as_specified(logits: list[float], seed: int, position: int, **filters: Any) -> None:
    row = SampledRow(
        sampling(seed=seed, min_tokens=2, suppressed_until_min=[0], choice=3, **filters), position
    )
    if len(logits) == 1:
        row = SampledRow(sampling(seed=seed, **filters), position)
    assert sample(torch.tensor([logits]), row) == [specified(logits, row)]


def test_top_p_ends_where_the_sum_reaches_it() -> None:
    rows = [SampledRow(sampling(top_p=0.5, seed=seed), 0) for seed in range(50)]
    assert set(sample(torch.zeros(50, 2), *rows)) == {0}
    assert set(sample(torch.zeros(50, 3), *rows)) == {0, 1}


def test_a_wide_vocabulary_is_as_specified_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "FILTER_WIDTH", 8)
    monkeypatch.setattr(sampler, "GROUP_LOGITS_MAX", 128)
    rows = [
        SampledRow(sampling(seed=9), 0),
        SampledRow(sampling(seed=9, top_k=5), 1),
        SampledRow(sampling(seed=9, top_k=8), 1),
        SampledRow(sampling(seed=9, top_k=30, top_p=0.99), 2),
        SampledRow(sampling(seed=9, top_p=0.5), 3),
        SampledRow(sampling(seed=9, top_p=0.9999), 3),
        SampledRow(sampling(seed=9, temperature=0.0), 4),
        SampledRow(sampling(seed=9, min_p=0.05, temperature=2.0), 5),
    ]
    logits = random_logits(len(rows), 61, spread=1.0).round(decimals=1)
    expected = [specified(x, row) for x, row in zip(logits.tolist(), rows, strict=True)]
    assert sample(logits, *rows) == expected


# ---- greedy


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0], [5.0, 5.0, 5.0], [-math.inf, -1.0, -math.inf]])
    greedy = SampledRow(sampling(temperature=0.0), 0)
    assert sample(logits, greedy, greedy, greedy) == [1, 0, 1]
    assert sample(torch.zeros(1, 5000), greedy) == [0]


# ---- distributions


def exact(logits: Tensor, **filters: Any) -> dict[int, float]:
    """Probabilities in float64, for logits without ties."""
    s = sampling(**filters)
    order = logits.double().div(s.temperature).sort(descending=True)
    probabilities = order.values.softmax(-1)
    if s.top_k:
        probabilities[s.top_k :] = 0
    before = (probabilities / probabilities.sum()).cumsum(-1) - probabilities / probabilities.sum()
    probabilities[before >= s.top_p] = 0
    probabilities[probabilities < s.min_p * probabilities[0]] = 0
    probabilities /= probabilities.sum()
    pairs = zip(order.indices.tolist(), probabilities.tolist(), strict=True)
    return {token: value for token, value in pairs if value > 0}


def chi_square(found: Counter[int], expected: dict[int, float], draws: int) -> float:
    """Pearson's statistic; tokens expected fewer than five times are one class."""
    rare = [token for token, p in expected.items() if p * draws < 5]
    classes = [[token] for token in expected if token not in rare] + ([rare] if rare else [])
    return sum(
        (sum(found[t] for t in tokens) - sum(expected[t] for t in tokens) * draws) ** 2
        / (sum(expected[t] for t in tokens) * draws)
        for tokens in classes
    )


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 1.7},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.2},
        {"temperature": 1.3, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
    ],
)
@pytest.mark.parametrize("varied", ["position", "seed", "choice"])
def test_distribution(filters: dict[str, Any], varied: str) -> None:
    logits = random_logits(1, 30, seed=5, spread=1.5)[0]
    expected = exact(logits, **filters)
    rows = []
    for draw in range(DRAWS):
        number = {"seed": 77, "choice": 0, "position": 0, varied: draw}
        position = number.pop("position")
        rows.append(SampledRow(sampling(**number, **filters), position))
    found = Counter(sample(logits.expand(DRAWS, 30), *rows))
    assert set(found) <= set(expected)
    # Mean k - 1, deviation sqrt(2 (k - 1)): five deviations; the seeds are fixed.
    freedom = max(1, len(expected) - 1)
    assert chi_square(found, expected, DRAWS) < freedom + 5 * math.sqrt(2 * freedom)


def test_seeds_beyond_32_bits_count() -> None:
    logits = torch.zeros(1, 1000)
    drawn = {sample(logits, SampledRow(sampling(seed=seed), 0))[0] for seed in (1, 2**32 + 1)}
    assert len(drawn) == 2


# ---- independence of the batch


def test_a_row_does_not_depend_on_its_batch() -> None:
    logits = random_logits(40, 3000, seed=2)
    kinds: Sequence[dict[str, Any]] = [
        {},
        {"temperature": 0.0},
        {"top_k": 50},
        {"top_p": 0.95},
        {"top_p": 0.9999, "temperature": 3.0},
        {"min_p": 0.05},
        {"top_k": 2000, "top_p": 0.99},
    ]
    rows = [SampledRow(sampling(seed=i, **kinds[i % len(kinds)]), i) for i in range(40)]
    alone = [sample(logits[i : i + 1], rows[i])[0] for i in range(40)]
    assert sample(logits, *rows) == alone
    assert sample(logits.flip(0), *reversed(rows)) == alone[::-1]
    assert len(set(alone)) > 20


# ---- suppression and masks


def test_tokens_are_suppressed_until_min_tokens() -> None:
    logits = torch.tensor([[9.0, 1.0, 0.0]])
    parameters = sampling(temperature=0.0, min_tokens=2, suppressed_until_min=[0])
    assert [sample(logits, SampledRow(parameters, p))[0] for p in range(4)] == [1, 1, 0, 0]


def test_a_mask_forbids() -> None:
    logits = random_logits(2, 70)
    words = torch.zeros(2, 3, dtype=torch.int32)
    words[0, 1] = 1 << 5  # token 37
    words[1, 0] = -(2**31)  # token 31
    words[1, 2] = 0b100000  # token 69
    allowed = unpack_mask(words.numpy().tobytes(), 2, 70)
    assert allowed.nonzero().tolist() == [[0, 37], [1, 31], [1, 69]]
    for temperature in (0.0, 1.0):
        row = SampledRow(sampling(temperature=temperature), 0)
        first, second = sample(logits, row, row, forbidden_RV=~allowed)
        assert first == 37
        assert second in (31, 69)


def test_a_mask_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="mask of 4 bytes"):
        unpack_mask(b"1234", 1, 70)
