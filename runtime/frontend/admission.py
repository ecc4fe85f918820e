"""Admission control of a frontend: whether one more request is taken, before it costs anything.

Three limits are counts: requests that have not ended, *queued tokens*, the prompt tokens of
requests that have not brought a token yet (what the engines still have to work off), and bytes of
embeddings, which are kept to be sent again. A request is charged when its block is entered and
released when it is left, whatever happened between; the tokens are released with the first token.
One limit is time: the wait for a first token that is to be expected (`ExpectedWait`). Above a
limit there is no queue: the client gets an error with a time to come back.

*Shares*: of the first two a principal may hold `FREE_SHARES` times what it leaves free. So one that
floods holds four fifths, n of them have equal shares, and a newcomer finds room at once, without
anybody's share being written down (dynamic thresholds, Choudhury and Hahne 1998). That begins when
a second principal has come: a lone one has everything.

Sans-IO: plain counting; randomness and the clock are passed in. It also gives a seed to requests
without one, so that a replay draws the same tokens.
"""

import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Self

import attrs

from ...engine.errors import InvalidParameter
from ...engine.sampling_params import SEED_MAX, SamplingParams
from ..config import AdmissionLimits
from ..errors import Overloaded

# Refused clients are spread over half a period more, so that they do not come back all at once.
RETRY_SPREAD = 0.5
# The SDKs of OpenAI and Anthropic obey no longer one.
RETRY_AFTER_MAX_S = 60.0
# A principal may hold so many times of what is free.
FREE_SHARES = 4
# Time after which a principal that has sent nothing has no share kept for it.
REMEMBERED_S = 600.0
# Principals that are remembered: a program that embeds a runtime names them as it likes.
PRINCIPALS_MAX = 1024

# First tokens that make a rate.
STARTS_MIN = 8
# Starts in a queue's first second found free rows: they say nothing of how rows become free.
FREE_ROWS_S = 1.0
# First tokens that the rate is of: several times what a batch holds, as those that began together
# end together.
STARTS_MAX = 256
# Fewer requests ahead are no queue, however long each takes: a few long prompts, a slow machine.
AHEAD_MIN = 16


def ignore_load() -> None:
    """Ignore load: for frontends that do not report it."""


@attrs.define(eq=False)
class ExpectedWait:
    """How long one more would wait for its first token: how many are ahead, by the measured rate.

    The rate is that of first tokens while some are waited for; without that, nothing is known of
    what the engines can do. It is known after `STARTS_MIN` of them behind `FREE_ROWS_S`, up to
    the latest one: so neither a burst that finds idle engines nor a pause of an engine looks like a
    long queue. Engines serve principals in turn (`engine.core.queue`), so ahead of a request are
    those of its own principal, and of each other one as many, and one more, at most.
    """

    # {principal: its requests without a token}.
    _waiting: Counter[str] = attrs.field(factory=Counter, init=False)
    _total: int = attrs.field(default=0, init=False)
    # When the oldest of the starts, or the wait before it, began.
    _since: float = attrs.field(default=0.0, init=False)
    _starts: deque[float] = attrs.field(factory=lambda: deque(maxlen=STARTS_MAX), init=False)

    def handle_admitted(self, principal: str, now: float) -> None:
        """Count a request that waits."""
        if not self._total:
            self._starts.clear()
            self._since = now
        self._total += 1
        self._waiting[principal] += 1

    def handle_begun(self, principal: str, now: float) -> None:
        """Count a request's first token."""
        self.handle_left(principal)
        if not self._starts and now < self._since + FREE_ROWS_S:
            return
        if len(self._starts) == STARTS_MAX:
            self._since = self._starts[0]
        self._starts.append(now)

    def handle_left(self, principal: str) -> None:
        """Count a request that ended before its first token."""
        assert self._waiting[principal] > 0
        self._total -= 1
        self._waiting[principal] -= 1
        if not self._waiting[principal]:
            del self._waiting[principal]

    def rate(self) -> float | None:
        """First tokens in a second; None if that is not known."""
        if len(self._starts) < STARTS_MIN:
            return None
        return len(self._starts) / (self._starts[-1] - self._since)

    def seconds(self, principal: str) -> float:
        """How long one more of this principal would wait; 0.0 if that is not known.

        Also where fewer than `AHEAD_MIN` are ahead.
        """
        rate = self.rate()
        if rate is None or not self._total:
            return 0.0
        own = self._waiting[principal]
        others = sum(min(n, own + 1) for name, n in self._waiting.items() if name != principal)
        ahead = own + others
        return ahead / rate if ahead >= AHEAD_MIN else 0.0

    def check_invariants(self) -> None:
        """The total is the sum, and none is counted below nothing."""
        assert self._total == sum(self._waiting.values())
        assert all(count > 0 for count in self._waiting.values())


@attrs.define
class _Held:
    """Load of a principal, and when it last asked."""

    active_requests: int = 0
    queued_tokens: int = 0
    asked_at: float = 0.0


@attrs.define(eq=False)
class Ticket:
    """Charge for one request, from the begin of the block that it opens to its end."""

    _admission: "Admission"
    # About so many prompt tokens; what it is charged with when the block begins.
    _estimate: int
    _choices: int
    _principal: str
    _tokens: int = attrs.field(default=0, init=False)
    _embeds_bytes: int = attrs.field(default=0, init=False)
    # Counted among those whose first token is waited for.
    _waits: bool = attrs.field(default=False, init=False)
    # The principal's, which is not forgotten while it holds anything.
    _held: _Held = attrs.field(factory=_Held, init=False)

    def __enter__(self) -> Self:
        admission = self._admission
        self._held = admission.handle_asked(self._principal)
        admission.check_room(self._choices, self._principal)
        self.charge_tokens(self._estimate)
        admission.expected_wait.handle_admitted(self._principal, admission.clock())
        self._waits = True
        self._charge_choices(self._choices)
        admission.admitted_total += self._choices
        admission.on_load()
        return self

    def take_over(self, embeds_bytes: int) -> Self:
        """Charge what a life of this frontend before has admitted, whatever that comes to."""
        self._held = self._admission.held(self._principal)
        self._charge_choices(self._choices)
        self._count_tokens(self._estimate)
        self._admission.embeds_bytes += embeds_bytes
        self._embeds_bytes = embeds_bytes
        return self

    def __exit__(self, *_: object) -> None:
        self.release_tokens()
        self.release_embeds()
        self._charge_choices(-self._choices)
        self._admission.on_load()

    def _charge_choices(self, choices: int) -> None:
        if not choices:
            return
        self._admission.active_requests += choices
        self._held.active_requests += choices

    def _count_tokens(self, tokens: int) -> None:
        """Count so many tokens instead of those that are counted."""
        if tokens == self._tokens:
            return
        self._admission.queued_tokens += tokens - self._tokens
        self._held.queued_tokens += tokens - self._tokens
        self._tokens = tokens

    def charge_tokens(self, tokens: int) -> None:
        """Charge the prompt: an estimate at first, then the count; the last one counts.

        Raises `Overloaded` if that is too much; then nothing changes. A prompt above the limit is
        taken when no other waits: refusing it would be for ever.
        """
        admission = self._admission
        others = admission.queued_tokens - self._tokens
        limit = admission.limits.queued_tokens_max
        if others > 0 and others + tokens > limit:
            raise admission.refusal("queued_tokens_max", self._principal)
        held = self._held.queued_tokens - self._tokens
        if held > 0 and admission.is_over_share(held + tokens, limit - others - held):
            raise admission.refusal("queued_tokens_max", self._principal)
        self._count_tokens(tokens)

    def charge_embeds(self, size: int) -> None:
        """Charge bytes of embeddings, once, until the request ends.

        Raises `Overloaded` if that is too much, as `charge_tokens` does; then nothing changes.
        """
        assert not self._embeds_bytes
        admission = self._admission
        held = admission.embeds_bytes
        if held > 0 and held + size > admission.limits.embeds_bytes_max:
            raise admission.refusal("embeds_bytes_max", self._principal)
        admission.embeds_bytes += size
        self._embeds_bytes = size

    def release_embeds(self) -> None:
        """The request has ended, or was not taken. Again is a no-op."""
        self._admission.embeds_bytes -= self._embeds_bytes
        self._embeds_bytes = 0

    def release_tokens(self) -> None:
        """Release the prompt's tokens, as the request ended or failed. Again is a no-op."""
        self._count_tokens(0)
        if self._waits:
            self._waits = False
            self._admission.expected_wait.handle_left(self._principal)

    def handle_first_token(self) -> None:
        """The first token came: the prompt has been worked off. Again is a no-op."""
        if self._waits:
            self._waits = False
            admission = self._admission
            admission.expected_wait.handle_begun(self._principal, admission.clock())
        self.release_tokens()


@attrs.define(eq=False)
class Admission:
    """The counts of one frontend."""

    limits: AdmissionLimits
    random: random.Random
    # Seconds; any clock that goes on.
    clock: Callable[[], float]
    # Seconds that a first token may be expected to take; 0: any.
    wait_target_s: float = 0.0
    # Called when a request was admitted, and when it is over.
    on_load: Callable[[], None] = ignore_load
    expected_wait: ExpectedWait = attrs.field(factory=ExpectedWait, init=False)

    active_requests: int = attrs.field(default=0, init=False)
    queued_tokens: int = attrs.field(default=0, init=False)
    embeds_bytes: int = attrs.field(default=0, init=False)
    admitted_total: int = attrs.field(default=0, init=False)
    refused_total: int = attrs.field(default=0, init=False)
    # {principal: what it holds}, the last to ask last; see `REMEMBERED_S`, `PRINCIPALS_MAX`.
    _held: dict[str, _Held] = attrs.field(factory=dict, init=False)

    def open_ticket(self, tokens: int = 0, *, choices: int = 1, principal: str = "") -> Ticket:
        """Admit one request, with an estimate of its prompts' tokens, until the block is left.

        Each of its choices counts as a request. Entering the block raises `Overloaded`, or
        `InvalidParameter` for more choices than will ever be taken; then nothing is charged.
        """
        return Ticket(self, tokens, choices, principal)

    def held(self, principal: str) -> _Held:
        """Load of a principal."""
        held = self._held.get(principal)
        if held is None:
            held = self._held[principal] = _Held(asked_at=self.clock())
        return held

    def handle_asked(self, principal: str) -> _Held:
        """Have a principal that wants something among those that share; what it holds. Others may
        be forgotten.
        """
        now = self.clock()
        held = self._held.pop(principal, None) or _Held()
        held.asked_at = now
        surplus = len(self._held) - PRINCIPALS_MAX + 1
        for name, each in list(self._held.items()):
            if surplus <= 0 and each.asked_at > now - REMEMBERED_S:
                break
            if not (each.active_requests or each.queued_tokens):
                del self._held[name]
                surplus -= 1
        self._held[principal] = held
        return held

    def is_over_share(self, wanted: int, free: int) -> bool:
        """Whether a principal that wants to hold this would leave too little free."""
        return len(self._held) > 1 and wanted > FREE_SHARES * free

    def check_room(self, choices: int, principal: str) -> None:
        """Raises as the entry of a ticket's block, for the number of requests."""
        limit = self.limits.active_requests_max
        if choices > limit:
            raise InvalidParameter("n", f"must be at most {limit} here (active_requests_max)")
        free = limit - self.active_requests
        held = self.held(principal).active_requests
        if choices > free or (held and self.is_over_share(held + choices, free)):
            raise self.refusal("active_requests_max", principal)
        if 0 < self.wait_target_s < self.expected_wait.seconds(principal):
            raise self.refusal("wait_target_s", principal)

    def with_seed(self, params: SamplingParams) -> SamplingParams:
        """The same parameters, with a seed if there is none."""
        if params.seed is not None:
            return params
        return params.with_seed(self.random.randint(0, SEED_MAX))

    def refusal(self, limit: str, principal: str) -> Overloaded:
        """Count one refusal by this limit and make its error.

        To come again when the expected wait is what it should be, or, for all that is known of it,
        after `retry_after_s`.
        """
        self.refused_total += 1
        spread = 1 + RETRY_SPREAD * self.random.random()
        after_s = self.expected_wait.seconds(principal) - self.wait_target_s
        after_s = max(self.limits.retry_after_s, min(after_s, RETRY_AFTER_MAX_S / spread))
        return Overloaded(after_s * spread, limit)

    def check_invariants(self) -> None:
        """Nothing is charged when no request is in."""
        assert 0 <= self.active_requests <= self.limits.active_requests_max
        assert self.queued_tokens >= 0
        assert self.embeds_bytes >= 0
        assert self.active_requests or not (self.queued_tokens or self.embeds_bytes)
        held = self._held.values()
        assert self.active_requests == sum(each.active_requests for each in held)
        assert self.queued_tokens == sum(each.queued_tokens for each in held)
        self.expected_wait.check_invariants()
