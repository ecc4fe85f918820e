"""Larger model for the kill campaign: random weights behind the bundled model's tokenizer.

The bundled model computes an answer before a client of Python has read much of it, so most kills
interrupt few streams. One whose steps take about as long as reading them is hit in its midst.
"""

import json
import pathlib
import shutil

from triolet.engine.model.bundled import BUNDLED_MODEL_NAME, bundled_model_folder

HIDDEN, HEAD = 1024, 128


def write_larger_model(folder: pathlib.Path, layers: int) -> list[str]:
    """Write it to a new folder; returns the options with which a server serves it."""
    shutil.copytree(
        bundled_model_folder(),
        folder,
        ignore=shutil.ignore_patterns("*.safetensors", "*.py", "*.md", "__pycache__"),
    )
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {
        "hidden_size": HIDDEN,
        "intermediate_size": 3 * HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": HIDDEN // HEAD,
        "num_key_value_heads": HIDDEN // HEAD // 2,
        "head_dim": HEAD,
    }
    path.write_text(json.dumps(config))
    named = ["--served-model-name", BUNDLED_MODEL_NAME]
    return ["--model", str(folder), "--load-format", "dummy", *named]
