"""Record of one completion's choices: the text of each token, logprobs, and how each has ended.

Sans-IO: outputs in, any part of a choice out, so that a reader can begin anywhere. The bound of a
record is the length of the model, once for each choice: it keeps what was generated.
"""

from collections.abc import Sequence

import attrs

from ...engine.messages import FinishReason
from ...runtime.text.outputs import GenerationOutput, Logprobs, Usage
from ..errors import ApiError
from ..openai.chat import AnsweredPrompt, WholeChoice
from ..openai.responses_request import ids_bytes, text_bytes


@attrs.define(eq=False)
class ChoiceRecord:
    """Choice; `texts` are those of its tokens, one more is what the end completed."""

    index: int
    prompt: AnsweredPrompt
    # True until the prompt is as whole as it will be.
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
        """Text of the tokens `[begin, stop)`; to the very end without `stop`."""
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

    def whole(self) -> WholeChoice:
        """Choice as a whole answer."""
        piece = self.piece(0, len(self.token_ids), with_end=True)
        return WholeChoice(self.prompt, piece, self.inexact_from)

    @property
    def size_bytes(self) -> int:
        """An estimate of what it takes to keep it."""
        logprobs = 0 if self._logprobs is None else self._logprobs.size_bytes
        return ids_bytes(len(self.token_ids)) + sum(map(text_bytes, self.texts)) + logprobs


@attrs.define(eq=False)
class CompletionRecord:
    """Choices of all prompts, numbered through, and the end."""

    choices: Sequence[ChoiceRecord]
    # Nothing more is added.
    has_ended: bool = attrs.field(default=False, init=False)
    # Usage of all, once the record has ended well.
    usage: Usage | None = attrs.field(default=None, init=False)
    # The error that the record ended with otherwise.
    error: ApiError | None = attrs.field(default=None, init=False)

    @property
    def size_bytes(self) -> int:
        """An estimate of what it takes to keep it."""
        prompts = {id(choice.prompt): choice.prompt for choice in self.choices}
        asked = [
            ids_bytes(len(each.token_ids)) + text_bytes(each.echoed) for each in prompts.values()
        ]
        scored = [each.logprobs.size_bytes for each in prompts.values() if each.logprobs]
        return sum(choice.size_bytes for choice in self.choices) + sum(asked) + sum(scored)

    @property
    def why(self) -> str:
        """Why it ended, in a word: the code of its error, or of its choices; "" before that."""
        if self.error is not None:
            return self.error.code
        reasons = {each.finish_reason.value for each in self.choices if each.finish_reason}
        return "+".join(sorted(reasons)) if self.has_ended else ""

    def end(self, how: Usage | ApiError) -> None:
        """Every choice has its end, or it failed; the first end stays."""
        if self.has_ended:
            return
        self.has_ended = True
        if isinstance(how, Usage):
            self.usage = how
        else:
            self.error = how
