"""Examples, run as their readers run them."""

import pathlib
import re
import sys
from collections.abc import Iterator

import pytest

from ..end_to_end.server import Server, module_server
from ..house import ROOT
from .program import run_program

pytestmark = pytest.mark.slow

# {example: words behind it, and what it prints in the end}
EXAMPLES = {
    "batch.sh": ((), '"custom_id":"3"'),
    "embed.py": ((), "KV blocks free"),
    "from_asyncio.py": ((), "The old lantern"),
    "head.py": ((), "[engine 0 of host b]"),
    "in_process.py": ((), ""),
    "lanes.py": (("{ws}/v1/responses",), "response."),
    "resume.py": ((), "the whole: "),
    "sdk_chat.py": ((), ""),
    "structured_output.py": ((), " years"),
    "tools.py": ((), "It rains in "),
}
# A program of minutes, for a server of one's own, whose command is run by `tests/fuzz/chaos`; and
# one that needs LangChain, which is run by `make clients`.
NOT_RUN = {"chaos_on_another_server.sh", "langchain_chat.py"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with module_server(tmp_path_factory.mktemp("examples")) as server:
        yield server


def test_every_example_is_run() -> None:
    there = {path.name for path in (ROOT / "examples").iterdir() if path.is_file()}
    assert there == EXAMPLES.keys() | NOT_RUN


@pytest.mark.parametrize("name", EXAMPLES)
async def test_an_example_runs(name: str, server: Server, tmp_path: pathlib.Path) -> None:
    words, said = EXAMPLES[name]
    program = "bash" if name.endswith(".sh") else sys.executable
    command = [program, str(ROOT / "examples" / name)]
    command += [word.format(ws=server.url.replace("http", "ws")) for word in words]
    printed = await run_program(command, server, tmp_path, TRIOLET_URL=server.url)
    assert printed.strip(), "it prints something"
    assert said in printed
    if name == "embed.py":
        (blocks,) = re.findall(r"(\d+) of (\d+) KV blocks free", printed)
        assert blocks[0] == blocks[1] != "0"
    if name == "resume.py":
        cut, whole = printed.splitlines()
        assert len(whole) > len(cut)
