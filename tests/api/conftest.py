"""A model folder for the null executor, made once for the whole run."""

import json
import pathlib

import pytest

from ..runtime.model_folders import CHAT_TEMPLATE, byte_level_tokenizer, write_folder


@pytest.fixture(scope="session")
def null_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A tokenizer with a chat template, and sizes in config.json."""
    folder = tmp_path_factory.mktemp("null")
    write_folder(folder, byte_level_tokenizer(), chat_template=CHAT_TEMPLATE)
    sizes = {"vocab_size": 320, "max_position_embeddings": 512, "eos_token_id": 1}
    (folder / "config.json").write_text(json.dumps(sizes))
    return folder
