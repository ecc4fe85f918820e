"""Files of a model folder are read bounded and with their types, or refused by name."""

import json
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from triolet.engine.errors import ModelFolderError, NotAModelFolder
from triolet.engine.model_config.folder import ConfigFields, check_folder, read_bytes, read_object
from triolet.engine.model_config.generation import GenerationConfig, load_generation_config
from triolet.engine.sampling_params import SamplingParams

from ...shortages import no_descriptors


def fields(**values: Any) -> ConfigFields:
    return ConfigFields("config.json", values)


def test_null_takes_the_default() -> None:
    empty = fields(a=None)
    assert (empty.integer("a", 9, default=4), empty.number("a", default=0.5)) == (4, 0.5)
    assert (empty.flag("a"), empty.flag("a", default=True)) == (False, True)
    assert (empty.mapping("a"), empty.token_ids("a", 9)) == (None, ())


def test_values_in_range_are_given_back() -> None:
    found = fields(i=3, x=2, flag=True, object={"b": 1}, one=5, many=[5, 6])
    assert (found.integer("i", 3), found.number("x"), found.flag("flag")) == (3, 2.0, True)
    assert found.mapping("object") == {"b": 1}
    assert (found.token_ids("one", 7), found.token_ids("many", 7)) == ((5,), (5, 6))


@pytest.mark.parametrize("value", [None, 0, 10, -1, 1.0, True, "3", [], {}, 10**400])
def test_whole_numbers(value: object) -> None:
    with pytest.raises(
        ModelFolderError, match=r"config.json: a must be a whole number from 1 to 9"
    ):
        fields(a=value).integer("a", 9)


@pytest.mark.parametrize(
    "value", [None, 0, -1.0, 1e-300, math.nan, math.inf, True, "3", [], 10**400]
)
def test_numbers(value: object) -> None:
    with pytest.raises(ModelFolderError, match="a must be"):
        fields(a=value).number("a")


@pytest.mark.parametrize(
    "read",
    [
        lambda: fields(a=1).flag("a"),
        lambda: fields(a=[]).mapping("a"),
        lambda: fields(a=7).token_ids("a", 7),
        lambda: fields(a=[1, True]).token_ids("a", 7),
        lambda: fields(a=[[1]]).token_ids("a", 7),
        lambda: fields(a=-1).token_ids("a", 7),
    ],
)
def test_other_types(read: Callable[[], object]) -> None:
    with pytest.raises(ModelFolderError, match="a must be"):
        read()


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b"7" * 5000])
def test_a_file_that_is_no_object(tmp_path: pathlib.Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ModelFolderError, match="JSON") as caught:
        read_object(path)
    assert caught.value.path == str(path)


def test_want_of_descriptors_does_not_make_a_folder_broken(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        read_object(path)
    assert read_object(path) == {}


def test_what_is_no_file_is_not_waited_for(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for name, reason in {
        "pipe": "is not a file",
        "folder": "is not a file",
        "loop": "cannot be read",
        "link": "No such file",
    }.items():
        with pytest.raises(ModelFolderError, match=reason):
            read_bytes(tmp_path / name, 10)
    (tmp_path / "real").write_bytes(b"0123456789")
    assert read_bytes(tmp_path / "link", 10) == b"0123456789"
    with pytest.raises(ModelFolderError, match="larger than 9 bytes"):
        read_bytes(tmp_path / "link", 9)


def test_a_link_out_of_the_folder_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "secret").write_text("TOP SECRET")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "chat_template.jinja").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelFolderError, match=r"chat_template\.jinja: is a link out of the fold"):
        read_bytes(folder / "chat_template.jinja", 100)


def test_a_snapshot_of_the_cache_may_link_to_its_blobs(tmp_path: pathlib.Path) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / "main"
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "e1").write_bytes(b"{}")
    (snapshot / "config.json").symlink_to("../../blobs/e1")
    assert read_bytes(snapshot / "config.json", 10) == b"{}"
    # A folder that is itself reached by a link is the one that it ends in.
    (tmp_path / "link").symlink_to(snapshot)
    assert read_bytes(tmp_path / "link" / "config.json", 10) == b"{}"
    (tmp_path / "models--a--b" / "refs").write_bytes(b"no blob")
    (snapshot / "other.json").symlink_to("../../refs")
    with pytest.raises(ModelFolderError, match="link out of"):
        read_bytes(snapshot / "other.json", 10)


def load(folder: pathlib.Path, **values: Any) -> GenerationConfig:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return load_generation_config(folder)


def test_no_file_advises_nothing(tmp_path: pathlib.Path) -> None:
    assert load_generation_config(tmp_path) == GenerationConfig(SamplingParams(), ())


def test_advice(tmp_path: pathlib.Path) -> None:
    found = load(tmp_path, temperature=0.6, top_p=0.95, top_k=20, min_p=0, eos_token_id=[1, 2])
    assert found.defaults == SamplingParams(temperature=0.6, top_p=0.95, top_k=20, min_p=0.0)
    assert found.unserved == ()


@pytest.mark.parametrize(("top_k", "expected"), [(-1, 0), (0, 0), (50, 50), (None, None)])
def test_every_way_to_say_off(
    tmp_path: pathlib.Path, top_k: int | None, expected: int | None
) -> None:
    assert load(tmp_path, top_k=top_k).defaults.top_k == expected


def test_what_is_not_served_is_told(tmp_path: pathlib.Path) -> None:
    found = load(tmp_path, no_repeat_ngram_size=3, typical_p=1, num_beams=1)
    assert found.unserved == ("no_repeat_ngram_size 3",)


def test_a_0_that_means_off_is_told(tmp_path: pathlib.Path) -> None:
    found = load(tmp_path, top_p=0, repetition_penalty=0.0, top_k=50.0)
    assert found.unserved == ("top_p 0", "repetition_penalty 0")
    assert found.defaults == SamplingParams(top_k=50)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", "warm"),
        ("temperature", 1e9),
        ("top_p", 1.5),
        ("top_k", 2.5),
        ("top_k", -2),
        ("min_p", True),
        ("min_p", []),
    ],
)
def test_nonsense_is_refused_by_name(tmp_path: pathlib.Path, field: str, value: Any) -> None:
    with pytest.raises(ModelFolderError, match=rf"generation_config\.json: {field} must be"):
        load(tmp_path, **{field: value})


def test_a_path_without_a_model_says_what_is_there(tmp_path: pathlib.Path) -> None:
    empty, other = tmp_path / "empty", tmp_path / "other"
    empty.mkdir()
    other.mkdir()
    (other / "notes.txt").write_text("x")
    (other / "model.gguf").write_text("x")
    for path, words in (
        (tmp_path / "nowhere", r"nowhere: there is no such folder\. .* ORG/NAME"),
        (empty, "empty: is empty. Download a model into it: hf download"),
        (other, "other: is not a model folder: it has no config.json"),
        (other / "notes.txt", "is a file; name the folder"),
        (other / "model.gguf", "GGUF files are not supported"),
    ):
        with pytest.raises(NotAModelFolder, match=words) as caught:
            check_folder(path)
        assert "Repair" not in str(caught.value)
    (other / "config.json").write_text("{}")
    check_folder(other)
