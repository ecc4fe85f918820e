#!/usr/bin/env bash
# Kills processes of any OpenAI-compatible server under load, and counts what its clients lose.
#
# bash examples/chaos_on_another_server.sh 'vllm serve MODEL --port 8100' http://127.0.0.1:8100/v1
set -euo pipefail
triolet chaos --target "$1" --target-url "$2" --faults "${3:-20}"
