"""The values are what metrics and settings call them; nothing is accepted by default."""

from triolet.runtime.frontend.ledger_decisions import NOTHING, Accepted, EngineGonePolicy, Refusal


def test_reasons_are_counted_by_their_own_names() -> None:
    assert [str(refusal) for refusal in Refusal] == [refusal.name.lower() for refusal in Refusal]


def test_policies_are_settings_in_words() -> None:
    assert [str(policy) for policy in EngineGonePolicy] == ["fail", "replay"]


def test_nothing_is_nothing() -> None:
    assert Accepted([], []) == NOTHING
