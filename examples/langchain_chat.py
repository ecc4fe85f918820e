"""LangChain, whole and streamed: its ChatOpenAI needs the address alone.

pip install langchain-openai
triolet serve                  # in another terminal
python examples/langchain_chat.py
"""

import os

from langchain_openai import ChatOpenAI
from pydantic import SecretStr

URL = os.environ.get("TRIOLET_URL", "http://127.0.0.1:8000")


def main() -> None:
    model = ChatOpenAI(
        model="triolet-bundled",
        base_url=f"{URL}/v1",
        api_key=SecretStr(os.environ.get("TRIOLET_API_KEY", "none")),
        temperature=0,
    )
    print(model.invoke("What is the capital of Japan?").text)
    for piece in model.stream("Tell me a story about a fox and a lantern."):
        print(piece.text, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
