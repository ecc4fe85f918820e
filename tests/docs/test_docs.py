"""Programs and commands of the documentation, run as its readers run them, on one server.

A block that cannot be run says why in a comment before it; then only its words are checked. Where a
page says `MODEL` the bundled one is meant, and port 8000 is the server's.
"""

import pathlib
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator

import attrs
import pytest

from triolet.command_line import app

from ..end_to_end.server import Server, module_server
from ..house import ROOT
from . import api_page
from .program import run_program

pytestmark = pytest.mark.slow

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^>]+) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# What a page shows, and readers do not type.
DRAWN = {"mermaid", ""}
ADDRESS = "127.0.0.1:8000"
MODEL = str(ROOT / "engine" / "model" / "bundled")


@attrs.frozen
class Block:
    """One block of code of a page."""

    page: str
    line: int
    kind: str
    text: str
    reason: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text()
        for found in _BLOCK.finditer(text):
            line = text[: found.start("kind")].count("\n") + 1
            yield Block(page.name, line, found["kind"], found["text"], found["reason"] or "")


BLOCKS = list(blocks())
RUN = [each for each in BLOCKS if each.kind in {"sh", "python"} and not each.reason]
NOT_RUN = [each for each in BLOCKS if each.reason]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with module_server(tmp_path_factory.mktemp("docs")) as server:
        yield server


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    assert {each.kind for each in BLOCKS} <= {"sh", "python", "toml", *DRAWN}
    assert all(each.kind in {"sh", "python"} for each in NOT_RUN)


def test_the_page_of_the_python_interface_is_what_its_docstrings_say() -> None:
    """`python -m tests.docs.api_page > docs/api.md` makes it anew."""
    assert (ROOT / "docs" / "api.md").read_text() == api_page.page()


@pytest.mark.parametrize("block", RUN, ids=lambda each: each.name)
async def test_what_a_page_shows_runs(block: Block, server: Server, tmp_path: pathlib.Path) -> None:
    text = block.text.replace(ADDRESS, server.url.removeprefix("http://")).replace("MODEL", MODEL)
    shell = ["bash", "-euo", "pipefail", "-c"] if block.kind == "sh" else [sys.executable, "-c"]
    await run_program([*shell, text], server, tmp_path)


@pytest.mark.parametrize("block", NOT_RUN, ids=lambda each: each.name)
def test_what_is_not_run_has_words_that_exist(block: Block) -> None:
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and "=" in words[0]:  # of its environment
            words = words[1:]
        if words[:1] == ["triolet"]:
            app.parse_args(words[1:], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("block", [each for each in BLOCKS if each.kind == "toml"])
def test_a_settings_file_has_settings(block: Block, tmp_path: pathlib.Path) -> None:
    assert tomllib.loads(block.text)
    (tmp_path / "file.toml").write_text(block.text)
    app.parse_args(
        ["config", "show", "--config", str(tmp_path / "file.toml")],
        exit_on_error=False,
        print_error=False,
    )
