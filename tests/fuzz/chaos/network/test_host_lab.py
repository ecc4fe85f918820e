"""Streams pass from a server on one host to clients on another, and outlast a cut of their link."""

import pathlib
import re

import pytest
import trio

from triolet.fuzz.chaos.history import Ending
from triolet.fuzz.chaos.network.host_lab import (
    HEAD,
    differences,
    make_scripts,
    open_host_lab,
    wait_tokens,
)

from ....leaks import check_no_leaks
from .conftest import DEADLINE_S

pytestmark = pytest.mark.slow

CUT_S = 1.0


async def test_streams_through_the_switch_outlast_a_cut_and_are_the_same(
    tmp_path: pathlib.Path,
) -> None:
    scripts = make_scripts(3, 200)
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_host_lab(tmp_path, hosts=1) as lab:
            await lab.start_head("--engines", "1", "--executor", "null", "--null-step", "0.01")
            await lab.wait_ready(1)
            async with lab.streams(scripts) as undisturbed:
                pass
            assert {history.ending for history in undisturbed} == {Ending.FINISHED}
            ways = lab.between(HEAD, lab.clients)
            async with lab.streams(scripts) as histories:
                await wait_tokens(histories, 20)
                proof = await lab.spoil(ways, CUT_S, is_cut=True)
    assert re.fullmatch(r"a to b: 0 frames passed, [1-9].*; b to a: 0 frames passed, .*", proof)
    assert differences(histories, undisturbed) == []
