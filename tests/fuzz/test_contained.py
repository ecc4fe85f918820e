"""A campaign's process that dies is named with its event; one that ends says how by its code."""

import subprocess
import sys

import pytest

# The event 5 of round 2 does what the first argument says.
CAMPAIGN = """
import os, signal, sys
from collections import Counter
import attrs
from triolet.fuzz.contained import Died, go_on_in_child
from triolet.fuzz.fuzzer import Finding, Fuzzer, draw_round, run_fuzzer

def draw(chance, count):
    return [chance.randrange(1000) + 1000 * place for place in range(count)]

def check(events, target):
    for event in events:
        if event == target:
            exec(sys.argv[1])
    return Counter(events=len(events))

toy = Fuzzer(name="toy", invariant="", draw=draw, check=check, target=0, faults={},
             round_events=10, smoke_rounds=4, event_s_max=0.2)
toy = attrs.evolve(toy, target=draw_round(toy, 7, 2)[5])
print(toy.target)
try:
    print(run_fuzzer(go_on_in_child(toy, 7), seed=7))
except (Died, Finding) as error:
    sys.exit(str(error))
"""


def run(what: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", CAMPAIGN, what]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("what", "signal"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("os.abort()", "SIGABRT"),
        ("while True: pass", "SIGPROF"),
    ],
)
def test_a_death_is_named_with_its_event(what: str, signal: str) -> None:
    done = run(what)
    assert done.returncode == 1
    assert f"toy, seed 7, round 2: its process died by {signal} of event 5:" in done.stderr
    assert f"\n  {done.stdout.strip()}\n" in done.stderr
    assert "again: python -m triolet.fuzz toy --seed 7 --round 2" in done.stderr


def test_a_finding_is_shrunk_beyond_the_time_of_one_event() -> None:
    done = run("[0 for _ in range(10**6)]; assert False, 'wrong'")
    assert done.returncode == 1
    assert "10 events, 1 of them suffice:" in done.stderr
    assert "AssertionError: wrong" in done.stderr


def test_one_that_holds_is_no_death() -> None:
    done = run("pass")
    assert done.returncode == 0
    assert "Counter({'events': 40})" in done.stdout
