"""An engine without a core, scheduler or worker, for benchmarks of what is in front of one.

A process of its own that speaks the wire: every request gets random tokens, one in each step. A
step leaves only when it is asked for (a byte on the control socket: how many requests it is for),
so that whoever asks decides when its consumers are ready; requests of one token are answered at
once, without a step.

    python -m triolet.bench.parts.null_engine CONTROL_FD INPUT_ENDPOINT OUTPUT_ENDPOINT TOKEN_IDS
"""

import gc
import json
import random
import socket
import sys

import attrs
import trio

from ...engine.messages import (
    ENGINE_TO_FRONTEND,
    FRONTEND_TO_ENGINE,
    AbortRequests,
    AddRequest,
    FinishReason,
    RequestOutput,
    Resync,
    ResyncReply,
    StepOutputs,
)
from ...nurseries.tasks.changes import Changes
from ...transports.codec import Codec
from ...transports.links.channel import Peer, Received
from ...transports.links.zmq_spoke import SpokeChannel, open_spoke

FRONTEND, ENGINE = Peer("frontend", 0, 1), Peer("engine", 0, 2)
SEED = 1


@attrs.define(eq=False)
class NullEngine:
    """Engine of {attempt: request}, with the number of tokens that each has had."""

    channel: SpokeChannel
    token_ids: list[int]
    running: dict[int, AddRequest] = attrs.field(factory=dict)
    counts: dict[int, int] = attrs.field(factory=dict)
    added: Changes = attrs.field(factory=Changes)
    step_number: int = 0
    chance: random.Random = attrs.field(factory=lambda: random.Random(SEED))

    async def hear(self) -> None:
        """Take what the frontend says; answer requests of one token."""
        while True:
            short = []
            for event in await self.channel.receive():
                if not isinstance(event, Received):
                    continue
                match event.message:
                    case AddRequest() as request if request.sampling.max_tokens == 1:
                        short.append(request)
                    case AddRequest() as request:
                        self.running[request.attempt] = request
                        self.counts[request.attempt] = 0
                        self.added.notify()
                    case AbortRequests(requests=requests):
                        for key in requests:
                            self.running.pop(key.attempt, None)
                    case Resync():
                        self.channel.send(FRONTEND, ResyncReply([]))
            if short:
                self.send([(request, 0, True) for request in short])

    async def step(self, control: trio.socket.SocketType) -> None:
        """Make a step for each byte."""
        while True:
            for streams in await control.recv(1) or sys.exit(0):
                while len(self.running) < streams:
                    await self.added.wait()
                news = []
                for attempt, request in list(self.running.items()):
                    index = self.counts[attempt]
                    self.counts[attempt] = index + 1
                    ends = index + 1 == request.sampling.max_tokens
                    if ends:
                        del self.running[attempt]
                    news.append((request, index, ends))
                self.send(news)

    def send(self, news: list[tuple[AddRequest, int, bool]]) -> None:
        """Send a message with one token for each of these requests."""
        self.step_number += 1
        message = StepOutputs(self.step_number, [])
        for request, index, ends in news:
            token_id = self.chance.choice(self.token_ids)
            if ends:
                output = RequestOutput(
                    request_id=request.request_id,
                    attempt=request.attempt,
                    first_index=index,
                    token_ids=[token_id],
                    finish_reason=FinishReason.LENGTH,
                )
                message.outputs.append(output)
            else:
                message.attempts.append(request.attempt)
                message.indices.append(index)
                message.token_ids.append(token_id)
        self.channel.send(FRONTEND, message)


async def run(control_fd: int, endpoints: list[str], token_ids: list[int]) -> None:
    """Run until the control socket is closed."""
    codec_in, codec_out = Codec(*FRONTEND_TO_ENGINE), Codec(*ENGINE_TO_FRONTEND)
    async with (
        open_spoke(ENGINE, codec_in, codec_out) as channel,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(channel.run_deadlines)
        await nursery.start(channel.run_output)
        await nursery.start(channel.run_input)
        channel.connect(FRONTEND, endpoints[0], endpoints[1])
        engine = NullEngine(channel, token_ids)
        nursery.start_soon(engine.hear)
        gc.freeze()
        with socket.socket(fileno=control_fd) as plain:
            await engine.step(trio.socket.from_stdlib_socket(plain))


def main() -> None:
    """Run by the command line."""
    control_fd, input_endpoint, output_endpoint, token_ids = sys.argv[1:]
    endpoints = [input_endpoint, output_endpoint]
    trio.run(run, int(control_fd), endpoints, json.loads(token_ids))


if __name__ == "__main__":
    main()
