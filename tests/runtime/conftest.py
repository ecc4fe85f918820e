"""Tokenizers are trained once for the whole run; nothing changes them."""

import json
import pathlib
from collections.abc import AsyncIterator

import pytest

from triolet.fuzz.doubles.bed import Bed, open_bed
from triolet.runtime.text.tokenizer import Tokenizer

from .model_folders import CHAT_TEMPLATE, byte_level_tokenizer, metaspace_tokenizer, write_folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("byte-level")
    return write_folder(folder, byte_level_tokenizer(), chat_template=CHAT_TEMPLATE)


@pytest.fixture(scope="session")
def tokenizer(model_folder: pathlib.Path) -> Tokenizer:
    return Tokenizer.load(model_folder)


@pytest.fixture(scope="session")
def metaspace(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("metaspace")
    return Tokenizer.load(write_folder(folder, metaspace_tokenizer()))


@pytest.fixture(scope="session")
def null_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder for the null executor: a tokenizer, and sizes in config.json."""
    folder = tmp_path_factory.mktemp("null")
    write_folder(folder, byte_level_tokenizer(), chat_template=CHAT_TEMPLATE)
    sizes = {
        "vocab_size": 320, "max_position_embeddings": 512, "eos_token_id": 1, "hidden_size": 4,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(sizes))
    return folder


@pytest.fixture
async def bed(null_folder: pathlib.Path) -> AsyncIterator[Bed]:
    """A frontend and one engine with the null executor, in this process."""
    async with open_bed(null_folder) as opened:
        yield opened
