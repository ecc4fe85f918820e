"""Frontends of one server in this process, and a root between them."""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from triolet.api.application import Application
from triolet.api.settings import ServeSettings
from triolet.api.streams.claims import KeyedRequest, home_of
from triolet.api.streams.foreign import ForeignStreams
from triolet.runtime.fleet.membership import deliver
from triolet.runtime.messages import ForeignCall, ForeignReply, FrontendStates
from triolet.transports.codec import MessageTooLarge

from ..fakes import Answer, Fail, FakeGenerator, Say, open_client

SLOW = [Say("a"), Say("b", after_s=1000)]
KEYS = {"one": {"authorization": "Bearer one"}, "two": {"authorization": "Bearer two"}}


@attrs.define(eq=False)
class Server:
    """Two frontends, and a root that passes on what they say. `epochs` are those that are up.

    A successor has the responses of the life before it.
    """

    nursery: trio.Nursery
    epochs: dict[int, int] = attrs.field(factory=lambda: {0: 1, 1: 2})
    reply_characters_max: int = 2**20
    generators: list[FakeGenerator] = attrs.field(init=False)
    applications: list[Application] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        settings = ServeSettings(api_keys=tuple(KEYS))
        self.generators = [FakeGenerator(SLOW) for _ in range(2)]
        self.applications = [
            Application(generator, settings, ForeignStreams(rank, 2, rank + 1, self.send))
            for rank, generator in enumerate(self.generators)
        ]
        self.publish()

    def publish(self, lost: Sequence[int] = ()) -> None:
        states = FrontendStates(dict(self.epochs), failed=dict.fromkeys(lost, "it hangs"))
        for application in self.applications:
            application.foreign.handle_frontends(states)

    def kill(self, rank: int) -> None:
        del self.epochs[rank]
        self.publish()

    async def succeed(self, rank: int, after_s: float) -> None:
        await trio.sleep(after_s)
        self.epochs[rank] = 3
        self.publish()

    async def send(self, message: ForeignCall | ForeignReply) -> None:
        await trio.lowlevel.checkpoint()
        home = deliver(message, self.epochs)
        if home is None:
            return
        application = self.applications[home]
        if isinstance(message, ForeignReply):
            size = len(message.text)
            if size > self.reply_characters_max:
                raise MessageTooLarge("ForeignReply", size, self.reply_characters_max, "bytes")
            application.foreign.handle_reply(message)
        else:
            self.nursery.start_soon(application.foreign.answer, message, application.carry_out)


@asynccontextmanager
async def open_server() -> AsyncIterator[Server]:
    async with trio.open_nursery() as nursery:
        yield Server(nursery)


@attrs.define(eq=False)
class Values:
    """A journal's values."""

    kept: dict[str, bytes] = attrs.field(factory=dict)

    def values(self) -> dict[str, bytes]:
        return dict(self.kept)

    def keep_value(self, name: str, value: bytes) -> None:
        self.kept.pop(name, None)
        self.kept[name] = value

    def forget_value(self, name: str) -> None:
        del self.kept[name]


# ---- requests with one key

STEADY = [Say(str(number), after_s=1) for number in range(9)]
BODY: dict[str, Any] = {"input": "hi"}
REPLAYED = "idempotent-replayed"


def key_at(home: int, principal: str = "") -> str:
    """A key whose home this frontend is."""
    for number in itertools.count():
        name = KeyedRequest.read(f"key-{number}", principal, "", {}).name
        if home_of(name, 2) == home:
            return f"key-{number}"
    raise AssertionError


@attrs.define(eq=False)
class Keyed:
    """Two frontends, and requests with one key whose home is rank `home`."""

    server: Server
    home: int

    @property
    def executed(self) -> list[str]:
        """Ids of what generators were asked for."""
        return [call.request_id for each in self.server.generators for call in each.calls]

    def use(self, *script: Say | Fail, opens_after_s: float = 0.0) -> None:
        for generator in self.server.generators:
            generator.script, generator.opens_after_s = script, opens_after_s

    async def post(
        self, frontend: int, client: str = "one", path: str = "responses", **values: Any
    ) -> Answer:
        application = self.server.applications[frontend]
        principal = application.authentication.authenticate(KEYS[client]["authorization"])
        headers = {**KEYS[client], "idempotency-key": key_at(self.home, principal)}
        async with open_client(application) as connection:
            return await connection.request("POST", f"/v1/{path}", {**BODY, **values}, headers)


@asynccontextmanager
async def open_keyed(home: int = 0) -> AsyncIterator[Keyed]:
    async with (
        open_server() as server,
        open_client(server.applications[0]),
        open_client(server.applications[1]),
    ):
        keyed = Keyed(server, home)
        keyed.use(*STEADY)
        yield keyed


async def at_once(
    keyed: Keyed, *frontends: int, after_s: float = 0.0, **values: Any
) -> list[Answer]:
    """Answers of requests that are sent so long after each other."""
    answers: dict[int, Answer] = {}

    async def post(place: int, frontend: int) -> None:
        answers[place] = await keyed.post(frontend, **values)

    async with trio.open_nursery() as nursery:
        for place, frontend in enumerate(frontends):
            nursery.start_soon(post, place, frontend)
            await trio.sleep(after_s)
    return [answers[place] for place in range(len(frontends))]
