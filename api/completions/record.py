"""Record of one completion's choices: the text of each token, logprobs, and how each has ended.

Sans-IO: outputs in, any part of a choice out, so that a reader can begin anywhere. The bound of a
record is the length of the model, once for each choice: it keeps what was generated.
"""

from collections.abc import Sequence

import attrs

from ...engine.messages import FinishReason
from ...runtime.text.outputs import GenerationOutput, Logprobs, Usage
from ..errors import ApiError
from ..openai.chat import AnsweredPrompt


@attrs.define(eq=False)
class ChoiceRecord:
    """One choice; `texts` are those of its tokens, one more is what the end completed."""

    index: int
    prompt: AnsweredPrompt
    # Its prompt is as whole as it will be.
    is_open: bool = True
    # The first token that another numerics id has computed, if any.
    inexact_from: int | None = None
    token_ids: list[int] = attrs.field(factory=list, init=False)
    texts: list[str] = attrs.field(factory=list, init=False)
    finish_reason: FinishReason | None = attrs.field(default=None, init=False)
    stop_reason: str | int | None = attrs.field(default=None, init=False)
    _logprobs: Logprobs | None = attrs.field(default=None, init=False)

    def append(self, output: GenerationOutput) -> None:
        """The next piece."""
        self.token_ids.extend(output.token_ids)
        if output.texts is None and len(output.token_ids) == 1:
            self.texts.append(output.text)
        else:
            self.texts += output.parts
        if output.logprobs is not None:
            if self._logprobs is None:
                self._logprobs = output.logprobs.between(0, 0)
            self._logprobs.extend(output.logprobs)
        if output.finish_reason is not None:
            self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason

    def text(self, begin: int, stop: int | None = None) -> str:
        """Of the tokens `[begin, stop)`; to the very end without `stop`."""
        return "".join(self.texts[begin:stop])

    def piece(self, begin: int, stop: int, *, with_end: bool) -> GenerationOutput:
        """The tokens `[begin, stop)`, and how the choice ended."""
        logprobs, texts = self._logprobs, self.texts[begin : None if with_end else stop]
        return GenerationOutput(
            "".join(texts),
            self.token_ids[begin:stop],
            stop,
            index=self.index,
            finish_reason=self.finish_reason if with_end else None,
            stop_reason=self.stop_reason if with_end else None,
            logprobs=None if logprobs is None or begin == stop else logprobs.between(begin, stop),
            texts=texts,
        )


@attrs.define(eq=False)
class CompletionRecord:
    """All choices of all prompts, numbered through, and the end."""

    choices: Sequence[ChoiceRecord]
    # Nothing more is added.
    has_ended: bool = attrs.field(default=False, init=False)
    # Of all, once it has ended well.
    usage: Usage | None = attrs.field(default=None, init=False)
    # What it ended with otherwise.
    error: ApiError | None = attrs.field(default=None, init=False)

    def end(self, how: Usage | ApiError) -> None:
        """Every choice has its end, or it failed; the first end stays."""
        if self.has_ended:
            return
        self.has_ended = True
        if isinstance(how, Usage):
            self.usage = how
        else:
            self.error = how
