"""Oracle and checker of clients' streams; knows requests and what came, and nothing of the runtime.

I1 exactly once, I2 identity, I3 one end. What must come out is computed from the request alone, and
where engines with other tokens go on with it, as was told, from those that it had then.
"""

from collections.abc import Callable, Sequence

import attrs

from ...engine.messages import AddRequest, FinishReason
from ...engine.sampling_params import SamplingParams
from ...engine.worker.null.executor import null_logprob
from ..doubles.checking_worker import make_wanted
from .plan import Request


class Violation(AssertionError):
    """An invariant is broken."""


@attrs.frozen
class Model:
    """What of a model an oracle needs."""

    model_len: int
    vocab_size: int
    eos: tuple[int, ...]
    # Numerics ids; each has tokens of its own.
    families: int = 1
    # Of a text's tokens, whole.
    decode: Callable[[list[int]], str] = repr


@attrs.frozen
class WantedChoice:
    """What one choice of a request must be."""

    tokens: list[int]
    reason: FinishReason
    stopped_by: int | str | None
    family: int


@attrs.define(eq=False)
class Piece:
    """What one read of a stream gave, in plain values."""

    index: int
    token_ids: list[int]
    token_count: int
    reason: str | None
    stop_reason: object
    # (token id, logprob) of each token, or None.
    logprobs: list[tuple[int, float]] | None
    # How often engines with other tokens went on with it before these.
    inexact: int = 0


@attrs.define(eq=False)
class StreamHistory:
    """One life of a client's request: from its asking to its end, over lives of its frontend."""

    request: Request
    model: Model
    name: str
    # Of each choice, what it may be: one for each numerics id that all its tokens so far have.
    wanted: list[list[WantedChoice]]
    began_at: float = 0.0
    # Taken so far, of each choice.
    taken: list[list[int]] = attrs.field(init=False)
    ended: list[bool] = attrs.field(init=False)
    # "finished", "left", "died" with its engine, "unserved" as none came in time, "refused" as
    # poison, "lost" after two lives that died of it, "gone" before its client came back.
    end: str = attrs.field(default="", init=False)
    # Lives of its frontend in which its client was.
    lives: int = attrs.field(default=0, init=False)
    # Credit that its client has given for sure, and that which it may have given.
    granted: int = attrs.field(default=0, init=False)
    granted_at_most: int = attrs.field(default=0, init=False)
    # Of each choice, how many tokens it had when an event last said that they are others'.
    _other_at: list[int | None] = attrs.field(init=False)
    # Of each choice, how many tokens have come in this life.
    _seen: list[int] = attrs.field(init=False)
    # The place that a life before has announced: the first event of this one repeats it.
    _was_said: list[int | None] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.taken = [[] for _ in self.wanted]
        self.ended = [False for _ in self.wanted]
        self._seen = [0 for _ in self.wanted]
        self._other_at = [None for _ in self.wanted]
        self._was_said = self._other_at.copy()

    def begin_life(self) -> None:
        """It is read from its beginning, in this life of its frontend."""
        self.lives += 1
        self._was_said = self._other_at.copy()
        self._seen = [0 for _ in self.wanted]
        self.ended = [False for _ in self.wanted]

    def take(self, piece: Piece) -> None:
        """Judge what was read. Raises `Violation`."""
        name, index = self.request.name, piece.index
        taken = self.taken[index]
        _demand(not self.end, f"{name} goes on after it {self.end}")
        _demand(not self.ended[index], f"{name}: choice {index} goes on after its end")
        first = self._seen[index]
        self._seen[index] += len(piece.token_ids)
        what = f"{name}: counts {piece.token_count} tokens"
        _demand(piece.token_count == self._seen[index], what)
        if self.request.logprobs is not None and piece.token_ids:
            self._check_logprobs(piece, first)
        again = taken[first : self._seen[index]]
        old, new = piece.token_ids[: len(again)], piece.token_ids[len(again) :]
        _demand(old == again, f"{name}: tokens {old} at {first} of choice {index}, before {again}")
        if piece.inexact:
            is_again = self._was_said[index] == first
            for _ in range(piece.inexact - is_again):
                self._handle_inexact(index)
            self._other_at[index], self._was_said[index] = first, None
        self._take_new(index, new)
        if piece.reason is not None:
            self._take_end(piece)

    def _take_new(self, index: int, token_ids: list[int]) -> None:
        name, taken = self.request.name, self.taken[index]
        first = len(taken)
        taken += token_ids
        if self.lives > 1 and self._other_at[index] is not None:
            self._allow_others(index, first)
        parts = [wanted.tokens[first : len(taken)] for wanted in self.wanted[index]]
        what = f"{name}: tokens {token_ids} at {first} of choice {index}, not {parts}"
        _demand(token_ids in parts, what)
        fitting = zip(self.wanted[index], parts, strict=True)
        self.wanted[index] = [wanted for wanted, part in fitting if part == token_ids]
        if self.request.grants is not None:
            what = f"{name}: {len(taken)} tokens, and credit for {self.granted_at_most}"
            _demand(len(taken) <= self.granted_at_most, what)

    def _take_end(self, piece: Piece) -> None:
        name, index, count = self.request.name, piece.index, self._seen[piece.index]
        self.ended[index] = True
        wanted = self.wanted[index][0]
        _demand(count == len(self.taken[index]), f"{name} ended at {count}, and was further before")
        _demand(piece.reason == wanted.reason, f"{name} ended by {piece.reason}")
        _demand(count == len(wanted.tokens), f"{name} ended after {count} tokens")
        _demand(piece.stop_reason == wanted.stopped_by, f"{name}: {piece.stop_reason}")

    def begin_again(self) -> "StreamHistory":
        """Of who reads it anew when it has ended: the same tokens, and the same end."""
        again = StreamHistory(self.request, self.model, self.name, self.wanted)
        again.granted = again.granted_at_most = self.granted_at_most
        again.taken, again._other_at = self.taken, self._other_at
        return again

    def _allow_others(self, index: int, first: int) -> None:
        """Of what lives before have seen, an event names the first place alone."""
        taken, params = self.taken[index], params_of(self.request, self.model)
        for place in range(first, len(taken)):
            if any(each.tokens[: place + 1] == taken[: place + 1] for each in self.wanted[index]):
                continue
            self.wanted[index] = [
                _choice(self.request, params, index, self.model, family=f, given=taken[:place])
                for f in range(self.model.families)
            ]

    def _handle_inexact(self, index: int) -> None:
        """What the others would make of the tokens so far is wanted from now on."""
        _demand(self.request.inexact_ok, f"{self.request.name} goes on inexactly")
        before = {wanted.family for wanted in self.wanted[index]}
        families = set(range(self.model.families))
        params = params_of(self.request, self.model)
        self.wanted[index] = [
            _choice(self.request, params, index, self.model, family=each, given=self.taken[index])
            for each in sorted(families - before or families)
        ]

    def _check_logprobs(self, piece: Piece, first: int) -> None:
        expected = [
            (token_id, null_logprob(len(self.request.prompt) + place, token_id))
            for place, token_id in enumerate(piece.token_ids, first)
        ]
        _demand(piece.logprobs == expected, f"{self.request.name}: logprobs {piece.logprobs}")

    def finish(self, end: str) -> None:
        """It is over, in this way."""
        _demand(not self.end, f"{self.request.name} {end} after it {self.end}")
        self.end = end
        if end == "finished":
            _demand(all(self.ended), f"{self.request.name} ended without its last output")


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


def want(request: Request, model: Model, name: str = "") -> StreamHistory:
    """The oracle: what this request must get, whatever happens meanwhile."""
    params = params_of(request, model)
    families = range(model.families)
    wanted = [
        [_choice(request, params, n, model, family=f) for f in families] for n in range(request.n)
    ]
    return StreamHistory(request, model, name, wanted)


def _choice(
    request: Request,
    params: SamplingParams,
    choice: int,
    model: Model,
    *,
    family: int = 0,
    given: Sequence[int] = (),
) -> WantedChoice:
    add = AddRequest(
        request_id="",
        attempt=0,
        prompt_token_ids=request.prompt,
        sampling=attrs.evolve(params, seed=request.seed + family),
        eos_token_ids=list(model.eos),
        choice=choice,
        output_token_ids=list(given),
    )
    found = make_wanted("", add, model_len=model.model_len, vocab_size=model.vocab_size)
    for string in params.stop:
        for count in range(len(found.tokens) + 1):
            if string in model.decode(found.tokens[:count]):
                return WantedChoice(found.tokens[:count], FinishReason.STOP, string, family)
    return WantedChoice(found.tokens, found.reason, found.stop_token_id, family)


def params_of(request: Request, model: Model) -> SamplingParams:
    """Sampling parameters of the request, with the stop token that ends it where it wants."""
    plain = SamplingParams(
        n=request.n,
        seed=request.seed,
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens,
        logprobs=request.logprobs,
    )
    if request.stop_at is None and request.stop_text_at is None:
        return plain
    tokens = _choice(request, plain, 0, model).tokens
    if request.stop_at is not None:
        token_id = tokens[min(request.stop_at, len(tokens) - 1)]
        plain = attrs.evolve(plain, stop_token_ids=(token_id,))
    elif request.stop_text_at is not None:
        # The end of one token and the beginning of the next, so that both are needed to find it.
        before = model.decode(tokens[: request.stop_text_at + 1])
        behind = model.decode(tokens[: request.stop_text_at + 2]).removeprefix(before)
        if (text := before[-2:] + behind[:2]) and text.isascii():
            plain = attrs.evolve(plain, stop=(text,))
    return plain
