"""A scenario's text, and what a driver of a suite shares with the others.

    # Anything up to the first command says what the scenario shows.
    add a prompt=5 max_tokens=3
    step
    ----
    step 1: new a row=0 ...

A block is commands, a line `----`, and the trace of these commands, up to an empty line.
"""

from collections.abc import Iterable

import attrs

SEPARATOR = "----"


@attrs.define
class Block:
    """Lines before the commands (comments, empty), commands, and their trace."""

    comments: list[str] = attrs.field(factory=list)
    commands: list[str] = attrs.field(factory=list)
    trace: list[str] = attrs.field(factory=list)


def parse(text: str) -> list[Block]:
    """A scenario's blocks; the last one may consist of comments only."""
    blocks, block, in_trace = [], Block(), False
    for line in text.splitlines():
        if in_trace:
            if line:
                block.trace.append(line)
                continue
            blocks.append(block)
            block, in_trace = Block(), False
        elif line == SEPARATOR:
            in_trace = True
        elif line and not line.startswith("#"):
            block.commands.append(line)
        elif line or not blocks:
            assert not block.commands, f"a comment among commands: {line}"
            block.comments.append(line)
    return [*blocks, block]


def render(blocks: list[Block]) -> str:
    """The scenario's text again."""
    texts = []
    for block in blocks:
        lines = [*block.comments, *block.commands]
        if block.commands:
            lines += [SEPARATOR, *block.trace]
        if lines:
            texts.append("\n".join(lines) + "\n")
    return "\n".join(texts)


class Driver:
    """Carries out the commands of one scenario.

    Each command is a method of a subclass: its words are the positional arguments, its `name=value`
    the others, all of them text; what it returns or yields are the lines of its trace.
    """

    def run(self, block: Block) -> list[str]:
        """The trace of a block's commands, as it is now."""
        trace: list[str] = []
        for line in block.commands:
            command, *rest = line.split()
            words = [word for word in rest if "=" not in word]
            options = dict(word.split("=", 1) for word in rest if "=" in word)
            method = vars(type(self))[command.replace("-", "_")]
            trace += method(self, *words, **options)
            trace += self.seen()
        return trace or ["ok"]

    def seen(self) -> Iterable[str]:
        """What every command may have changed besides; invariants are checked here."""
        return ()


def numbers(word: str) -> list[int]:
    """`1,2` as a list."""
    return [int(part) for part in word.split(",") if part]


def joined(items: Iterable[object]) -> str:
    """The items with spaces between."""
    return " ".join(map(str, items))


def limit(word: str) -> int | None:
    """A number; `end` is none."""
    return None if word == "end" else int(word)
