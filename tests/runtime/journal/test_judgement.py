"""Every case of the judgement: an output counts if it is exactly what comes next."""

from typing import Any

import pytest

from triolet.engine.messages import AddRequest, FinishReason, RequestOutput
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.frontend.ledger_entry import LedgerEntry
from triolet.runtime.journal.judgement import Refusal, judge
from triolet.transports.links.channel import Peer

ENGINE, OTHER = Peer("engine", 0, 1), Peer("engine", 1, 2)
NEXT: dict[str, Any] = {"attempt": 2, "first_index": 3, "token_ids": [9]}
ENDED: dict[str, Any] = {"token_ids": [], "finish_reason": FinishReason.ERROR}


@pytest.mark.parametrize(
    ("peer", "changed", "refusal"),
    [
        (ENGINE, {}, None),
        (ENGINE, {"attempt": 1}, Refusal.OLD_ATTEMPT),
        (OTHER, {}, Refusal.OTHER_ENGINE),
        (ENGINE, {"first_index": 4}, Refusal.GAP),
        (ENGINE, {"first_index": 2}, Refusal.REPEATED),
        (ENGINE, {"first_index": 2, **ENDED}, None),
        (ENGINE, {"first_index": 4, **ENDED}, Refusal.GAP),
        (ENGINE, {"first_index": 2, "finish_reason": FinishReason.ERROR}, Refusal.REPEATED),
    ],
)
def test_what_comes_next_counts(
    peer: Peer, changed: dict[str, Any], refusal: Refusal | None
) -> None:
    request = AddRequest(
        request_id="r",
        attempt=0,
        prompt_token_ids=[1],
        sampling=SamplingParams(),
        output_token_ids=[5, 6, 7],
    )
    entry = LedgerEntry.begin(request, 0.0, None)
    entry.handle_placed(2, ENGINE, None)
    assert judge(entry, peer, RequestOutput(request_id="r", **NEXT | changed)) is refusal


def test_what_has_ended_is_unknown() -> None:
    output = RequestOutput(request_id="r", **NEXT)
    assert judge(None, ENGINE, output) is Refusal.UNKNOWN_REQUEST
