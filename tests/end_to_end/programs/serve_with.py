"""`triolet serve` with any field of the engine's settings, for what the command has no option.

python serve_with.py '{"executor": "null", "null_step_s": 0.05}' [frontends [engines [grace_s]]]
"""

import json
import sys

import trio

from triolet.api.commands.exits import errors_as_sentences
from triolet.api.commands.plan import make_plan
from triolet.api.commands.report import make_server_report
from triolet.api.commands.serve import serve

arguments = dict(zip(("frontends", "engines", "grace_s"), sys.argv[2:], strict=False))
with errors_as_sentences():
    plan = make_plan(
        None,
        engine=json.loads(sys.argv[1]),
        engines=int(arguments.get("engines", "1")),
        frontends=int(arguments.get("frontends", "1")),
        model_name="",
        host="127.0.0.1",
        port=0,
        api_keys=(),
        allowed_hosts=(),
        allowed_origins=(),
        grace_s=float(arguments.get("grace_s", "10")),
    )
    with make_server_report("human") as report:
        code = trio.run(serve, plan, report)
raise SystemExit(code)
