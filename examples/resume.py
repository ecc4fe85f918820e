"""A stream whose connection is lost in the middle, and read on from where it was.

The server keeps what it generates for `runtime.keep_s` seconds; each event has a number, and a
reader asks for those behind the last one that it saw. (When a *process of the server* dies nothing
needs to be resumed: the stream goes on over the same connection.)

pip install openai
triolet serve                  # in another terminal
python examples/resume.py
"""

import os

from openai import OpenAI

URL = os.environ.get("TRIOLET_URL", "http://127.0.0.1:8000")


def main() -> None:
    client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("TRIOLET_API_KEY", "none"))
    text, response_id, last = "", "", 0
    stream = client.responses.create(
        model="triolet-bundled",
        input="Tell me a story about a fox and a lantern.",
        max_output_tokens=60,
        stream=True,
        extra_body={"runtime": {"keep_s": 30, "seed": 7}},
    )
    for event in stream:
        last = event.sequence_number
        if event.type == "response.created":
            response_id = event.response.id
        if event.type == "response.output_text.delta":
            text += event.delta
            if len(text) > 40:
                stream.close()  # the tunnel, the lift, the closed lid
                break
    print(f"cut after: {text!r}")
    for event in client.responses.retrieve(response_id, stream=True, starting_after=last):
        if event.type == "response.output_text.delta":
            text += event.delta
    print(f"the whole: {text!r}")


if __name__ == "__main__":
    main()
