"""Requests with idempotency keys between frontends that die, over a root that loses messages."""

from collections import Counter
from contextlib import suppress
from functools import partial
from random import Random

import attrs
import h11
import pytest
import trio
import trio.testing

from triolet.api.streams.claims import Claims
from triolet.api.streams.executions import Executions
from triolet.fuzz.doubles.journal_memory import NotedMemory
from triolet.fuzz.simulator.task_order import seeded_tasks
from triolet.runtime.errors import Overloaded
from triolet.runtime.journal.journal import Journal
from triolet.runtime.journal.reader import read_journal
from triolet.runtime.journal.writer import JournalWriter
from triolet.runtime.messages import ForeignCall, ForeignReply

from ..fakes import Answer, Say, open_client
from .frontends import KEYS, Server

STEADY = [Say(str(number), after_s=0.5) for number in range(9)]
CLIENTS, QUESTIONS = 4, 3
LIVES_S = 4.0


@attrs.define(eq=False)
class FaultyServer(Server):
    """Messages are lost, doubled and late; frontends die and have successors with their journals.

    What a frontend executes goes on in the next life, as adoption has it; its clients are cut off,
    what was pending is not known any more, and claims are those of the journal.
    """

    chance: Random = attrs.field(factory=Random, kw_only=True)
    is_faulty: bool = True
    lives: list[int] = attrs.field(factory=lambda: [1, 2])
    # Around each request, by the frontend that has it.
    cuts: tuple[set[trio.CancelScope], ...] = attrs.field(factory=lambda: (set(), set()))
    reached: Counter[str] = attrs.field(factory=Counter)
    memories: list[NotedMemory] = attrs.field(
        factory=lambda: [NotedMemory.fresh(2**20) for _ in "01"]
    )

    def __attrs_post_init__(self) -> None:
        Server.__attrs_post_init__(self)
        for rank in range(2):
            self.generators[rank].script = STEADY
            self.begin(rank)

    async def send(self, message: ForeignCall | ForeignReply) -> None:
        for _ in range(self.chance.choice([0, 1, 1, 1, 1, 1, 2]) if self.is_faulty else 1):
            self.nursery.start_soon(self.pass_on, message, self.chance.choice([0, 0, 0.1, 3]))
        await trio.lowlevel.checkpoint()

    async def pass_on(self, message: ForeignCall | ForeignReply, after_s: float) -> None:
        await trio.sleep(after_s)
        await Server.send(self, message)

    def begin(self, rank: int) -> None:
        """The next life of this frontend."""
        application, memory = self.applications[rank], self.memories[rank]
        self.lives[rank] += 1
        epoch = self.lives[rank]
        contents = read_journal(memory)
        writer = JournalWriter.resume(memory, contents, epoch)
        journal = Journal.resume(writer, contents)
        limits, books = application.settings.limits, application.books
        application.foreign.epoch, books.journal = epoch, journal
        books.claims = Claims(limits.keys_max, int(limits.key_age_s * 1e9), journal)
        books.executions = Executions(limits.keys_max, epoch, journal, journal.is_whole)
        self.epochs[rank] = epoch
        self.publish()

    async def disturb(self) -> None:
        """Deaths, one at a time or two, and refusals; then peace."""
        for _ in range(6):
            await trio.sleep(self.chance.uniform(0, LIVES_S))
            ranks = self.chance.choice([[0], [1], [0, 1]])
            for rank in ranks:
                for cut in self.cuts[rank]:
                    cut.cancel("its frontend died")
                self.kill(rank)
                self.reached["death"] += 1
            await trio.sleep(self.chance.uniform(0, 2))
            for rank in ranks:
                self.begin(rank)
                generator = self.generators[rank]
                generator.opens_after_s = self.chance.choice([0, 0.2, 2])
                refuses = self.chance.random() < 0.3
                generator.refuse = Overloaded(limit="requests_max") if refuses else None
        self.is_faulty = False
        for generator in self.generators:
            generator.refuse = None

    async def post(
        self, rank: int, body: dict[str, object], headers: dict[str, str]
    ) -> Answer | None:
        """None if its frontend died, or it could not be read to its end."""
        answer: Answer | None = None
        with trio.CancelScope() as cut:
            self.cuts[rank].add(cut)
            async with open_client(self.applications[rank]) as client:
                with suppress(h11.RemoteProtocolError):
                    answer = await client.request("POST", "/v1/responses", body, headers)
        self.cuts[rank].discard(cut)
        return answer

    async def ask(self, question: str, *, stream: bool) -> Answer:
        """By any frontend, and again until it is answered."""
        body: dict[str, object] = {"input": question, "stream": stream}
        headers = {**KEYS["one"], "idempotency-key": f"key of {question}".replace(" ", "-")}
        while True:
            rank = self.chance.randrange(2)
            if rank in self.epochs:
                answer = await self.post(rank, body, headers)
                if answer is not None and answer.status == 200:
                    return answer
                assert answer is None or answer.status in (429, 503), answer.body
                self.reached["asked again"] += 1
            await trio.sleep(0.2)


def ids_in(answer: Answer, *, stream: bool) -> str:
    found = next(iter(answer.events()))["response"]["id"] if stream else answer.json["id"]
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("seed", [*range(10), 58])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_each_key_has_one_execution(seed: int, stream: bool) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    with seeded_tasks(f"tasks {seed}"):
        trio.run(partial(run, seed, stream=stream), clock=clock)


async def run(seed: int, *, stream: bool) -> None:
    answers: dict[str, list[Answer]] = {f"q{number}": [] for number in range(QUESTIONS)}
    async with trio.open_nursery() as nursery:
        server = FaultyServer(nursery, chance=Random(seed))

        async def ask(question: str) -> None:
            await trio.sleep(server.chance.uniform(0, 10))
            answers[question].append(await server.ask(question, stream=stream))

        async with (
            open_client(server.applications[0]),
            open_client(server.applications[1]),
            trio.open_nursery() as asking,
        ):
            asking.start_soon(server.disturb)
            for question in answers:
                for _ in range(CLIENTS):
                    asking.start_soon(ask, question)
        nursery.cancel_scope.cancel("the test is over")
    executed = [call.request_id for each in server.generators for call in each.calls]
    found = {
        question: {ids_in(a, stream=stream) for a in each} for question, each in answers.items()
    }
    assert sorted(executed) == sorted(name for names in found.values() for name in names)
    assert [len(names) for names in found.values()] == [1] * QUESTIONS
    if not stream:
        assert all(len({answer.body for answer in each}) == 1 for each in answers.values())
    assert server.reached["death"] > 5
    for application in server.applications:
        application.books.claims.check_invariants()
