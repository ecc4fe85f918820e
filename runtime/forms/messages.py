"""Messages between a frontend and the process that checks its forms, on a socketpair of theirs."""

import enum

import attrs

from ...engine.structured_outputs import StructuredOutputs


class FormOutcome(enum.StrEnum):
    """How one check ended."""

    ACCEPTED = "accepted"
    REFUSED = "refused"  # the client must change it; `reason` says what
    CRASHED = "crashed"  # the check died of the form; `reason` says how
    SPENT = "spent"  # the same, of all the processor time that it may have: it would again
    LOST = "lost"  # the check was ended from outside: it says nothing of the form


@attrs.frozen
class CheckForm:
    """A frontend asks whether a form can be served; `check_id` is the frontend's own."""

    check_id: int
    form: StructuredOutputs


@attrs.frozen
class FormChecked:
    """The answer to the `CheckForm` of this id."""

    check_id: int
    outcome: FormOutcome
    reason: str = ""


TO_FORMS = (CheckForm,)
FROM_FORMS = (FormChecked,)
