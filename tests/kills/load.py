"""Load of the kill campaign: lanes, chats and streamed responses, each client in a thread.

The threads are owned by tasks. A slot asks for one answer after another; each is compared with that
of the undisturbed server, or recorded where there is none yet.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import attrs
import trio
from openai import OpenAI

from .clients import SILENCE_S, Clients
from .slots import Account, Slot


@attrs.define(eq=False)
class Load:
    """All slots against one server, until the account is `stopping`, or without `expected` once
    through.
    """

    url: str
    tokens: int
    sockets: Sequence[Sequence[Slot]]
    chats: Sequence[Slot]
    responses: Sequence[Slot]
    account: Account
    api_key: str = "none"
    # Of each thread: where it runs.
    within: Callable[[], AbstractContextManager[object]] = nullcontext

    @property
    def slots(self) -> list[Slot]:
        """All of them."""
        lanes = (slot for socket in self.sockets for slot in socket)
        return [*lanes, *self.chats, *self.responses]

    def asked(self) -> tuple[int, int]:
        """Requests to engines that were asked for, and how many of them were sent again."""
        return sum(slot.asked for slot in self.slots), sum(slot.asked_again for slot in self.slots)

    async def run(self) -> None:
        """Return when all slots have ended. A server that is killed ends them, too."""
        threads = len(self.sockets) + len(self.chats) + len(self.responses)
        limiter = trio.CapacityLimiter(threads)

        async def in_thread(run: Callable[[Any], None], slots: object) -> None:
            await trio.to_thread.run_sync(self._run_within, run, slots, limiter=limiter)

        with OpenAI(
            api_key=self.api_key, base_url=f"{self.url}/v1", max_retries=0, timeout=SILENCE_S
        ) as client:
            clients = Clients(client, self.account, self.tokens)
            async with trio.open_nursery() as nursery:
                for socket in self.sockets:
                    nursery.start_soon(in_thread, clients.run_socket, socket)
                for chat in self.chats:
                    nursery.start_soon(in_thread, clients.run_chat, chat)
                for response in self.responses:
                    nursery.start_soon(in_thread, clients.run_response, response)

    def _run_within(self, run: Callable[[Any], None], slots: object) -> None:
        with self.within():
            run(slots)


def make_load(
    url: str, account: Account, *, tokens: int, lanes: int, sockets: int, streams: int
) -> Load:
    """Slots of a load: lanes dealt to so many sockets; of the other streams one half is chats."""
    named = [Slot(f"lane-{number}", number) for number in range(lanes)]
    chats = streams - streams // 2
    return Load(
        url,
        tokens,
        [named[first::sockets] for first in range(sockets)],
        [Slot(f"chat-{number}", number) for number in range(chats)],
        [Slot(f"response-{number}", number) for number in range(chats, streams)],
        account,
    )
