"""The small form of `python -m tests.bitwise`, and that it sees bits that differ."""

import attrs
import pytest

from triolet.engine.model.bundled import bundled_model_folder
from triolet.engine.model_config.config import load_model_limits
from triolet.tests.accuracy.tables import serves

from .requests import draw_requests
from .table import EXECUTORS, count_identical, lines, variations

pytestmark = pytest.mark.slow
TOKENS = 12


@pytest.mark.parametrize("executor", list(EXECUTORS))
def test_no_stream_depends_on_how_it_was_run(executor: str) -> None:
    folder = bundled_model_folder()
    if not serves(folder, EXECUTORS[executor]):
        pytest.skip("there are no kernels here")
    vocabulary = load_model_limits(folder).vocab_size
    requests = draw_requests(10, tokens=TOKENS, vocabulary=vocabulary, seed=5)
    found = list(lines(folder, executor, requests, variations(TOKENS)[-2:]))
    assert all(line.good for line in found), "\n".join(map(str, found))
    together, replayed = found[1:]
    assert together.outcome.prefix_hits
    assert replayed.streams == 10


def test_ways_are_chosen_by_parts_of_their_names() -> None:
    names = [way.name for way in variations(TOKENS, ["replayed", "threads"])]
    assert names == ["two threads", "all of that, replayed"]
    with pytest.raises(ValueError, match="no way is called 'tiny pool': all at once, "):
        variations(TOKENS, ["tiny pool"])


def test_a_bit_that_differs_is_seen() -> None:
    """Planted: whether a mode that promises nothing differs is a matter of the machine."""
    folder = bundled_model_folder()
    vocabulary = load_model_limits(folder).vocab_size
    requests = draw_requests(3, tokens=TOKENS, vocabulary=vocabulary, seed=5)
    (alone,) = lines(folder, "torch", requests, ())
    assert alone.good
    streams = alone.outcome.streams
    assert count_identical(requests, streams, streams) == 3
    name, stream = next((n, s) for n, s in streams.items() if s.logprobs)
    last = bytes([stream.logprobs[-1] ^ 1])
    for wrong in (
        attrs.evolve(stream, logprobs=stream.logprobs[:-1] + last),
        attrs.evolve(stream, token_ids=(*stream.token_ids[:-1], stream.token_ids[-1] ^ 1)),
    ):
        identical = count_identical(requests, streams, {**streams, name: wrong})
        assert identical == 2
        line = attrs.evolve(alone, identical=identical)
        assert not line.good
        assert str(line).endswith("DIFFERENT")
