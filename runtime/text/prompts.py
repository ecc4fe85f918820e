"""Prompts: text, token ids, a conversation, or embeddings."""

from collections.abc import Sequence
from typing import Any

import attrs

from .prompt_embeds import PromptEmbeds


@attrs.frozen
class ChatPrompt:
    """A conversation; the model's chat template renders it.

    `messages` are dictionaries with `role` and `content` (other keys are the template's affair).
    `tools` are JSON schemas that the template may show to the model.
    """

    messages: list[dict[str, Any]]
    add_generation_prompt: bool = True
    tools: list[dict[str, Any]] | None = None


# Text, token ids, a conversation, or what the first layer reads of its tokens.
Prompt = str | Sequence[int] | ChatPrompt | PromptEmbeds
