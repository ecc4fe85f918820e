"""Collectors without a frontend: what a ledger would write, and flows that only count."""

from collections.abc import Callable

import attrs

from triolet.engine.messages import FinishReason
from triolet.runtime.frontend.output_collector import OutputCollector
from triolet.runtime.text.outputs import GenerationOutput


def texts_of(token_ids: list[int]) -> list[str]:
    return [chr(ord("a") + token_id % 26) for token_id in token_ids]


class Letters:
    """Decodes each token to a letter; a bug is in 99."""

    def handle_tokens(self, token_ids: list[int]) -> list[str]:
        if 99 in token_ids:
            raise ZeroDivisionError("a bug")
        return texts_of(token_ids)


def make(*, whole: bool = False) -> OutputCollector:
    return OutputCollector("r", Letters(), whole)


def piece(first: int, count: int = 1, *, finish: FinishReason | None = None) -> GenerationOutput:
    ids = list(range(first, first + count))
    texts = texts_of(ids)
    return GenerationOutput("".join(texts), ids, first + count, finish_reason=finish, texts=texts)


def put(collector: OutputCollector, output: GenerationOutput) -> None:
    """Written down first, as the ledger does."""
    collector.token_ids.extend(output.token_ids)
    collector.settle()
    collector.put(output)


def put_tokens(collector: OutputCollector, *token_ids: int) -> None:
    collector.token_ids.extend(token_ids)
    collector.put_tokens(len(token_ids))


@attrs.define(eq=False)
class Listener:
    """Notes what it is called with, then acts."""

    act: Callable[[], object] = lambda: None
    ends: list[bool] = attrs.field(factory=list, init=False)

    def on_output(self, is_end: bool) -> None:
        self.ends.append(is_end)
        self.act()


@attrs.define(eq=False)
class Flow:
    """A choice without an engine; wants to be called again at `reports_at` tokens."""

    collector: OutputCollector = attrs.field(factory=make)
    reports_at: float = 3
    consumed: list[int] = attrs.field(factory=list, init=False)
    granted: list[int] = attrs.field(factory=list, init=False)

    def handle_consumed(self, token_count: int) -> float:
        self.consumed.append(token_count)
        return self.reports_at

    def handle_granted(self, tokens: int) -> None:
        self.granted.append(tokens)

    def end(self, reason: FinishReason) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing runs."""
