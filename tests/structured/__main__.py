"""Asks for every form at temperature 1, of the bundled model and of random weights, and validates.

python -m tests.structured [--seed N]

Prints what did not match, and how many did; exit 1 when one did not.
"""

import argparse
import sys
import time
from typing import Any

import trio

import triolet
from triolet.runtime.runtime import Runtime
from triolet.tests.structured.forms import Form, Verdict, all_forms, ask

AT_ONCE = 32
# A number or text without bound may go on for ever at temperature 1: another seed ends most. An
# answer that is cut again is no wrong one, but of those there may be few.
ATTEMPTS, SEEDS, CUT_SHARE_MAX = 4, 1000, 0.02
KINDS: dict[str, dict[str, Any]] = {"bundled": {}, "random weights": {"load_format": "dummy"}}


async def check_model(name: str, options: dict[str, Any], seed: int) -> bool:
    """All forms of one model; whether every answer matches."""
    forms = all_forms()
    verdicts: list[Verdict] = []
    began = time.perf_counter()
    async with triolet.open_runtime(**options) as runtime:
        limiter = trio.CapacityLimiter(AT_ONCE)
        async with trio.open_nursery() as nursery:
            for place, form in enumerate(forms):
                nursery.start_soon(_ask_one, runtime, form, seed + place, (limiter, verdicts))
    seconds = time.perf_counter() - began
    tokens = sum(verdict.tokens for verdict in verdicts)
    bad = [verdict for verdict in verdicts if not verdict.is_valid]
    cut = sum(verdict.is_cut for verdict in bad)
    for verdict in bad:
        print(f"  {verdict.name}: {verdict.problem}: {verdict.text[:200]!r}", flush=True)
    share = 100 * (len(verdicts) - len(bad)) / len(verdicts)
    print(
        f"{name}: {len(verdicts)} forms, {share:g} % valid, {tokens} tokens in {seconds:.1f} s",
        flush=True,
    )
    return len(bad) == cut <= CUT_SHARE_MAX * len(verdicts)


async def _ask_one(
    runtime: Runtime, form: Form, seed: int, shared: tuple[trio.CapacityLimiter, list[Verdict]]
) -> None:
    limiter, verdicts = shared
    async with limiter:
        for attempt in range(ATTEMPTS):
            verdict = await ask(runtime, form, seed + attempt * SEEDS)
            if not verdict.is_cut:
                break
        verdicts.append(verdict)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    seed = parser.parse_args().seed
    good = [await check_model(name, options, seed) for name, options in KINDS.items()]
    sys.exit(not all(good))


if __name__ == "__main__":
    trio.run(main)
