"""Builds the answers of chat completions: chunks of a stream, or one whole completion.

Sans-IO: outputs in, JSON objects out. Must not know requests' syntax, frames or who writes.
"""

import attrs

from ..engine.messages import FinishReason
from ..runtime.generation import GenerationOutput, GenerationStream, Usage
from .fields import JsonObject

# OpenAI has no word for an aborted choice; whoever aborted reads no more anyway.
FINISH_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "stop",
    FinishReason.ERROR: "stop",
    # Nor for one that took too long; `stop_reason` says it.
    FinishReason.DEADLINE: "length",
}


@attrs.frozen(kw_only=True)
class ChatAnswer:
    """One completion's identity; `created` is Unix seconds. Every object repeats it."""

    completion_id: str
    created: int
    model: str
    with_token_ids: bool = False

    def opening(self) -> JsonObject:
        """The first chunk: the role, and no text yet."""
        return self._chunk({"role": "assistant", "content": ""})

    def chunks(self, output: GenerationOutput) -> list[JsonObject]:
        """The chunks of one piece: its text if there is any, and the end if it is the last."""
        made = []
        if output.text or (self.with_token_ids and output.token_ids):
            made.append(self._chunk({"content": output.text}, token_ids=output.token_ids))
        if output.finish_reason is not None:
            made.append(
                self._chunk(
                    {},
                    finish_reason=FINISH_REASONS[output.finish_reason],
                    stop_reason=output.stop_reason,
                )
            )
        return made

    def usage_chunk(self, usage: Usage) -> JsonObject:
        """The last chunk of a stream that asked for usage: it has no choices."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage_object(usage)}

    def completion(self, stream: GenerationStream) -> JsonObject:
        """The whole answer of a request that does not stream."""
        assert stream.finish_reason is not None
        choice: JsonObject = {
            "index": 0,
            "message": {"role": "assistant", "content": stream.text, "refusal": None},
            "logprobs": None,
            "finish_reason": FINISH_REASONS[stream.finish_reason],
            "stop_reason": stream.stop_reason,
        }
        if self.with_token_ids:
            choice["token_ids"] = list(stream.token_ids)
        head = self._head("chat.completion")
        if self.with_token_ids:
            head["prompt_token_ids"] = list(stream.prompt_token_ids)
        return {**head, "choices": [choice], "usage": usage_object(stream.usage)}

    def _head(self, kind: str) -> JsonObject:
        return {
            "id": self.completion_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
        }

    def _chunk(
        self,
        delta: JsonObject,
        *,
        finish_reason: str | None = None,
        stop_reason: str | int | None = None,
        token_ids: list[int] | None = None,
    ) -> JsonObject:
        choice: JsonObject = {
            "index": 0,
            "delta": delta,
            "logprobs": None,
            "finish_reason": finish_reason,
        }
        if finish_reason is not None:
            choice["stop_reason"] = stop_reason
        if self.with_token_ids and token_ids:
            choice["token_ids"] = list(token_ids)
        return {**self._head("chat.completion.chunk"), "choices": [choice]}


def usage_object(usage: Usage) -> JsonObject:
    """Token counts in OpenAI's shape, for chat and completions alike."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
