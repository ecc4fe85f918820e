"""Admission control of a frontend: whether one more request is taken, before it costs anything.

Three limits: requests that have not ended, *queued tokens*, the prompt tokens of requests that have
not brought a token yet (what the engines still have to work off), and bytes of embeddings, which
are kept to be sent again. A request is charged when its block is entered and released when it is
left, whatever happened between; the tokens are released with the first token. Above a limit there
is no queue: the client gets an error with a time to come back.

Sans-IO: plain counting; randomness is passed in. It also gives a seed to requests without one, so
that a replay draws the same tokens.
"""

import random
from collections.abc import Callable
from typing import Self

import attrs

from ...engine.errors import InvalidParameter
from ...engine.sampling_params import SEED_MAX, SamplingParams
from ..config import AdmissionLimits
from ..errors import Overloaded

# Refused clients are spread over half a period more, so that they do not come back all at once.
RETRY_SPREAD = 0.5


def ignore_load() -> None:
    """For frontends whose load is not reported."""


@attrs.define(eq=False)
class Ticket:
    """What one request is charged with, from the begin of the block that it opens to its end."""

    _admission: "Admission"
    # About so many prompt tokens; what it is charged with when the block begins.
    _estimate: int
    _choices: int
    # Called when it was admitted, and when it is over.
    _on_load: Callable[[], None]
    _tokens: int = attrs.field(default=0, init=False)
    _embeds_bytes: int = attrs.field(default=0, init=False)

    def __enter__(self) -> Self:
        admission = self._admission
        admission.check_room(self._choices)
        self.charge_tokens(self._estimate)
        admission.active_requests += self._choices
        admission.admitted_total += self._choices
        self._on_load()
        return self

    def take_over(self, embeds_bytes: int) -> Self:
        """Charge what a life of this frontend before has admitted, whatever that comes to."""
        admission = self._admission
        admission.active_requests += self._choices
        admission.queued_tokens += self._estimate
        admission.embeds_bytes += embeds_bytes
        self._tokens, self._embeds_bytes = self._estimate, embeds_bytes
        return self

    def __exit__(self, *_: object) -> None:
        self.release_tokens()
        self.release_embeds()
        self._admission.active_requests -= self._choices
        self._on_load()

    def charge_tokens(self, tokens: int) -> None:
        """Charge the prompt: an estimate at first, then the count; the last one counts.

        Raises `Overloaded` if that is too much; then nothing changes. A prompt above the limit is
        taken when no other waits: refusing it would be for ever.
        """
        admission = self._admission
        others = admission.queued_tokens - self._tokens
        limit = admission.limits.queued_tokens_max
        if others > 0 and others + tokens > limit:
            raise admission.refusal("queued_tokens_max")
        admission.queued_tokens = others + tokens
        self._tokens = tokens

    def charge_embeds(self, size: int) -> None:
        """Charge bytes of embeddings, once, until the request ends.

        Raises `Overloaded` if that is too much, as `charge_tokens` does; then nothing changes.
        """
        assert not self._embeds_bytes
        admission = self._admission
        held = admission.embeds_bytes
        if held > 0 and held + size > admission.limits.embeds_bytes_max:
            raise admission.refusal("embeds_bytes_max")
        admission.embeds_bytes += size
        self._embeds_bytes = size

    def release_embeds(self) -> None:
        """The request has ended, or was not taken. Again is a no-op."""
        self._admission.embeds_bytes -= self._embeds_bytes
        self._embeds_bytes = 0

    def release_tokens(self) -> None:
        """The first token came: the prompt has been worked off. Again is a no-op."""
        self._admission.queued_tokens -= self._tokens
        self._tokens = 0


@attrs.define(eq=False)
class Admission:
    """The counts of one frontend."""

    limits: AdmissionLimits
    random: random.Random

    active_requests: int = attrs.field(default=0, init=False)
    queued_tokens: int = attrs.field(default=0, init=False)
    embeds_bytes: int = attrs.field(default=0, init=False)
    admitted_total: int = attrs.field(default=0, init=False)
    refused_total: int = attrs.field(default=0, init=False)

    def open_ticket(
        self, tokens: int = 0, *, choices: int = 1, on_load: Callable[[], None] = ignore_load
    ) -> Ticket:
        """Admit one request, with an estimate of its prompts' tokens, until the block is left.

        Each of its choices counts as a request. Entering the block raises `Overloaded`, or
        `InvalidParameter` for more choices than will ever be taken; then nothing is charged.
        `on_load` is called when it was admitted, and when it is over.
        """
        return Ticket(self, tokens, choices, on_load)

    def check_room(self, choices: int) -> None:
        """Raises as the entry of a ticket's block, for the number of requests."""
        limit = self.limits.active_requests_max
        if choices > limit:
            raise InvalidParameter("n", f"must be at most {limit} here (active_requests_max)")
        if self.active_requests + choices > limit:
            raise self.refusal("active_requests_max")

    def with_seed(self, params: SamplingParams) -> SamplingParams:
        """The same parameters, with a seed if there is none."""
        if params.seed is not None:
            return params
        return params.with_seed(self.random.randint(0, SEED_MAX))

    def refusal(self, limit: str) -> Overloaded:
        """Count one refusal by this limit and make its error."""
        self.refused_total += 1
        spread = 1 + RETRY_SPREAD * self.random.random()
        return Overloaded(self.limits.retry_after_s * spread, limit)

    def check_invariants(self) -> None:
        """Nothing is charged when no request is in."""
        assert 0 <= self.active_requests <= self.limits.active_requests_max
        assert self.queued_tokens >= 0
        assert self.embeds_bytes >= 0
        assert self.active_requests or not (self.queued_tokens or self.embeds_bytes)
