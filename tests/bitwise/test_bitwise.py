"""The small form of `python -m tests.bitwise`, with embeddings, and that it sees a wrong bit."""

import attrs
import pytest
import safetensors.torch
import torch

from triolet.engine.embeddings import PLACEHOLDER_ID
from triolet.engine.messages import AddRequest
from triolet.engine.model.bundled import bundled_model_folder
from triolet.engine.model.weight_folder import SINGLE_FILE
from triolet.engine.model_config.config import load_model_limits
from triolet.tests.accuracy.tables import serves
from triolet.transports.array import Array

from .engine import draw_requests, replays, run
from .table import ALONE, EXECUTORS, count_identical, lines, variations

TOKENS = 12
# torch computes the same a dozen times as slowly.
REQUESTS = {"torch": 5, "native": 10}
FOLDER = bundled_model_folder()
SERVING = [name for name, executor in EXECUTORS.items() if serves(FOLDER, executor)]
QUICKEST = SERVING[-1]


@pytest.mark.slow
@pytest.mark.parametrize("executor", SERVING)
def test_no_stream_depends_on_how_it_was_run(executor: str) -> None:
    vocabulary = load_model_limits(FOLDER).vocab_size
    count = REQUESTS[executor]
    requests = draw_requests(count, tokens=TOKENS, vocabulary=vocabulary, seed=5)
    found = list(lines(FOLDER, executor, requests, variations(TOKENS)[-3:]))
    assert all(line.good for line in found), "\n".join(map(str, found))
    together, replayed, lost = found[1:]
    assert together.outcome.prefix_hits
    assert replayed.streams == count
    assert lost.outcome.losses


@pytest.mark.slow
def test_ways_are_chosen_by_parts_of_their_names() -> None:
    names = [way.name for way in variations(TOKENS, ["replayed", "threads"])]
    assert names == ["two threads", "all of that, replayed"]
    with pytest.raises(ValueError, match="no way is called 'tiny pool': all at once, "):
        variations(TOKENS, ["tiny pool"])


@pytest.mark.slow
def test_a_bit_that_differs_is_seen() -> None:
    """Planted: whether a mode that promises nothing differs is a matter of the machine."""
    vocabulary = load_model_limits(FOLDER).vocab_size
    requests = draw_requests(3, tokens=TOKENS, vocabulary=vocabulary, seed=5)
    (alone,) = lines(FOLDER, QUICKEST, requests, ())
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


EMBEDDED_REQUESTS, EMBEDDED_TOKENS = 6, 16
# Chunks, overlapping steps, a prefix cache that must not mix them up, and so little room that one
# is preempted.
EVERYTHING = attrs.evolve(variations(EMBEDDED_TOKENS)[-2], kv_blocks=45)


def load_matrix() -> torch.Tensor:
    weights = safetensors.torch.load_file(FOLDER / SINGLE_FILE)
    return weights["model.embed_tokens.weight"]


def with_known_prompt(request: AddRequest) -> AddRequest:
    """Of embeddings nobody knows the tokens, so that a penalty of the prompt's would differ."""
    return attrs.evolve(request, sampling=attrs.evolve(request.sampling, repetition_penalty=1.0))


def embedded(request: AddRequest, matrix: torch.Tensor, *, is_half: bool) -> AddRequest:
    rows = matrix[torch.tensor(request.prompt_token_ids)].contiguous()
    rows = rows if is_half else rows.float()
    data = rows.view(torch.uint8).numpy().tobytes()
    dtype = "bfloat16" if is_half else "float32"
    ids = [PLACEHOLDER_ID] * len(request.prompt_token_ids)
    array = Array(dtype, tuple(rows.shape), data)
    return attrs.evolve(request, prompt_token_ids=ids, prompt_embeds=array)


@pytest.mark.slow
@pytest.mark.parametrize("executor", SERVING)
def test_embeddings_give_the_bits_of_their_tokens(executor: str) -> None:
    chosen = EXECUTORS[executor]
    matrix = load_matrix()
    drawn = draw_requests(EMBEDDED_REQUESTS, tokens=EMBEDDED_TOKENS, vocabulary=len(matrix), seed=5)
    by_ids = [with_known_prompt(request) for request in drawn]
    # A prompt of one token is computed like an output's.
    by_ids[0] = attrs.evolve(by_ids[0], prompt_token_ids=by_ids[0].prompt_token_ids[:1])
    # Ids between embeddings, of both types.
    mixed = [
        embedded(request, matrix, is_half=number % 3 == 0) if number % 3 < 2 else request
        for number, request in enumerate(by_ids)
    ]
    alone = run(FOLDER, chosen, ALONE, by_ids).streams
    together = run(FOLDER, chosen, EVERYTHING, mixed)
    assert together.streams == alone
    assert together.preemptions
    again = replays(mixed, alone, seed=3)
    rest = {one.request_id: alone[one.request_id].rest(len(one.output_token_ids)) for one in again}
    assert run(FOLDER, chosen, EVERYTHING, again).streams == rest


@pytest.mark.slow
def test_other_embeddings_give_other_streams() -> None:
    matrix = load_matrix()
    request = with_known_prompt(
        draw_requests(1, tokens=EMBEDDED_TOKENS, vocabulary=2048, seed=5)[0]
    )
    ours = embedded(request, matrix, is_half=False)
    theirs = embedded(request, matrix.flip(0), is_half=False)
    executor = EXECUTORS[QUICKEST]
    one, other = (run(FOLDER, executor, ALONE, [item]).streams for item in (ours, theirs))
    assert one != other
