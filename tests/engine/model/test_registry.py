"""Models by the name of their architecture, from weights or from a seed."""

import pathlib

import pytest
import torch

from triolet.engine.errors import ModelFolderError
from triolet.engine.model.loader import SINGLE_FILE
from triolet.engine.model.registry import compute_dtype, load_model
from triolet.engine.model_config import ARCHITECTURES, load_model_config

from .tiny_models import CPU, Driver, load_dummy, safetensors_bytes, write_config


def test_dtype_of_both_modes(tmp_path: pathlib.Path) -> None:
    config = load_model_config(write_config(tmp_path, dtype="bfloat16"))
    assert compute_dtype(config, bitwise=True) is torch.float32
    assert compute_dtype(config, bitwise=False) is torch.bfloat16


def test_mistral_without_a_window_is_a_llama(tmp_path: pathlib.Path) -> None:
    one = load_dummy(tmp_path / "one")
    other = load_dummy(
        tmp_path / "other", architectures=["MistralForCausalLM"], sliding_window=None
    )
    work = [(0, 0, [3, 4, 5])]
    assert torch.equal(Driver(one, [[0]]).step(work), Driver(other, [[0]]).step(work))


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_every_architecture_of_the_config_can_be_loaded(
    tmp_path: pathlib.Path, architecture: str
) -> None:
    model = load_dummy(tmp_path, architectures=[architecture], sliding_window=None)
    assert Driver(model, [[0]]).step([(0, 0, [3, 4, 5])]).shape == (3, 101)


def test_a_folder_that_misses_a_weight_is_refused_by_its_name(tmp_path: pathlib.Path) -> None:
    config = load_model_config(write_config(tmp_path))
    weights = {"model.embed_tokens.weight": torch.ones(101, 64)}
    (tmp_path / SINGLE_FILE).write_bytes(safetensors_bytes(weights))
    with pytest.raises(ModelFolderError, match=r"no tensor model\.layers\.0\."):
        load_model(
            tmp_path, config, load_format="auto", bitwise=True, positions=8, device=CPU,
            progress=lambda fraction: None,
        )  # fmt: skip
