"""Queue of forms to check: fair between principals, with verdicts that are remembered.

Sans-IO: forms, answers and `now` in; checks to send and verdicts out. `form_client` carries it out.

Several requests with one form share its check. At most `CHECKS_MAX` checks are under way, of one
principal half of them, so that forms which take seconds delay nobody else's; those that wait take
turns by principal. A form whose check has died `CRASHES_MAX` times, or once of all its processor
time, is refused, and remembered as such for `CRASHED_S`. A check that was ended from outside, by
itself or with its process, begins again: that says nothing of the form.
"""

import hashlib
from collections import Counter, OrderedDict, deque

import attrs

from ...engine.errors import InvalidParameter
from ...engine.structured_outputs import StructuredOutputs
from ..errors import FormsUnavailable
from .messages import CheckForm, FormChecked, FormOutcome

# Checks are short, or burn a processor each, at a low priority.
CHECKS_MAX = 4
CHECKS_OF_PRINCIPAL_MAX = CHECKS_MAX // 2
# Forms that wait: of a principal, and of all. With 64 KiB each they hold 16 MiB at most.
WAITING_OF_PRINCIPAL_MAX = 64
WAITING_MAX = 256
CRASHES_MAX = 2
# The time for which a prompt that ended engines is refused (`processes.quarantine`), too.
CRASHED_S = 600.0
# Ends from outside that one check survives: some are killed by the dozen, none for ever.
LOSSES_MAX = 16
# A digest and a reason each: half a megabyte.
VERDICTS_MAX = 1024


@attrs.frozen
class Verdict:
    """Verdict on a form: `refusal` is empty for one that is served. Valid before `until`."""

    refusal: str = ""
    until: float = float("inf")

    def raise_refusal(self) -> None:
        """Raise `InvalidParameter` if the form is refused."""
        if self.refusal:
            raise InvalidParameter("structured_outputs", self.refusal)


@attrs.define(eq=False)
class FormCheck:
    """Check of a form, under way or waiting, for `waiters` requests. `ended` once."""

    digest: bytes
    form: StructuredOutputs
    principal: str
    waiters: int = 0
    # While it is under way; 0 while it waits.
    check_id: int = 0
    crashes: int = 0
    losses: int = 0
    ended: bool = False
    # The verdict; None at its end: no process could be had for it.
    verdict: Verdict | None = None


@attrs.define(eq=False)
class FormQueue:
    """The forms of one frontend."""

    # {digest: check} of all that have not ended.
    _checks: dict[bytes, FormCheck] = attrs.field(factory=dict, init=False)
    # {principal: checks}; the first principal is the next. None is empty.
    _waiting: OrderedDict[str, deque[FormCheck]] = attrs.field(factory=OrderedDict, init=False)
    # {check id: check} of those under way.
    _sent: dict[int, FormCheck] = attrs.field(factory=dict, init=False)
    _sent_of: Counter[str] = attrs.field(factory=Counter, init=False)
    # {digest: verdict}, the latest used last.
    _verdicts: OrderedDict[bytes, Verdict] = attrs.field(factory=OrderedDict, init=False)
    _last_id: int = attrs.field(default=0, init=False)

    def verdict(self, form: StructuredOutputs, now: float) -> Verdict | None:
        """Verdict on this form; None: it is to be checked."""
        digest = digest_of(form)
        found = self._verdicts.get(digest)
        if found is None or found.until <= now:
            return None
        self._verdicts.move_to_end(digest)
        return found

    def handle_wanted(self, form: StructuredOutputs, principal: str) -> FormCheck:
        """A request waits for this form's verdict, until `handle_left`.

        Raises `FormsUnavailable` if too many wait.
        """
        digest = digest_of(form)
        check = self._checks.get(digest)
        if check is None:
            waiting = self._waiting.get(principal, ())
            total = len(self._checks) - len(self._sent)
            if len(waiting) >= WAITING_OF_PRINCIPAL_MAX or total >= WAITING_MAX:
                raise FormsUnavailable("too many others wait to be checked")
            check = self._checks[digest] = FormCheck(digest, form, principal)
            self._wait(check)
        check.waiters += 1
        return check

    def handle_left(self, check: FormCheck) -> None:
        """Note that a request waits no more; a check under way goes on, as its verdict is kept."""
        check.waiters -= 1
        if not check.waiters and not check.check_id and not check.ended:
            queue = self._waiting[check.principal]
            queue.remove(check)
            if not queue:
                del self._waiting[check.principal]
            self._end(check)

    def next_checks(self) -> list[CheckForm]:
        """Checks to send now, to a process that is there."""
        due: list[CheckForm] = []
        for principal in list(self._waiting):
            while principal in self._waiting and self._has_room(principal):
                due.append(self._begin(principal))
                if len(self._waiting) > 1:
                    break  # the next one's turn
        if due and any(map(self._has_room, self._waiting)):
            due += self.next_checks()
        return due

    def handle_checked(self, answer: FormChecked, now: float) -> FormCheck | None:
        """The process has answered; returns the check if it has ended by that."""
        check = self._sent.get(answer.check_id)
        if check is None:
            return None
        self._unsend(check)
        match answer.outcome:
            case FormOutcome.ACCEPTED:
                return self._end(check, Verdict())
            case FormOutcome.REFUSED:
                return self._end(check, Verdict(answer.reason))
            case FormOutcome.CRASHED | FormOutcome.SPENT:
                check.crashes += 1 if answer.outcome is FormOutcome.CRASHED else CRASHES_MAX
                if check.crashes >= CRASHES_MAX:
                    reason = f"cannot be served: the process that checked it {answer.reason}"
                    return self._end(check, Verdict(reason, now + CRASHED_S))
            case FormOutcome.LOST:
                check.losses += 1
        return self._wait_again(check)

    def handle_gone(self) -> list[FormCheck]:
        """The process is gone: what was under way begins again; returns what has ended instead."""
        lost = list(self._sent.values())
        for check in reversed(lost):
            self._unsend(check)
            check.losses += 1
        return [ended for check in reversed(lost) if (ended := self._wait_again(check))]

    # ----

    def _has_room(self, principal: str) -> bool:
        return len(self._sent) < CHECKS_MAX and self._sent_of[principal] < CHECKS_OF_PRINCIPAL_MAX

    def _begin(self, principal: str) -> CheckForm:
        queue = self._waiting.pop(principal)
        check = queue.popleft()
        if queue:
            self._waiting[principal] = queue  # behind the others
        self._last_id += 1
        check.check_id = self._last_id
        self._sent[check.check_id] = check
        self._sent_of[principal] += 1
        return CheckForm(check.check_id, check.form)

    def _unsend(self, check: FormCheck) -> None:
        del self._sent[check.check_id]
        check.check_id = 0
        self._sent_of[check.principal] -= 1
        if not self._sent_of[check.principal]:
            del self._sent_of[check.principal]

    def _wait(self, check: FormCheck, *, first: bool = False) -> None:
        # Bounded by WAITING_OF_PRINCIPAL_MAX, and what is under way beside that.
        queue = self._waiting.setdefault(check.principal, deque())
        if first:
            queue.appendleft(check)
            self._waiting.move_to_end(check.principal, last=False)
        else:
            queue.append(check)

    def _wait_again(self, check: FormCheck) -> FormCheck | None:
        if check.losses >= LOSSES_MAX or not check.waiters:
            return self._end(check)
        self._wait(check, first=True)
        return None

    def _end(self, check: FormCheck, verdict: Verdict | None = None) -> FormCheck:
        del self._checks[check.digest]
        check.ended, check.verdict = True, verdict
        if verdict is not None:
            self._verdicts[check.digest] = verdict
            self._verdicts.move_to_end(check.digest)
            if len(self._verdicts) > VERDICTS_MAX:
                self._verdicts.popitem(last=False)
        return check

    def statistics(self) -> dict[str, int]:
        """Forms that wait, and those that are checked now."""
        return {"waiting": len(self._checks) - len(self._sent), "checked": len(self._sent)}

    def check_invariants(self) -> None:
        """Asserts what must hold after every event."""
        waiting = [check for queue in self._waiting.values() for check in queue]
        assert all(self._waiting.values())
        assert {id(check) for check in [*waiting, *self._sent.values()]} == {
            id(check) for check in self._checks.values()
        }
        assert len(waiting) + len(self._sent) == len(self._checks)
        assert all(check.waiters and not check.check_id for check in waiting)
        assert not any(check.ended for check in self._checks.values())
        assert len(self._sent) <= CHECKS_MAX
        assert Counter(check.principal for check in self._sent.values()) == self._sent_of
        assert max(self._sent_of.values(), default=0) <= CHECKS_OF_PRINCIPAL_MAX
        assert len(self._verdicts) <= VERDICTS_MAX


def digest_of(form: StructuredOutputs) -> bytes:
    """A name for a form's content."""
    return hashlib.sha256(f"{form.kind}\n{form.text}".encode()).digest()
