"""Without a child process: for notebooks, tests, and machines on which none may be started.

python examples/in_process.py
"""

import triolet
from triolet import SamplingParams

with triolet.LLM(in_process=True) as llm:
    (answer,) = llm.generate("One morning, a quick red fox", SamplingParams(max_tokens=32, seed=1))
    print(answer.text)
