"""`triolet serve` with acting children: `python -m …acting_server ENGINES FRONTENDS`.

ENGINES and FRONTENDS are JSON lists of acts, one for each rank.
"""

import json
import sys

import attrs
import trio

from triolet.api.commands.exits import errors_as_sentences
from triolet.api.commands.serve import serve
from triolet.runtime.event_lines import LineReport
from triolet.runtime.fleet.root import ServePlan
from triolet.tests.runtime.acting import ACTING_ENGINE, ACTING_FRONTEND, acting_settings


def main(engines: str, frontends: str) -> int:
    acts = json.loads(frontends)
    plan = ServePlan(
        settings=attrs.evolve(
            acting_settings(*[[act] for act in json.loads(engines)]),
            model_name="m",
            frontends=len(acts),
        ),
        frontend_settings=json.dumps({rank: [act] for rank, act in enumerate(acts)}),
        version="0",
        port=0,
        engine_module=ACTING_ENGINE,
        frontend_module=ACTING_FRONTEND,
    )
    with errors_as_sentences():
        return trio.run(serve, plan, LineReport(sys.stderr))
    raise AssertionError("unreachable")


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
