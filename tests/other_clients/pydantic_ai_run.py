"""pydantic-ai over both APIs: text whole and streamed, and a tool that it calls itself.

python pydantic_ai_run.py URL
"""

import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

QUESTION = "What is the capital of Japan?"
provider = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="none")
for kind in (OpenAIChatModel, OpenAIResponsesModel):
    agent = Agent(
        kind("triolet-bundled", provider=provider),
        model_settings={"temperature": 0, "max_tokens": 40},
    )
    whole = agent.run_sync(QUESTION)
    streamed = agent.run_stream_sync(QUESTION).get_output()
    assert whole.output == streamed != "", (whole.output, streamed)
    assert whole.usage.output_tokens > 1
    again = agent.run_sync("And of France?", message_history=whole.all_messages())
    assert again.output
    sys.stdout.write(f"{kind.__name__}: {streamed}  ")
