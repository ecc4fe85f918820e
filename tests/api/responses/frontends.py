"""Frontends of one server in this process, and a root between them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from triolet.api.application import Application
from triolet.api.responses.foreign import ForeignResponses
from triolet.api.settings import ServeSettings
from triolet.runtime.messages import ForeignCall, ForeignReply, FrontendStates
from triolet.runtime.processes.membership import deliver
from triolet.transports.codec import MessageTooLarge

from ..fakes import FakeGenerator, Say

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
            Application(generator, settings, ForeignResponses(rank, 2, rank + 1, self.send))
            for rank, generator in enumerate(self.generators)
        ]
        self.publish()

    def publish(self, failed: dict[int, str] | None = None) -> None:
        for application in self.applications:
            application.foreign.handle_frontends(FrontendStates(dict(self.epochs), failed or {}))

    def kill(self, rank: int) -> None:
        del self.epochs[rank]
        self.publish()

    async def succeed(self, rank: int, after_s: float) -> None:
        await trio.sleep(after_s)
        self.epochs[rank] = 3
        self.publish()

    async def send(self, message: ForeignCall | ForeignReply) -> None:
        await trio.lowlevel.checkpoint()
        delivery = deliver(message, self.epochs)
        if delivery is None:
            return
        application = self.applications[delivery.frontend]
        if isinstance(delivery.message, ForeignReply):
            size = len(delivery.message.text)
            if size > self.reply_characters_max:
                raise MessageTooLarge("ForeignReply", size, self.reply_characters_max, "bytes")
            application.foreign.handle_reply(delivery.message)
        else:
            self.nursery.start_soon(
                application.foreign.answer, delivery.message, application.carry_out
            )


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
