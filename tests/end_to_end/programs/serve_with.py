"""`triolet serve` with the engine's options as JSON.

python serve_with.py '{"executor": "null"}' [frontends [engines [grace [takeover]]]]
"""

import json
import sys

import trio

from triolet.api.commands.exits import errors_as_sentences
from triolet.api.commands.plan import make_plan
from triolet.api.commands.report import FirstSteps, make_server_report
from triolet.api.commands.serve import serve

given = dict(zip(("frontends", "engines", "grace", "takeover"), sys.argv[2:], strict=False))
runtime = {
    "engine": json.loads(sys.argv[1]),
    "frontends": int(given.get("frontends", "1")),
    "engines": int(given.get("engines", "1")),
    "takeover": given.get("takeover", "yes") == "yes",
    "times": {"grace_s": float(given.get("grace", "10"))},
}
with errors_as_sentences():
    plan = make_plan(None, {"listen": {"port": 0}, "runtime": runtime})
    with make_server_report("human", FirstSteps(plan.settings.model_name)) as report:
        code = trio.run(serve, plan, report)
raise SystemExit(code)
