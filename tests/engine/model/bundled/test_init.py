"""The package's face: a path to a folder, and no torch for those who only want the path."""

from __future__ import annotations

import subprocess
import sys

from triolet.engine.model.bundled import bundled_model_folder


def test_the_folder_holds_a_whole_model() -> None:
    folder = bundled_model_folder()
    for name in (
        *("config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json"),
    ):
        assert (folder / name).is_file(), name
    assert (folder / "model.safetensors").stat().st_size <= 8_000_000


def test_the_path_costs_no_torch() -> None:
    code = "import sys, triolet.engine.model.bundled as b; b.bundled_model_folder()\n"
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
