"""Triolet: a serving runtime for large language models on trio, whose token streams come back.

This is the lazy public face: nothing below is imported until it is asked for, so that an engine
process does not pay for the front end and the root never loads a tensor library (PEP 562).
It must not know how anything works; it only says where things live.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine.sampling_params import SamplingParams
    from .engine.structured_outputs import StructuredOutputs
    from .runtime.llm import LLM
    from .runtime.runtime import Runtime, open_runtime
    from .runtime.text.prompts import ChatPrompt, PromptEmbeds

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "ChatPrompt",
    "PromptEmbeds",
    "Runtime",
    "SamplingParams",
    "StructuredOutputs",
    "open_runtime",
]

_HOME_OF = {
    "ChatPrompt": ".runtime.text.prompts",
    "LLM": ".runtime.llm",
    "PromptEmbeds": ".runtime.text.prompts",
    "Runtime": ".runtime.runtime",
    "SamplingParams": ".engine.sampling_params",
    "StructuredOutputs": ".engine.structured_outputs",
    "open_runtime": ".runtime.runtime",
}


def __getattr__(name: str) -> object:
    """Import a public name's module at its first use."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return vars(import_module(home, __name__))[name]
