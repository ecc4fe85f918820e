"""Poisoned forms: words in a form that end the process which checks, compiles or follows it.

A form is known by a word in its text, which says where it acts. As a module this is a form process
as any other, but for these.
"""

import enum
import os
import select
from collections.abc import Sequence, Set
from functools import partial

import attrs

from ...engine.grammar.matcher import MatchedGrammar, ShowWork, show_nothing
from ...engine.process.grammar_compiler import GrammarCompiler
from ...engine.structured_outputs import StructuredOutputs
from ...nurseries.processes.child import run_child
from ...runtime.forms.form_process import check, forked_calls, main


class FormPoison(enum.StrEnum):
    """Where a form ends its process: the word in its text."""

    CHECK = "poisons-the-check"
    COMPILE = "poisons-the-compiler"
    MASK = "poisons-the-mask"
    CONSUME = "poisons-the-matcher"


class FormBurden(enum.StrEnum):
    """What a form makes its check do besides: the word in its text."""

    LINGER = "lingers-in-the-check"
    FILL = "fills-the-memory"
    BURN = "burns-the-processor"


# A fault finds a check that lingers; two of them are over before anybody calls it slow.
LINGER_S = 1.0
_BLOCK_BYTES = 16 << 20


def poison_of(text: str) -> FormPoison | None:
    """What is in this text, if anything is."""
    return next((poison for poison in FormPoison if poison in text), None)


@attrs.define(eq=False)
class PoisonedGrammar(MatchedGrammar):
    """A grammar that ends its process when it is followed."""

    poison: FormPoison | None = None

    def accept(self, token_id: int) -> bool:
        """As ever, or abort."""
        if self.poison is FormPoison.CONSUME:
            self.show_work(self._accepted)
            os.abort()
        return super().accept(token_id)

    def fill_mask(self, words: memoryview) -> None:
        """As ever, or abort."""
        if self.poison is FormPoison.MASK:
            self.show_work(self._accepted)
            os.abort()
        super().fill_mask(words)


class PoisonedCompiler(GrammarCompiler):
    """An engine's compiler that poisons end, or whose grammars do."""

    def compile(
        self,
        wanted: StructuredOutputs,
        eos_token_ids: Set[int],
        output_token_ids: Sequence[int],
        show_work: ShowWork = show_nothing,
    ) -> MatchedGrammar:
        """As ever, or abort."""
        poison = poison_of(wanted.text)
        if poison is FormPoison.COMPILE:
            os.abort()
        grammar = super().compile(wanted, eos_token_ids, output_token_ids, show_work)
        if poison is None:
            return grammar
        return PoisonedGrammar(grammar.matcher, grammar.ignored_ends, show_work, poison=poison)


def check_poisoned(argument: bytes) -> bytes:
    """A check that aborts at a poison, and bears the form's burden."""
    text, filled = argument.decode(), []
    if poison_of(text) is FormPoison.CHECK:
        os.abort()
    if FormBurden.LINGER in text:
        select.select([], [], [], LINGER_S)
    while FormBurden.FILL in text:
        filled.append(bytes([1]) * _BLOCK_BYTES)
    while FormBurden.BURN in text:
        pass
    return check(argument)


if __name__ == "__main__":
    run_child(partial(main, make_calls=partial(forked_calls, check_poisoned)))
