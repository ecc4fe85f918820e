"""`triolet serve` with the engine's options as JSON.

python serve_with.py '{"executor": "null", "null_step_s": 0.05}' [frontends [engines [grace]]]
"""

import json
import sys

import trio

from triolet.api.commands.exits import errors_as_sentences
from triolet.api.commands.plan import make_plan
from triolet.api.commands.report import make_server_report
from triolet.api.commands.serve import serve

given = dict(zip(("frontends", "engines", "grace"), sys.argv[2:], strict=False))
runtime = {
    "engine": json.loads(sys.argv[1]),
    "frontends": int(given.get("frontends", "1")),
    "engines": int(given.get("engines", "1")),
    "times": {"grace_s": float(given.get("grace", "10"))},
}
with errors_as_sentences():
    plan = make_plan(None, {"listen": {"port": 0}, "runtime": runtime})
    with make_server_report("human") as report:
        code = trio.run(serve, plan, report)
raise SystemExit(code)
