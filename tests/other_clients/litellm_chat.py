"""LiteLLM's chat call, whole, streamed, and with a prompt that is too long, which it must know.

python litellm_chat.py URL
"""

import sys

import litellm

request = {
    "model": "openai/triolet-bundled",
    "api_base": f"{sys.argv[1]}/v1",
    "api_key": "none",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
}
whole = litellm.completion(**request).choices[0].message.content
pieces = [part.choices[0].delta.content for part in litellm.completion(**request, stream=True)]
streamed = "".join(piece for piece in pieces if piece)
assert whole == streamed != "", (whole, streamed)
too_long = [{"role": "user", "content": "word " * 70_000}]
try:
    litellm.completion(**{**request, "messages": too_long})
    raise AssertionError("it is over the length of the model")
except litellm.ContextWindowExceededError:
    pass
sys.stdout.write(f"{streamed} ({len(pieces)} pieces)")
