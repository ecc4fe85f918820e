"""Messages of the version before, as a build of that time wrote them, between hosts and their head.

`wire_1.json` is what was sent when the host link's version was 1. It is read by today's codecs, and
all that was in it is in today's messages too: so either end may be the older one. When the version
grows, a file of the one that was is recorded, and the oldest goes.
"""

import json
import pathlib
from typing import Any

import msgspec
import pytest

from triolet.engine import messages
from triolet.runtime.config import RuntimeSettings
from triolet.runtime.hosts import host_messages
from triolet.runtime.hosts.host_messages import HOST_WIRE, Welcome
from triolet.transports.codec import Codec

BEFORE = 1
RECORDED: dict[str, dict[str, str]] = json.loads(
    (pathlib.Path(__file__).parent / f"wire_{BEFORE}.json").read_text()
)
KINDS = {
    "HOST_TO_HEAD": host_messages.HOST_TO_HEAD,
    "HEAD_TO_HOST": host_messages.HEAD_TO_HOST,
    "FRONTEND_TO_ENGINE": messages.FRONTEND_TO_ENGINE,
    "ENGINE_TO_FRONTEND": messages.ENGINE_TO_FRONTEND,
}
MESSAGES = [(kinds, name) for kinds, texts in RECORDED.items() for name in texts]


def is_in(before: Any, now: Any) -> bool:
    """Whether all of a message's fields are there, with their values."""
    if isinstance(before, dict) and isinstance(now, dict):
        return all(key in now and is_in(value, now[key]) for key, value in before.items())
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(map(is_in, before, now))
    return bool(before == now)


def decoded(kinds: str, name: str) -> Any:
    return Codec(*KINDS[kinds]).decode([bytes.fromhex(RECORDED[kinds][name])])


def test_the_version_before_is_the_one_that_is_recorded() -> None:
    assert BEFORE == HOST_WIRE - 1


@pytest.mark.parametrize(("kinds", "name"), MESSAGES)
def test_what_the_version_before_sent_is_read_and_what_it_reads_is_sent(
    kinds: str, name: str
) -> None:
    frame, message = bytes.fromhex(RECORDED[kinds][name]), decoded(kinds, name)
    assert type(message).__name__ == name
    (now,) = Codec(*KINDS[kinds]).encode(message)
    assert bytes(now)[:1] == frame[:1]
    before, now = (msgspec.msgpack.decode(bytes(each)[1:]) for each in (frame, now))
    if isinstance(message, Welcome):
        del before["settings"], now["settings"]
    assert is_in(before, now)


def test_settings_of_the_version_before_are_read() -> None:
    text = decoded("HEAD_TO_HOST", "Welcome").settings
    settings = msgspec.msgpack.decode(text, type=RuntimeSettings)
    assert settings.engine.model == "m"
    now = msgspec.msgpack.decode(msgspec.msgpack.encode(settings))
    assert is_in(msgspec.msgpack.decode(text), now)
