"""Both sides of the yardstick's socket know the same messages, and its module is there."""

import importlib.util

from triolet.bench.serving.reference_messages import (
    FROM_REFERENCE,
    MODULE,
    TO_REFERENCE,
    OpenReference,
    ReferenceFailed,
    ReferenceOpened,
    ReferenceRun,
    RunReference,
)
from triolet.transports.codec import Codec


def test_every_message_survives_the_wire() -> None:
    messages = {
        TO_REFERENCE: [
            OpenReference(folder="f", threads=2),
            RunReference(prompts=[[1, 2], [3]], tokens=4),
        ],
        FROM_REFERENCE: [
            ReferenceOpened("theirs 1.0"),
            ReferenceRun(elapsed_s=1.5, cpu_s=3.0, output_tokens=8),
            ReferenceFailed("no"),
        ],
    }
    for classes, examples in messages.items():
        codec = Codec(*classes)
        assert [codec.decode(codec.encode(each)) for each in examples] == examples


def test_its_process_exists() -> None:
    assert importlib.util.find_spec(MODULE) is not None
