"""The unmodified SDK: one chat completion whole, and the same one streamed.

python chat.py URL; prints what came, as JSON.
"""

import json
import sys
from typing import Any

from openai import OpenAI

request: dict[str, Any] = {
    "model": "triolet-bundled",
    "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
    "max_completion_tokens": 24,
    "temperature": 0,
}
with OpenAI(api_key="none", base_url=f"{sys.argv[1]}/v1") as client:
    models = [model.id for model in client.models.list()]
    whole = client.chat.completions.create(**request)
    pieces: list[str] = []
    reasons: list[str] = []
    usage: Any = None
    streamed = client.chat.completions.create(
        **request, stream=True, stream_options={"include_usage": True}
    )
    for chunk in streamed:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            reasons += [choice.finish_reason] if choice.finish_reason else []
sys.stdout.write(
    json.dumps(
        {
            "models": models,
            "whole": whole.choices[0].message.content,
            "whole_reason": whole.choices[0].finish_reason,
            "whole_usage": whole.usage.to_dict() if whole.usage else None,
            "pieces": pieces,
            "reasons": reasons,
            "usage": usage.to_dict() if usage else None,
        }
    )
)
