"""Hash of a model's files: alike for copies, another for whatever makes another model."""

import pathlib

import pytest

from triolet.runtime.hosts.model_hash import model_hash


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "content"),
    [("config.json", "[]"), ("model.safetensors", "123456"), ("tokenizer.json", "{}")],
)
def test_another_file_is_another_model(folder: pathlib.Path, name: str, content: str) -> None:
    before = model_hash(str(folder))
    (folder / name).write_text(content)
    assert model_hash(str(folder)) != before


def test_what_makes_no_model_is_not_asked(folder: pathlib.Path) -> None:
    before = model_hash(str(folder))
    (folder / "README.md").write_text("hello")
    (folder / ".git").mkdir()
    assert model_hash(str(folder)) == before
