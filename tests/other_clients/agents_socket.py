"""openai-agents over the WebSocket: `OpenAIResponsesWSModel`, a run and a second turn.

python agents_socket.py URL
"""

import sys

from agents import Agent, ModelSettings, OpenAIResponsesWSModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
agent = Agent(
    name="teller",
    model=OpenAIResponsesWSModel("triolet-bundled", client),
    model_settings=ModelSettings(temperature=0, max_tokens=40),
)
first = Runner.run_sync(agent, "What is the capital of Norway?")
second = Runner.run_sync(
    agent, [*first.to_input_list(), {"role": "user", "content": "What is the capital of Japan?"}]
)
assert first.final_output, "the first turn said nothing"
assert second.final_output, "the second turn said nothing"
sys.stdout.write(f"{first.final_output} | {second.final_output}")
