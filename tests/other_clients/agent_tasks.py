"""Task that coding agents do on a scripted model: read a program, mend it, run it, say what it was.

The model is none that could: its weights say what stands here (`runtime/scripted_models`), which
turn it is being read from the prompt. All below it is real: kernels compute its logits, by way of
scheduler, KV memory and replay, and the agents carry out its calls as those of any model.
"""

import itertools
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from ..runtime.scripted_models import ScriptedSize, scripted_turns

TEMPLATE = pathlib.Path(__file__).parent / "agent.jinja"
# Prompts of agents have 20 000 tokens. So large a vocabulary takes some milliseconds a token,
# and costs prompts nothing: a turn lasts for long enough to be hit in its midst.
SIZE = ScriptedSize(vocab_size=2**17, length=2**16)
ASIDE = "<|aside 0|>"

PROGRAM = "sums.py"
WRONG, RIGHT = "    return sum(numbers) - 1\n", "    return sum(numbers)\n"
SOURCE = f'"""Sums."""\n\n\ndef total(numbers):\n{WRONG}\n\nprint(total([1, 2, 3]))\n'
QUESTION = f"The sum that {PROGRAM} prints is one too small. Find out why, mend it, and run it."
PATCH = f"""*** Begin Patch
*** Update File: {PROGRAM}
@@
 def total(numbers):
-{WRONG}+{RIGHT}*** End Patch
"""

# What an agent's record has of an answer: reasoning, text, and calls with their arguments.
Said = tuple[str, Any]


@attrs.frozen
class Call:
    """A call that the model makes. `shown` is the tool's name as the model knows it."""

    shown: str
    arguments: Mapping[str, Any]

    @property
    def text(self) -> str:
        value = {"name": self.shown, "arguments": self.arguments}
        return f"\n<tool_call>\n{json.dumps(value)}\n</tool_call>"


@attrs.frozen
class Turn:
    """One answer of the model."""

    thought: str
    text: str
    calls: tuple[Call, ...] = ()

    @property
    def answer(self) -> str:
        """As the model writes it."""
        calls = "".join(call.text for call in self.calls)
        return f"<think>\n{self.thought}\n</think>\n\n{self.text}{calls}"

    @property
    def said(self) -> Iterator[Said]:
        """As agents record it."""
        yield "reasoning", self.thought
        yield "text", self.text
        for call in self.calls:
            yield call.shown, dict(call.arguments)


def task(look: tuple[Call, ...], aside: tuple[Call, ...], mend: Call, run: Call) -> list[Turn]:
    """The turns of a task with these calls; those `aside` have nothing to do with it."""
    return [
        Turn(
            f"The question names {PROGRAM}. Before I change anything I read it, and I look at what"
            " else there is in the folder: another file may depend on the wrong sum.",
            f"I read {PROGRAM} and list the folder.",
            look,
        ),
        Turn(
            "The function takes one away from the sum, and nothing explains why it should. Before"
            " I go on I try a tool of another kind, so that such a call is made as well.",
            "I found it. First something else.",
            aside,
        ),
        Turn(
            "Only the line with the sum has to change, and no other line depends on it; so the"
            " smallest change is to take the subtraction out and leave the rest as it stands.",
            "I take the subtraction out.",
            (mend,),
        ),
        Turn(
            "Whether that was all of it the program itself must show. It prints the total of one,"
            " two and three, so six is what I expect, in a single line.",
            "I run the program.",
            (run,),
        ),
        Turn(
            "It printed six, which is the sum of one, two and three. The file is as it should be,"
            " there is nothing left to do but to say what was wrong and what I did.",
            f"`total` in {PROGRAM} took one away from the sum. I removed that, and the program now"
            " prints 6, which is the sum of 1, 2 and 3. Nothing else had to change.",
        ),
    ]


def _shell(command: str) -> Call:
    return Call("exec_command", {"cmd": command})


def _claude(name: str, **arguments: object) -> Call:
    return Call(name, arguments)


_LOOK = (_shell(f"cat {PROGRAM}"), _shell("ls"))
_RUN = _shell(f"python3 {PROGRAM}")
# There is no such agent: Codex answers that, if it finds its own tool in the call.
_NAMESPACED = Call("multi_agent_v1__close_agent", {"target": "none"})
TASKS: Mapping[str, list[Turn]] = {
    # The default of Codex: a shell, which carries out patches, and tools in a namespace.
    "exec": task(_LOOK, (_NAMESPACED,), _shell(f"apply_patch <<'EOF'\n{PATCH}EOF"), _RUN),
    # Codex for models whose names it knows: a custom tool with a grammar.
    "patch": task(_LOOK, (_shell("pwd"),), Call("apply_patch", {"input": PATCH}), _RUN),
    # Claude Code; a search adds the tool that it finds to those of the conversation.
    "bash": task(
        (_claude("Read", file_path=PROGRAM), _claude("Bash", command="ls")),
        (_claude("ToolSearch", query="select:WebFetch"),),
        # With its defaults, which Claude Code writes into what it records.
        _claude("Edit", file_path=PROGRAM, old_string=WRONG, new_string=RIGHT, replace_all=False),
        _claude("Bash", command=f"python3 {PROGRAM}"),
    ),
}


def write_scripted_agent(folder: pathlib.Path) -> pathlib.Path:
    """A model folder that does all tasks."""
    turns = {ASIDE: "A sum that is one too small"}
    for name, answers in TASKS.items():
        # A mark counts the results that are there.
        calls = itertools.accumulate((len(turn.calls) for turn in answers), initial=0)
        for turn, results in zip(answers, calls, strict=False):
            turns[f"<|{name} {results}|>"] = turn.answer
    return scripted_turns(folder, TEMPLATE.read_text(), turns, SIZE)
