#!/usr/bin/env bash
# A file of requests in OpenAI's batch format, answered into another one. Started again after any end, it
# goes on with what has no answer yet.
#
# bash examples/batch.sh
set -euo pipefail
folder=$(mktemp --directory)
for number in 1 2 3; do
  echo '{"custom_id": "'"$number"'", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "triolet-bundled",
    "messages": [{"role": "user", "content": "Tell me a story about a fox."}], "max_tokens": 16, "seed": '"$number"'}}' |
    tr -d '\n' >> "$folder/requests.jsonl"
  echo >> "$folder/requests.jsonl"
done
triolet batch "$folder/requests.jsonl" "$folder/answers.jsonl"
cat "$folder/answers.jsonl"
rm -r "$folder"
