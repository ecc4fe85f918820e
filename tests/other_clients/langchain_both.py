"""LangChain's ChatOpenAI over both APIs, whole and streamed.

python langchain_both.py URL
"""

import sys

from langchain_openai import ChatOpenAI
from pydantic import SecretStr

QUESTION = "What is the capital of Japan?"
for uses_responses in (False, True):
    model = ChatOpenAI(
        model="triolet-bundled",
        base_url=f"{sys.argv[1]}/v1",
        api_key=SecretStr("none"),
        temperature=0,
        max_retries=0,
        use_responses_api=uses_responses,
        stream_usage=True,
    )
    whole = model.invoke(QUESTION)
    pieces = list(model.stream(QUESTION))
    streamed = "".join(piece.text for piece in pieces)
    assert whole.text == streamed != "", (whole.text, streamed)
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] > 1
    name = "responses" if uses_responses else "chat completions"
    sys.stdout.write(f"{name}: {streamed} ({len(pieces)} pieces)  ")
