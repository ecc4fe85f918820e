"""The yardstick's process: asked for runs, and what is said when there can be none."""

import pathlib
import socket

import attrs
import pytest
import trio

from triolet.bench.serving.reference import Reference, ReferenceUnusable, open_reference
from triolet.bench.serving.reference_messages import FROM_REFERENCE, TO_REFERENCE
from triolet.bench.steps.shapes import TINY, shape_folder
from triolet.transports.control.channel import ControlChannel

MINI = attrs.evolve(TINY, name="mini", vocab_size=600, hidden_size=32, intermediate_size=48)
# Importing torch and transformers takes seconds, on a busy machine many.
TEST_BOUND_S = 120.0


@pytest.mark.slow
async def test_it_runs_and_says_what_it_is(tmp_path: pathlib.Path) -> None:
    folder = str(shape_folder(MINI, tmp_path))
    with trio.fail_after(TEST_BOUND_S):
        async with open_reference(folder, threads=1) as reference:
            assert reference.description.startswith("transformers ")
            assert reference.description.endswith(" 1 threads")
            run = await reference.run([[5, 6], [7]], 3)
            assert run.output_tokens == 6
        with pytest.raises(ReferenceUnusable, match="cannot load"):
            async with open_reference(str(tmp_path), threads=1):
                raise AssertionError("it cannot be opened")


async def test_a_batch_that_never_ends_is_given_up(autojump_clock: trio.abc.Clock) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with (
        theirs,
        ControlChannel(ours, sends=TO_REFERENCE, receives=FROM_REFERENCE) as channel,
        pytest.raises(ReferenceUnusable, match="a batch took more than 1800 s"),
    ):
        await Reference("silent", 0, channel).run([[5]], 1)
