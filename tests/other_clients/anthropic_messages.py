"""Anthropic's SDK: a message whole and streamed, tools, thinking, a count of tokens, errors.

python anthropic_messages.py URL
"""

import sys
from typing import Any

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
question: Any = [{"role": "user", "content": "What is the capital of Japan?"}]
asked: Any = {
    "model": "claude-opus-5-5",  # as Claude Code asks, whatever is served
    "max_tokens": 100,
    "messages": question,
    "extra_body": {"temperature": 0},
}

# Text: whole, streamed, and another turn behind it.
whole = client.messages.create(**asked)
with client.messages.stream(**asked) as stream:
    streamed = "".join(stream.text_stream)
    final = stream.get_final_message()
assert whole.content[0].text == streamed == final.content[0].text != "", (whole, final)
assert (whole.stop_reason, final.stop_reason) == ("end_turn", "end_turn")
counted = client.messages.count_tokens(model=asked["model"], messages=question)
usage = final.usage
assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
later: Any = [{"role": "assistant", "content": final.content}, {"role": "user", "content": "Oslo?"}]
assert client.messages.create(**{**asked, "messages": question + later}).content

# A call that must come, its result, and thinking, which this model has none of.
city = {"type": "string", "enum": ["Tokyo", "Oslo"]}
schema = {"type": "object", "properties": {"city": city}, "required": ["city"]}
tool = {"name": "get_weather", "description": "Weather of a city", "input_schema": schema}
calling: Any = {
    **asked,
    "system": [{"type": "text", "text": "Help.", "cache_control": {"type": "ephemeral"}}],
    "tools": [tool, {"type": "web_search_20250305", "name": "web_search"}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
}
with client.messages.stream(**calling) as stream:
    kinds = [event.type for event in stream]
    called = stream.get_final_message()
assert (kinds[0], kinds[-1], "input_json" in kinds) == ("message_start", "message_stop", True)
assert called.stop_reason == "tool_use", called
call = called.content[-1]
assert call.type == "tool_use", called
assert call.input["city"] in ("Tokyo", "Oslo"), called
result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny"}
turns = [*question, {"role": "assistant", "content": called.content}]
turns.append({"role": "user", "content": [result]})
free = {**calling, "tool_choice": {"type": "auto"}, "messages": turns}
assert client.messages.create(**free).stop_reason

# Refusals, as the SDK's own exceptions.
image = {"type": "image", "source": {"type": "url", "url": "http://localhost/a.png"}}
refusals: list[tuple[type[anthropic.APIStatusError], str, dict[str, Any]]] = [
    (anthropic.NotFoundError, "not_found_error", {"model": "gpt"}),
    (anthropic.BadRequestError, "blocks of the type 'image'", {"content": [image]}),
    (anthropic.BadRequestError, "prompt is too long: ", {"content": "word " * 70_000}),
]
for error_class, sentence, given in refusals:
    messages = [{"role": "user", "content": given.pop("content", "hi")}]
    refused = None
    try:
        client.messages.create(**{**asked, "messages": messages, **given})
    except error_class as error:
        refused = error
    assert refused is not None, f"it is not refused: {sentence}"
    assert sentence in str(refused), refused
    assert refused.request_id, refused
sys.stdout.write(f"{streamed} {call.input}")
