"""Campaign of hostile forms: `triolet serve`, what was reported of others, and drawn forms.

The forms go through the unmodified `openai` SDK with its own retries, so that what ends a process
once is sent again. Beside them streams of other clients go on, each compared token for token with
the same one of the server before anybody disturbed it.
"""

import json
import pathlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

import attrs
import httpx
import httpx2
import jsonschema
import trio
from openai import APIConnectionError, APIStatusError, OpenAI

from triolet.engine.structured_outputs import GrammarKind
from triolet.fuzz.fuzzer import each
from triolet.fuzz.fuzzers.grammars import NUMBERS, Ask, draw_ask

from ..end_to_end.server import Server, open_server
from ..end_to_end.streams import SeenStream, body, read_sse
from .folders import folder_problems
from .inputs import Input, all_inputs, matches
from .raw import RAW, statuses
from .surfaces import Json, Request, request_of

# The slowest known form takes some seconds of a busy machine, and each is tried three times.
ANSWER_S = 120.0
# Of each drawn form: enough for a number with all its digits.
FORM_TOKENS = 24
# Of each stream beside them.
STREAM_TOKENS = 80
# Forms that are drawn at once: some tenths of a second.
ROUND = 100
SHOWN_MAX = 40
SHOWN_CHARACTERS_MAX = 300


@attrs.frozen(kw_only=True)
class HostileOptions:
    """One campaign."""

    forms: int = 10_000
    engines: int = 1
    frontends: int = 1
    # Threads that send forms, and streams beside them.
    at_once: int = 6
    streams: int = 2
    seed: int = 1


@attrs.define(eq=False)
class HostileReport:
    """What was sent and what came."""

    # By field and status; of reported inputs by their outcome.
    counts: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    violations: list[str] = attrs.field(factory=list)
    # Streams whose tokens were compared, and attempts of the SDK beyond the first.
    streams: int = 0
    retries: int = 0
    before: dict[str, int] = attrs.field(factory=dict)
    after: dict[str, int] = attrs.field(factory=dict)
    seconds: float = 0.0

    @property
    def is_green(self) -> bool:
        """Whether nothing went wrong, and something was compared."""
        return not self.violations and self.streams > 0

    def count(self, kind: str, status: object, problem: str = "") -> None:
        """One answer."""
        self.counts[kind, str(status)] += 1
        if problem:
            self.violations.append(problem[:SHOWN_CHARACTERS_MAX])

    def lines(self) -> Iterator[str]:
        """For a person."""
        for (kind, status), number in sorted(self.counts.items()):
            yield f"{number:6}  {status:8} {kind}"
        yield f"{self.retries} retries of the SDK; {self.streams} streams beside, tokens compared"
        for name, pid in self.before.items():
            yield f"{name}: pid {pid}, afterwards {self.after.get(name, 'none')}"
        yield from self.violations[:SHOWN_MAX]
        verdict = "held" if self.is_green else f"{len(self.violations)} violations"
        yield f"{verdict}, {sum(self.counts.values())} inputs in {self.seconds:.0f} s"


async def run_hostile(options: HostileOptions, say: Callable[[str], object]) -> HostileReport:
    """Send everything.

    Raises what a server that does not start does. Cancellation: no process is left.
    """
    report = HostileReport()
    words = ("--engines", str(options.engines), "--frontends", str(options.frontends))
    with tempfile.TemporaryDirectory() as folder:
        async with open_server(pathlib.Path(folder), *words) as server:
            await server.wait_linked(options.frontends, options.engines)
            expected = [(await _stream(server, number))[0] for number in range(options.streams)]
            report.before = await _pids(server)
            began_s = time.monotonic()
            async with trio.open_nursery() as nursery:
                for number, tokens in enumerate(expected):
                    nursery.start_soon(_compare_streams, server, report, number, tokens)
                await _send_all(server, report, options, say)
                nursery.cancel_scope.cancel("all inputs were sent")
            report.seconds = time.monotonic() - began_s
            report.after = await _pids(server)
    report.violations += [
        f"{name} was process {pid}, now {report.after.get(name, 'none')}"
        for name, pid in report.before.items()
        if report.after.get(name) != pid
    ]
    return report


async def _pids(server: Server) -> dict[str, int]:
    return {name: pid for name, pid in (await server.pids()).items() if "spare" not in name}


# ---- streams beside


async def _stream(server: Server, number: int) -> tuple[list[int], str]:
    """The tokens, and what the stream ended with if it failed."""
    request = body(STREAM_TOKENS, input=f"Tell me story {number}.", temperature=1)
    seen = SeenStream()
    async with server.client() as client:
        await read_sse(client, request, seen)
    assert seen.broken is None, seen.broken
    return seen.token_ids, str(seen.error or "")


async def _compare_streams(
    server: Server, report: HostileReport, number: int, expected: list[int]
) -> None:
    assert len(expected) == STREAM_TOKENS, "nobody disturbed it"
    while True:
        try:
            found, note = await _stream(server, number)
        except (AssertionError, httpx.TransportError) as error:
            found, note = [], repr(error)
        report.streams += 1
        if found != expected:
            report.violations.append(f"stream {number} of a bystander is another one: {note}")


# ---- inputs


async def _send_all(
    server: Server, report: HostileReport, options: HostileOptions, say: Callable[[str], object]
) -> None:
    for name, (pieces, wanted) in RAW.items():
        found = await statuses(server.url, pieces)
        problem = "" if found == list(wanted) else f"{name}: {found}, not {wanted}"
        report.count("raw HTTP", "/".join(map(str, found)), problem)
    for name, problem in (await folder_problems(server)).items():
        report.count(
            "model folders", "wrong" if problem else "right", problem and f"{name}: {problem}"
        )
    with OpenAI(api_key="none", base_url=f"{server.url}/v1", timeout=ANSWER_S) as client:
        sender = Sender(client, report)
        await _in_threads([partial(sender.send_input, each) for each in all_inputs()], options)
        say(f"{sum(report.counts.values())} reported inputs: {len(report.violations)} violations")
        chance = Random(options.seed)
        for begin in range(0, options.forms, ROUND):
            count = min(ROUND, options.forms - begin)
            # Off the loop, which the streams beside need.
            asks = await trio.to_thread.run_sync(each(draw_ask), chance, count)
            tasks = [partial(sender.send_form, ask, n) for n, ask in enumerate(asks, begin)]
            await _in_threads(tasks, options)
            say(f"{begin + count} forms: {len(report.violations)} violations")


async def _in_threads(tasks: Sequence[Callable[[], None]], options: HostileOptions) -> None:
    limiter = trio.CapacityLimiter(options.at_once)
    in_thread = partial(trio.to_thread.run_sync, limiter=limiter)
    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(in_thread, task)


@attrs.define(eq=False)
class Sender:
    """Sends by the SDK, with its default retries; its methods are run in threads."""

    client: OpenAI
    report: HostileReport

    def send_input(self, given: Input) -> None:
        """One reported input, and what follows from its answer."""
        status, answer = self._post(given.request)
        problem = "" if status == given.status else f"{status}, not {given.status}: {answer}"
        if not problem and status == 200:
            problem = given.judge(answer)
        if not problem and given.then is not None:
            status, back = self._post(given.then(answer))
            problem = "" if status == 200 else f"its own answer comes back: {status}: {back}"
        self._count(
            f"reported, {given.request.surface}", status, problem and f"{given.name}: {problem}"
        )

    def send_form(self, ask: Ask, number: int) -> None:
        """One drawn form: it is served or refused, and a whole answer satisfies it."""
        try:
            request = request_of(ask, number, FORM_TOKENS)
            json.dumps(request.body, allow_nan=False).encode()
        except ValueError:
            self.report.count(f"form {ask.kind}", "no JSON")
            return
        status, answer = self._post(request)
        problem = "" if status in (200, 400) else f"{status}: {answer}"
        if status == 200:
            problem = _violation(request, ask, answer)
        self._count(
            f"form, {request.surface}", status, problem and f"form {number}, {ask}: {problem}"
        )

    def _count(self, kind: str, status: int, problem: str) -> None:
        self.report.count(kind, status or "no answer", problem)

    def _post(self, request: Request) -> tuple[int, Json]:
        """Status and answer; 0 if there was none after the SDK's last attempt."""
        try:
            response = self.client.post(request.path, body=request.body, cast_to=httpx2.Response)
        except APIStatusError as error:
            response = error.response
        except APIConnectionError as error:
            return 0, {"error": repr(error.__cause__)}
        self.report.retries += int(response.request.headers.get("x-stainless-retry-count", "0"))
        if response.headers["content-type"].startswith("text/event-stream"):
            data = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
            return response.status_code, {"chunks": [json.loads(each) for each in data[:-1]]}
        answer: Json = response.json()
        return response.status_code, answer


def _violation(request: Request, ask: Ask, answer: Json) -> str:
    """What is wrong with a served form's answer; "" where nothing can be said of it."""
    if ask.sort != NUMBERS or ask.kind is not GrammarKind.JSON_SCHEMA:
        return ""
    schema = json.loads(ask.text)
    if request.path.startswith("/messages") or request.surface.startswith("tools"):
        return ""
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError:
        return ""
    return matches(schema)(answer)
