"""Options of a request: bounds, copies, and their place in messages and journals."""

import math
from typing import Any

import attrs
import msgspec
import pytest

from triolet.engine.errors import InvalidParameter
from triolet.engine.messages import FRONTEND_TO_ENGINE, AddRequest
from triolet.engine.request_options import (
    LABEL_CHARACTERS_MAX,
    MERGE_S_MAX,
    MERGE_S_MIN,
    OPTIONS,
    WIRE_INTEGER_MAX,
    RequestOptions,
    SentOptions,
)
from triolet.engine.sampling_params import SamplingParams
from triolet.transports.codec import Codec

ADD = AddRequest(request_id="r", attempt=1, prompt_token_ids=[1], sampling=SamplingParams(seed=1))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"priority": -WIRE_INTEGER_MAX},
        {"cache_salt": "ä" * LABEL_CHARACTERS_MAX},
        {"events": True, "inexact_ok": True, "engine": 0},
        {"credit": 0},
        {"credit": WIRE_INTEGER_MAX},
        {"deadline_s": -1},
        {"merge_s": 0},
        {"merge_s": MERGE_S_MIN},
        {"merge_s": MERGE_S_MAX},
    ],
    ids=str,
)
def test_these_are_taken(values: dict[str, Any]) -> None:
    options = RequestOptions(**values)
    assert RequestOptions().changed(**values) == options
    sent = {name: value for name, value in values.items() if name in options.sent()}
    message = attrs.evolve(ADD, **options.sent())
    message.check_sent()
    assert message == attrs.evolve(ADD, **sent)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", "1"),
        ("priority", 1.0),
        ("priority", True),
        ("priority", WIRE_INTEGER_MAX + 1),
        ("cache_salt", 5),
        ("cache_salt", "\ud800"),
        ("cache_salt", "a" * (LABEL_CHARACTERS_MAX + 1)),
        ("events", 1),
        ("inexact_ok", None),
        ("engine", -1),
        ("engine", "0"),
        ("credit", -1),
        ("credit", 2.0),
        ("credit", WIRE_INTEGER_MAX + 1),
        ("deadline_s", math.nan),
        ("deadline_s", None),
        ("merge_s", "1"),
        ("merge_s", True),
        ("merge_s", math.nan),
        ("merge_s", MERGE_S_MIN / 2),
    ],
)
def test_these_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidParameter) as caught:
        RequestOptions(**{name: value})
    assert caught.value.parameter == name


def test_each_option_is_declared_with_a_sentence() -> None:
    assert all(each.about.endswith(".") for each in OPTIONS.values())


def test_a_journal_has_options_as_fields_of_their_own() -> None:
    """Journals of format 1 have always had them so, and must stay readable."""
    codec = Codec(*FRONTEND_TO_ENGINE)
    options = RequestOptions(
        priority=-3, cache_salt="s", events=True, merge_s=0.5, inexact_ok=True, engine=1
    )
    (kept,) = codec.encode(attrs.evolve(ADD, **options.sent()))
    fields = msgspec.msgpack.decode(memoryview(kept)[1:])
    assert {name: fields[name] for name in options.sent()} == options.sent()
    assert codec.decode([kept]) == attrs.evolve(ADD, **options.sent())


def test_a_message_of_before_an_option_was_there_has_its_default() -> None:
    codec = Codec(*FRONTEND_TO_ENGINE)
    (kept,) = codec.encode(ADD)
    fields = msgspec.msgpack.decode(memoryview(kept)[1:])
    for field in attrs.fields(SentOptions):
        del fields[field.name]
    assert codec.decode([bytes(kept[:1]) + msgspec.msgpack.encode(fields)]) == ADD
