"""Uses the blocking face and ends without closing it, by an error with an argument."""

import sys

import triolet
from triolet import SamplingParams

llm = triolet.LLM(executor="null")
(completion,) = llm.generate("One morning", SamplingParams(max_tokens=8))
sys.stdout.write(f"{len(completion.token_ids)}\n")
if sys.argv[1:]:
    raise RuntimeError("the program's own mistake")
