"""The blocking face as a script uses it: two prompts, one call; then nothing is left of it."""

import sys
import threading

import triolet
from triolet import SamplingParams

with triolet.LLM(executor="null") as llm:
    for completion in llm.generate(
        ["One morning", "The old lantern"], SamplingParams(max_tokens=8)
    ):
        sys.stdout.write(f"{len(completion.token_ids)} {completion.finish_reason}\n")


def names() -> list[str]:
    """Threads other than those that trio keeps for its next work, ten seconds long."""
    return [thread.name for thread in threading.enumerate() if "Trio" not in thread.name]


# The watch over the main thread ends a moment later.
for _ in range(600):
    if len(names()) > 1:
        threading.Event().wait(0.1)
sys.stdout.write(f"{names()}\n")
