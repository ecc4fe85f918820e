"""An answer that is valid JSON of a given schema, whatever the model would have liked to say.

pip install openai
triolet serve                  # in another terminal
python examples/structured_output.py
"""

import json
import os

from openai import OpenAI

URL = os.environ.get("TRIOLET_URL", "http://127.0.0.1:8000")
SCHEMA = {
    "type": "object",
    "properties": {
        "animal": {"enum": ["fox", "owl", "bear"]},
        "age": {"type": "integer", "minimum": 1, "maximum": 30},
    },
    "required": ["animal", "age"],
    "additionalProperties": False,
}


def main() -> None:
    client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("TRIOLET_API_KEY", "none"))
    answer = client.chat.completions.create(
        model="triolet-bundled",
        messages=[{"role": "user", "content": "Which animal do you like, and how old is it?"}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True},
        },
    )
    found = json.loads(answer.choices[0].message.content or "")
    print(f"{found['animal']}, {found['age']} years")


if __name__ == "__main__":
    main()
