"""The bundled model: a small Llama that the project trains itself, and all it is made from.

It exists so that everything runs with no download. The folder is a model folder in Hugging Face
format (weights, tokenizer, settings) with the corpus generator, the training script and the
evaluation beside them; `README.md` has the measured numbers. Nothing that serves a model imports
anything here but the folder's path and its name. No torch here.
"""

from __future__ import annotations

import pathlib

__all__ = ["BUNDLED_MODEL_NAME", "bundled_model_folder"]

# The name for clients, unless the server was given another for it.
BUNDLED_MODEL_NAME = "triolet-bundled"


def bundled_model_folder() -> pathlib.Path:
    """The folder with the bundled model's `config.json`, `model.safetensors` and tokenizer."""
    return pathlib.Path(__file__).resolve().parent
