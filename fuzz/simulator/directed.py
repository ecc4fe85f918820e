"""Plans by hand: what random ones seldom meet, each with the planted bug that it finds."""

import math

from .plan import Event, Fault, FaultKind, Form, Request, Setup

# Longer than a stream waits for an engine, with a margin.
FOR_GOOD_S = 40.0


def _request(number: int = 0, **fields: object) -> Request:
    plain = {"at_s": 0.0, "frontend": 0, "prompt": [9, 8], "max_tokens": 40, **fields}
    return Request(name=f"request-{number}", seed=number, **plain)  # type: ignore[arg-type]


# Eight forms are in check, or wait, when their form process dies; those that linger are there.
_FORMS_KILLED: list[Event] = [
    Setup(engines=1),
    *[_request(number, form=Form.SERVED, at_s=0.5) for number in range(8)],
    Fault(kind=FaultKind.KILL_FORMS, at_s=0.51),
]

# Engines on two machines, of which one is cut off for longer than its streams may stand still.
_CUT_OFF: list[Event] = [
    Setup(window_tokens=4, is_apart=True),
    *[_request(number, pause_s=0.1) for number in range(4)],
    Fault(kind=FaultKind.CUT, at_s=0.0, tokens=10, for_s=2.0),
]

# {planted bug: the plan that finds it}; without the bug every plan holds.
DIRECTED: dict[str, list[Event]] = {
    # One that ends every engine that computes its third token: sent 16 times, then refused.
    "attempts have no bound": [Setup(), _request(fatal_at=2)],
    # It waits for another engine of its numerics id, although one of another id is free.
    "a replay goes to other numerics": [
        Setup(unlike_from=1),
        *[_request(number) for number in range(4)],
        Fault(kind=FaultKind.KILL_ENGINE, at_s=0.0, tokens=20),
        Fault(kind=FaultKind.KILL_ENGINE, at_s=0.0, tokens=60, engine=1),
    ],
    # No engine comes back in time: only then it ends.
    "a stream waits for no engine": [
        Setup(engines=1),
        _request(),
        Fault(kind=FaultKind.NO_SPAWN, at_s=0.0, tokens=4, count=10**6, for_s=FOR_GOOD_S),
        Fault(kind=FaultKind.KILL_ENGINE, at_s=0.0, tokens=5),
    ],
    # Those that come while an engine drains are refused by it.
    "a refusal for draining ends a stream": [
        Setup(),
        *[_request(number, at_s=number / 100) for number in range(20)],
        Fault(kind=FaultKind.DRAIN, at_s=0.05, for_s=0.5),
    ],
    # It is lost on its way; the reply to the next RESYNC says that it is not known.
    "unknown requests are not sent again": [
        Setup(engines=1),
        _request(at_s=0.05),
        Fault(kind=FaultKind.CUT, at_s=0.0, for_s=1.0),
    ],
    # The abort is lost with the link; the next RESYNC says it by not naming the request.
    "an engine keeps what is not wanted": [
        Setup(engines=1, window_tokens=4),
        _request(patience_s=0.4, pause_s=0.05),
        Fault(kind=FaultKind.CUT, at_s=0.0, tokens=4, for_s=1.0),
    ],
    # Nothing of it goes on in the next life, whose first RESYNC names none.
    "a dead frontend's requests run on": [
        Setup(engines=1, window_tokens=4),
        _request(is_resumable=False, back_after_s=math.inf, pause_s=0.05),
        Fault(kind=FaultKind.KILL_FRONTEND, at_s=0.0, tokens=4),
    ],
    # The abort is lost, and nothing follows it; a cut of no way, as faults are healed when all are
    # over.
    "a lost tail is never asked after": [
        Setup(engines=1, window_tokens=4),
        _request(patience_s=0.8, pause_s=5.0),
        Fault(kind=FaultKind.DROP, at_s=0.6, tokens=1),
        Fault(kind=FaultKind.CUT, at_s=0.0, frontend=1, for_s=2.0),
    ],
    "silence is not noticed": _CUT_OFF,
    "streams of a silent engine wait for it": _CUT_OFF,
    "a silent engine is forgotten": _CUT_OFF,
    "who is heard again gets nothing": _CUT_OFF,
    # Three streams go on from each of three deaths.
    "deaths count wherever they were": [
        Setup(engines=1),
        *[_request(number, prompt=[9, number], max_tokens=60) for number in range(3)],
        Fault(kind=FaultKind.CRASH_ENGINE, at_s=0.0, tokens=15),
        Fault(kind=FaultKind.CRASH_ENGINE, at_s=0.0, tokens=50),
        Fault(kind=FaultKind.CRASH_ENGINE, at_s=0.0, tokens=90),
    ],
    # Its client leaves while the worker is replaced; the next one had no step at all.
    "a lost step stays in the table": [
        Setup(engines=1),
        _request(patience_s=0.2),
        Fault(kind=FaultKind.WORKER_DIES, at_s=0.0, tokens=10),
        Fault(kind=FaultKind.WORKER_DIES, at_s=1.5),
        Fault(kind=FaultKind.CRASH_ENGINE, at_s=3.0),
    ],
    # The second life finds no memory, and is killed while it clears the names; the third finds its
    # memory (all by this seed), and by no name what only the first one's held.
    "a head is true before its names are": [
        Setup(engines=1, seed=7, kv_blocks=20),
        _request(prompt=[9] * 40, max_tokens=1),
        _request(1, at_s=0.15, prompt=[10] * 19),
        Fault(kind=FaultKind.KILL_ENGINE, at_s=0.35),
        Fault(kind=FaultKind.KILL_AT_STORE, at_s=0.36, is_torn=True),
    ],
    # What its client has not allowed comes while it does not read: the frontend dies far from each
    # grant, as the record of one makes good what the snapshot before it has lost.
    "a snapshot has no credit": [
        Setup(journal_bytes=0, window_tokens=16),
        _request(grants=1, pause_s=0.5, max_tokens=8),
        _request(1),
        Fault(kind=FaultKind.KILL_FRONTEND, at_s=0.0, tokens=20),
    ],
    # One half of the stop string is adopted.
    "a stop string's beginning is not adopted": [
        Setup(),
        _request(1, stop_text_at=20),
        Fault(kind=FaultKind.KILL_FRONTEND, at_s=0.0, tokens=21),
    ],
    # What a frontend says before its death is slow, and comes when its successor has the streams;
    # that it is not lost with its sender, and how late it comes, is by this seed.
    "the dead may speak": [
        Setup(engines=1, window_tokens=2, seed=50),
        *[_request(number) for number in range(3)],
        Fault(kind=FaultKind.SLOW, at_s=0.0, tokens=20, for_s=0.03),
        Fault(kind=FaultKind.KILL_FRONTEND, at_s=0.0, tokens=24),
    ],
    # Two lives are killed as they rebuild the same stream.
    "a kill counts as a stream's": [
        Setup(),
        *[_request(number) for number in range(3)],
        Fault(kind=FaultKind.KILL_ADOPTER, at_s=0.0, tokens=20, steps=8),
        Fault(kind=FaultKind.KILL_ADOPTER, at_s=0.3, tokens=20, steps=4),
    ],
    # Two deaths that are nobody's fault, with the same four in flight, who have passed between.
    "each of many is blamed alone": [
        Setup(engines=1),
        *[_request(number, prompt=[9, number]) for number in range(4)],
        Fault(kind=FaultKind.WORKER_CRASHES, at_s=0.0, tokens=20),
        Fault(kind=FaultKind.WORKER_CRASHES, at_s=0.0, tokens=100),
    ],
    "a form is lost with its form process": _FORMS_KILLED,
    "a new form process has no link": _FORMS_KILLED,
    # It is sent to sixteen copies, and its client asks again and again.
    "a check that crashes is checked again": [Setup(), _request(form=Form.CRASHES)],
}
