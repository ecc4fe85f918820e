"""Claims of idempotency keys: which response answers a key, so that it is executed once.

A request with an `Idempotency-Key` may be sent again, at the same time or later, to any frontend,
and has one execution and one answer. The key's *home*, a frontend that a hash of principal and key
names, keeps the claim; the *executor*, which the response's id names, runs the response and keeps
its answer. Both keep theirs in their journals, so that the next life of either goes on.

A request draws an id, is pending at its own frontend from then on, and asks the home for the claim
with it. Where another response holds the claim, that one's executor says how it stands:

    standing   is                                               then
    PENDING    claimed, and not yet admitted or refused         ask again
    RUNNING    admitted; after a death its successor has it     read it
    ENDED      its answer, a failure too, is kept               read it
    GONE       its answer was kept for less than its time       410
    LOST       it cannot be had, and may have been executed     409
    UNKNOWN    refused, cut before its admission, or its time   claim instead of it
               is over: it is not, and will not be executed

The home takes the claim from a response only for one that was asked for `instead_of` it, so of two
that find it unknown one executes. An id that is unknown once stays so: it is pending before its
first claim is sent, and never drawn again. So calls may be lost, doubled and late: a claim says
which response holds it, and a late one of a response that gave up is found unknown. With another
body the key is refused, unless the response is unknown.

Sans-IO: calls and times in, claims out.
"""

import enum
import hashlib
import logging
import re
from collections import OrderedDict
from typing import Protocol, TypeVar

import attrs
import msgspec

from ..errors import ApiError
from ..openai.fields.option_fields import unranked
from ..schema.fields import JsonObject

HEADER = "Idempotency-Key"
HEADER_NAME = "idempotency-key"  # as requests have it
# Stripe's bound of a key; visible ASCII, which the draft's quoted strings are as well.
KEY = re.compile(r"[!-~]{1,255}", re.ASCII)
_CLAIM = "claim "
NEVER_NS = 2**63
Kept = TypeVar("Kept")
logger = logging.getLogger(__name__)
_DIGEST_BYTES = 16


class ValueJournal(Protocol):
    """Journal in which values outlive this process."""

    def values(self) -> dict[str, bytes]:
        """Values by name, the oldest first."""

    def keep_value(self, name: str, value: bytes) -> None:
        """In the place of an earlier one of this name."""

    def forget_value(self, name: str) -> None:
        """Forget a value."""


def kept_values(
    journal: ValueJournal | None, prefix: str, kind: type[Kept]
) -> dict[str, tuple[Kept, int]]:
    """Values of this kind by the rest of their names, with their sizes.

    What another version has written, and this one cannot read, is forgotten.
    """
    found: dict[str, tuple[Kept, int]] = {}
    for name, value in ({} if journal is None else journal.values()).items():
        if not name.startswith(prefix):
            continue
        try:
            found[name.removeprefix(prefix)] = msgspec.json.decode(value, type=kind), len(value)
        except msgspec.MsgspecError as error:
            logger.error("%s in the journal cannot be read: %s", name, error)
            assert journal is not None
            journal.forget_value(name)
    return found


@attrs.frozen
class KeyedRequest:
    """A request with a key: `name` is its principal's key, `digest` its route and body.

    The engine that either names is no part of it: a router may choose another one for a retry.
    """

    name: str
    digest: str

    @classmethod
    def read(cls, key: str, principal: str, path: str, body: JsonObject) -> "KeyedRequest":
        """Raises `ApiError` 400 for what is no key."""
        if not KEY.fullmatch(key):
            reason = f"{HEADER}: must be 1 to 255 visible ASCII characters"
            raise ApiError(400, reason, "invalid_idempotency_key", param=HEADER)
        text = msgspec.json.encode(unranked(body), order="deterministic")
        return cls(_digest(principal.encode(), key.encode()), _digest(path.encode(), text))


def home_of(name: str, frontends: int) -> int:
    """Rank of the frontend that has the claim of this name."""
    return int(name, 16) % frontends


def _digest(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


@attrs.frozen(kw_only=True)
class Claim:
    """This response answers the key; `epoch` is the life of its executor that asked for it."""

    name: str
    digest: str
    response_id: str
    epoch: int
    # By CLOCK_MONOTONIC of the home.
    claimed_ns: int = 0


@attrs.frozen
class ClaimCall:
    """A claim is asked for, perhaps `instead_of` one that was found unknown."""

    claim: Claim
    instead_of: str = ""


@attrs.define(eq=False)
class Claims:
    """Claims of the keys whose home this frontend is: the latest `keys_max`, each for `age_ns`."""

    keys_max: int
    age_ns: int
    journal: ValueJournal | None = None
    # When its journal was read. What is later there is of an earlier boot of the machine, whose
    # clock begins anew: it counts as of then, so that nothing expires early.
    read_ns: int = NEVER_NS
    # {name: claim}, oldest first.
    _claims: OrderedDict[str, Claim] = attrs.field(factory=OrderedDict, init=False)

    def __attrs_post_init__(self) -> None:
        claims = [claim for claim, _ in kept_values(self.journal, _CLAIM, Claim).values()]
        for claim in sorted(claims, key=lambda claim: claim.claimed_ns):
            claimed_ns = min(claim.claimed_ns, self.read_ns)
            self._claims[claim.name] = attrs.evolve(claim, claimed_ns=claimed_ns)

    def __len__(self) -> int:
        return len(self._claims)

    def handle_claim(self, call: ClaimCall, now_ns: int) -> Claim:
        """The claim that holds from now on, in the journal too; harmless when asked again."""
        self._forget_old(now_ns)
        name, held = call.claim.name, self._claims.get(call.claim.name)
        if held is not None and held.response_id != call.instead_of:
            return held
        if held is None and len(self._claims) == self.keys_max:
            self._forget(next(iter(self._claims)))
        claim = attrs.evolve(call.claim, claimed_ns=now_ns)
        self._claims.pop(name, None)
        self._claims[name] = claim
        if self.journal is not None:
            self.journal.keep_value(_CLAIM + name, msgspec.json.encode(claim))
        return claim

    def _forget_old(self, now_ns: int) -> None:
        while self._claims:
            oldest = next(iter(self._claims.values()))
            if now_ns < oldest.claimed_ns + self.age_ns:
                return
            self._forget(oldest.name)

    def _forget(self, name: str) -> None:
        del self._claims[name]
        if self.journal is not None:
            self.journal.forget_value(_CLAIM + name)

    def check_invariants(self) -> None:
        """Within its bound, in the order of time, and as the journal has it."""
        times = [claim.claimed_ns for claim in self._claims.values()]
        assert times == sorted(times)
        assert len(times) <= self.keys_max
        if self.journal is not None:
            kept = {name for name in self.journal.values() if name.startswith(_CLAIM)}
            assert kept == {_CLAIM + name for name in self._claims}


# ---- what another's claim means


class Standing(enum.StrEnum):
    """How a response that holds a claim stands, as its executor says; see above."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    GONE = "gone"
    LOST = "lost"
    UNKNOWN = "unknown"


class NextStep(enum.StrEnum):
    """Next step of a request about the response that holds its key's claim."""

    ASK_AGAIN = "ask again"
    READ = "read"
    CLAIM_INSTEAD = "claim instead"


_STEPS: dict[Standing, NextStep | ApiError] = {
    Standing.PENDING: NextStep.ASK_AGAIN,
    Standing.RUNNING: NextStep.READ,
    Standing.ENDED: NextStep.READ,
    Standing.GONE: ApiError(410, "", "idempotency_answer_gone", param=HEADER),
    Standing.LOST: ApiError(409, "", "idempotency_answer_lost", param=HEADER),
    Standing.UNKNOWN: NextStep.CLAIM_INSTEAD,
}


def judge(claim: Claim, digest: str, standing: Standing, reason: str) -> NextStep:
    """The next step of a request with this digest. Raises `ApiError` 409, 410 or 422."""
    step = _STEPS[standing]
    if claim.digest != digest and step not in (NextStep.ASK_AGAIN, NextStep.CLAIM_INSTEAD):
        message = f"{HEADER}: this key came with another route or body before; send a new key"
        raise ApiError(422, message, "idempotency_key_reused", param=HEADER)
    if isinstance(step, ApiError):
        raise attrs.evolve(step, message=f"{HEADER}: {reason}")
    return step
