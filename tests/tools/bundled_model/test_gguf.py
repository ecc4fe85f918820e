"""The bundled model as GGUF: llama.cpp's names, and its order of rows."""

import json
import pathlib
import struct

import torch

from triolet.engine.model.bundled import bundled_model_folder
from triolet.tools.bundled_model.gguf import ALIGNMENT, interleaved, main


def test_halves_of_each_head_become_neighbours() -> None:
    rows = torch.arange(8).reshape(8, 1)
    assert interleaved(rows, 2).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_the_file_has_all_tensors_and_their_values(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out.gguf"
    main(str(out))
    data = out.read_bytes()
    magic, version, tensors, values = struct.unpack_from("<4sIQQ", data)
    config = json.loads((pathlib.Path(bundled_model_folder()) / "config.json").read_text())
    assert (magic, version) == (b"GGUF", 3)
    assert tensors == 2 + 9 * config["num_hidden_layers"]
    assert values > 15
    floats = config["hidden_size"] * config["vocab_size"] * 4
    assert len(data) > floats
    assert len(data) % ALIGNMENT == 0
