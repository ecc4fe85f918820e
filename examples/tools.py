"""A function that the model calls: its arguments obey the schema, and the result goes back.

The bundled model knows no tools, so the call is forced here; MODEL may name one that does.

pip install openai
triolet serve                  # in another terminal
python examples/tools.py
"""

import json
import os
from typing import Any

from openai import OpenAI

URL = os.environ.get("TRIOLET_URL", "http://127.0.0.1:8000")
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a town.",
        "parameters": {
            "type": "object",
            "properties": {"town": {"enum": ["Bern", "Oslo"]}},
            "required": ["town"],
        },
    },
}


def weather(town: str) -> str:
    return f"It rains in {town}."


def main() -> None:
    client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("TRIOLET_API_KEY", "none"))
    messages: Any = [{"role": "user", "content": "How is the weather in Oslo?"}]
    model = os.environ.get("MODEL", "triolet-bundled")
    answer = client.chat.completions.create(
        model=model, messages=messages, tools=[TOOL], tool_choice="required", max_tokens=60
    )
    message = answer.choices[0].message
    for call in message.tool_calls or []:
        assert call.type == "function"
        result = weather(**json.loads(call.function.arguments))
        print(f"{call.function.name}({call.function.arguments}) -> {result}")
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    last = client.chat.completions.create(model=model, messages=messages, max_tokens=30)
    print(last.choices[0].message.content)


if __name__ == "__main__":
    main()
