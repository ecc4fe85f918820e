"""The unmodified SDK: functions that must be called, in chat and in Responses, whole and streamed.

python tools.py URL; prints the calls, as JSON.
"""

import json
import sys
from typing import Any

from openai import OpenAI

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
function = {"name": "get_weather", "description": "The weather.", "parameters": PARAMETERS}
chat: dict[str, Any] = {
    "model": "triolet-bundled",
    "messages": [{"role": "user", "content": "How is the weather?"}],
    "tools": [{"type": "function", "function": function}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_completion_tokens": 200,
    "seed": 1,
}
responses: dict[str, Any] = {
    "model": "triolet-bundled",
    "input": "How is the weather?",
    "tools": [{"type": "function", **function, "strict": True}],
    "tool_choice": {"type": "function", "name": "get_weather"},
    "max_output_tokens": 200,
}
seen: dict[str, Any] = {}
with OpenAI(api_key="none", base_url=f"{sys.argv[1]}/v1") as client:
    whole = client.chat.completions.create(**chat).choices[0]
    seen["chat"] = [call.to_dict()["function"] for call in whole.message.tool_calls or []]
    seen["reason"] = whole.finish_reason
    with client.chat.completions.stream(**chat) as stream:
        said = stream.get_final_completion().choices[0].message
        seen["streamed chat"] = [call.to_dict()["function"] for call in said.tool_calls or []]
    response = client.responses.create(**responses)
    seen["response"] = [item.to_dict() for item in response.output]
    with client.responses.stream(**responses) as events:
        kinds = [event.type for event in events]
        seen["streamed response"] = [item.to_dict() for item in events.get_final_response().output]
    seen["kinds"] = sorted({kind.rpartition("response.")[2] for kind in kinds})
    call_id = seen["response"][0]["call_id"]
    result: Any = {"type": "function_call_output", "call_id": call_id, "output": "Rain."}
    after = client.responses.create(
        model="triolet-bundled",
        previous_response_id=response.id,
        input=[result],
        max_output_tokens=5,
    )
    seen["after"] = after.status
sys.stdout.write(json.dumps(seen))
