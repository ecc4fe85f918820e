"""A chat with OpenAI's SDK, streamed.

pip install openai
triolet serve                  # in another terminal
python examples/sdk_chat.py
"""

import os

from openai import OpenAI

URL = os.environ.get("TRIOLET_URL", "http://127.0.0.1:8000")


def main() -> None:
    client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("TRIOLET_API_KEY", "none"))
    stream = client.chat.completions.create(
        model="triolet-bundled",
        messages=[{"role": "user", "content": "Tell me a story about a fox and a lantern."}],
        max_tokens=60,
        stream=True,
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
