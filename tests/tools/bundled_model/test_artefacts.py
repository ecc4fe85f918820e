"""The files: safetensors round-trip and are read by others, settings describe the model."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2
import pytest
import torch

from triolet.tools.bundled_model import artefacts
from triolet.tools.bundled_model.generator import Exchange, render
from triolet.tools.bundled_model.training_model import ModelShape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_safetensors_round_trip(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"one": torch.randn(3, 5).to(dtype), "two": torch.randn(7).to(dtype)}
    path = tmp_path / "x.safetensors"
    artefacts.write_safetensors(path, tensors, {"step": "3"})
    read, metadata = artefacts.read_safetensors(path)
    assert metadata == {"step": "3"}
    assert list(read) == ["one", "two"]
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)
    assert [file.name for file in tmp_path.iterdir()] == ["x.safetensors"]


def test_the_safetensors_package_reads_ours(tmp_path: Path) -> None:
    safetensors_torch = pytest.importorskip("safetensors.torch")
    tensors = {"one": torch.randn(3, 5).bfloat16(), "turned": torch.randn(4, 2).t()}
    artefacts.write_safetensors(tmp_path / "x.safetensors", tensors)
    read = safetensors_torch.load_file(tmp_path / "x.safetensors")
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


def test_the_shape_is_read_back(tmp_path: Path) -> None:
    shape = ModelShape(vocabulary=77, hidden=32, layers=3, rope_theta=500.0)
    artefacts.write_settings(tmp_path, shape)
    assert artefacts.read_shape(tmp_path) == shape
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["bos_token_id"], config["eos_token_id"]) == (0, 1)
    assert config["torch_dtype"] == "bfloat16"


def test_the_chat_template_is_what_training_saw(tmp_path: Path) -> None:
    artefacts.write_settings(tmp_path, ModelShape(vocabulary=8))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    template = jinja2.Template(settings["chat_template"])

    def fill(messages: list[dict[str, str]], *, generate: bool) -> str:
        filled: str = template.render(
            messages=messages,
            add_generation_prompt=generate,
            bos_token=settings["bos_token"],
            eos_token=settings["eos_token"],
        )
        return filled

    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": " Hi "},
        {"role": "assistant", "content": "Hello!"},
    ]
    assert fill(messages, generate=False) == render([Exchange("Hi", "Hello!")], "Be kind.")
    opened = fill([*messages, {"role": "user", "content": "Bye"}], generate=True)
    assert opened.endswith("Hello!<|eos|><|user|>Bye<|assistant|>")


def test_weights_are_written_in_bfloat16(tmp_path: Path) -> None:
    artefacts.write_weights(tmp_path, {"w": torch.ones(2, 2)})
    read, _ = artefacts.read_safetensors(tmp_path / "model.safetensors")
    assert read["w"].dtype == torch.bfloat16
