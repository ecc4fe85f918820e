"""Model folders as they are found in public, each with a server of its own, and its answers.

What a folder writes in another way is served as ever; what it lacks is said without its place.
"""

import codecs
import json
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence

import attrs

from triolet.engine.model.bundled import bundled_model_folder

from ..end_to_end.server import Server, open_server
from .surfaces import ASKED, Json

SETTINGS, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
# Each whatever the folder advises of sampling.
QUESTIONS: tuple[tuple[str, Json], ...] = (
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 8, "temperature": 0}),
    ("/v1/chat/completions", {**ASKED, "max_tokens": 8, "temperature": 0}),
)


@attrs.frozen
class FolderAnswer:
    """Status, what a client was given or told, and the tokens of the prompt."""

    status: int
    text: str
    prompt_tokens: int = 0


# Changes a copy of the bundled model.
Change = Callable[[pathlib.Path], None]
# What is wrong with the answers, given those of the bundled model; "" if nothing is.
FolderJudge = Callable[[Sequence[FolderAnswer], Sequence[FolderAnswer]], str]


def _change(path: pathlib.Path, **fields: object) -> Json:
    """Set fields of a file, or take them away where they are None; returns what was there."""
    before: Json = json.loads(path.read_bytes())
    after = {name: value for name, value in (before | fields).items() if value is not None}
    path.write_text(json.dumps(after))
    return before


def _move_special_tokens(folder: pathlib.Path) -> None:
    before = _change(folder / SETTINGS, bos_token=None, eos_token=None)
    moved = {name: before[name] for name in ("bos_token", "eos_token")}
    (folder / "special_tokens_map.json").write_text(json.dumps(moved))


def _write_marks(folder: pathlib.Path) -> None:
    template = _change(folder / SETTINGS, chat_template=None)["chat_template"]
    (folder / TEMPLATE).write_text(template)
    for path in (*folder.glob("*.json"), folder / TEMPLATE):
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())


def _advise_nothing(folder: pathlib.Path) -> None:
    advice = {"top_p": 0, "repetition_penalty": 0, "top_k": 50.0}
    _change(folder / "generation_config.json", **advice)


def _drop_template(folder: pathlib.Path) -> None:
    _change(folder / SETTINGS, chat_template=None)


def _is_the_same(plain: Sequence[FolderAnswer], found: Sequence[FolderAnswer]) -> str:
    return "" if found == plain else f"{found}, not {plain}"


def _has_no_template(plain: Sequence[FolderAnswer], found: Sequence[FolderAnswer]) -> str:
    good = found[0] == plain[0] and found[1].status == 400 and "template" in found[1].text
    return "" if good and "/triolet-folder-" not in found[1].text else f"{found}"


FOLDERS: Mapping[str, tuple[Change, FolderJudge]] = {
    "special tokens in a file of their own": (_move_special_tokens, _is_the_same),
    "byte order marks": (_write_marks, _is_the_same),
    "sampling that is off": (_advise_nothing, _is_the_same),
    "no chat template": (_drop_template, _has_no_template),
}


async def folder_problems(server: Server) -> dict[str, str]:
    """What is wrong with each folder's answers, beside those of a server of the bundled model.

    Raises what a server that does not start does.
    """
    plain, problems = await _ask(server), dict[str, str]()
    for name, (change, judge) in FOLDERS.items():
        with tempfile.TemporaryDirectory(prefix="triolet-folder-") as root:
            folder, place = pathlib.Path(root) / "model", pathlib.Path(root) / "server"
            shutil.copytree(bundled_model_folder(), folder)
            place.mkdir()
            change(folder)
            async with open_server(place, str(folder)) as changed:
                problems[name] = judge(plain, await _ask(changed))
    return problems


async def _ask(server: Server) -> list[FolderAnswer]:
    found = []
    async with server.client() as client:
        for path, body in QUESTIONS:
            response = await client.post(path, json=body)
            answer = response.json()
            if response.status_code != 200:
                found.append(FolderAnswer(response.status_code, response.text))
                continue
            choice, tokens = answer["choices"][0], answer["usage"]["prompt_tokens"]
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            found.append(FolderAnswer(response.status_code, text, tokens))
    return found
