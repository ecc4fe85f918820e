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
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join(60)  # its watch over the main thread ends a moment later
sys.stdout.write(f"{[t.name for t in threading.enumerate() if 'Trio' not in t.name]}\n")
