"""What every engine promises to a frontend: checks in messages, whatever carries them.

A *maker* opens one engine whose link is up, and the `Caller` at the frontend's end. Steps must come
from the null executor, so that tokens are exact. A check leaves the engine as it found it (all
blocks free), so that one engine may serve several checks in a row.
"""

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import attrs
import msgspec
import trio
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from triolet.engine.messages import (
    AbortRequests,
    AddRequest,
    EngineStatistics,
    FinishReason,
    Grant,
    GrantCredit,
    LiveRequest,
    RequestKey,
    RequestOutput,
    Resync,
    ResyncReply,
    StatisticsReport,
    StepOutputs,
    Utility,
    UtilityCall,
    UtilityReply,
)
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.nurseries.tasks.task_tree import ProcessTree
from triolet.tests.live_tasks import find_tasks
from triolet.transports.links.channel import (
    ChannelEvent,
    HubEnd,
    Peer,
    PeerDown,
    PeerNotConnected,
    PeerUp,
    Received,
)

ME = Peer("frontend", 0, 1)
# Far beyond what any check needs; only a failing one meets it.
DEADLINE_S = 60.0
# The makers set the links' fuse to this, so that a burst of so many messages breaks a link.
UNACKNOWLEDGED_MAX = 64
# Sizes in the config.json of the makers' folder.
VOCAB_SIZE, MODEL_LEN = 320, 512
# After the 256 bytes, which are the folder's tokens.
EOS = 256


def byte_tokenizer() -> Tokenizer:
    """A token for each byte, and an end of sequence."""
    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(["<eos>"])
    return tokenizer


@attrs.define(eq=False)
class Stream:
    """One request as its frontend knows it."""

    request: AddRequest
    token_ids: list[int] = attrs.field(factory=list)
    end: RequestOutput | None = None
    credit: int | None = None

    @property
    def key(self) -> RequestKey:
        return RequestKey(self.request.request_id, self.request.attempt)


@attrs.define(eq=False)
class Caller:
    """A frontend that only keeps what it is told. Every link generation begins with its RESYNC."""

    hub: HubEnd
    engine: Peer
    streams: dict[str, Stream] = attrs.field(factory=dict)
    replies: dict[int, UtilityReply] = attrs.field(factory=dict)
    unknown: list[RequestKey] = attrs.field(factory=list)
    statistics: EngineStatistics | None = None  # the latest that came unasked
    generations: int = 0
    resynced: int = 0
    _last_call: int = 0

    def send(self, message: object) -> None:
        self.hub.send(self.engine, message)

    def add(self, name: str, **fields: Any) -> Stream:
        """Send an ADD; see `add_request`. The stream fills while `until` waits."""
        request = add_request(name, **fields)
        already = list(request.output_token_ids)
        stream = self.streams[name] = Stream(request, already, credit=request.credit)
        self.send(request)
        return stream

    def abort(self, *streams: Stream) -> None:
        self.send(AbortRequests([stream.key for stream in streams]))
        for stream in streams:
            del self.streams[stream.request.request_id]

    def grant(self, stream: Stream, credit: int | None) -> None:
        stream.credit = credit
        self.send(GrantCredit([Grant(stream.key.request_id, stream.key.attempt, credit)]))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Take events until the condition holds."""
        with trio.fail_after(DEADLINE_S):
            while not condition():
                for event in await self.hub.receive():
                    self._take(event)

    async def run(self, name: str, **fields: Any) -> list[int]:
        """One request to its end; its output tokens."""
        stream = self.add(name, **fields)
        await self.until(lambda: stream.end is not None)
        del self.streams[name]
        return stream.token_ids

    async def call(self, utility: Utility) -> str:
        """A utility's result."""
        call_id = self.begin_call(utility)
        await self.until(lambda: call_id in self.replies)
        reply = self.replies.pop(call_id)
        assert not reply.error
        return reply.result

    def begin_call(self, utility: Utility) -> int:
        self._last_call += 1
        self.send(UtilityCall(self._last_call, utility))
        return self._last_call

    async def counts(self) -> EngineStatistics:
        """The engine's counts, asked for now: all that was sent before has been applied."""
        return msgspec.json.decode(await self.call(Utility.STATISTICS), type=EngineStatistics)

    async def until_quiet(self) -> EngineStatistics:
        """Wait until nothing runs or waits and every block is free."""
        with trio.fail_after(DEADLINE_S):
            while True:
                counts = await self.counts()
                busy = counts.running + counts.waiting
                if not busy and counts.kv_blocks_free == counts.kv_blocks:
                    return counts

    async def break_link(self) -> None:
        """Send so much at once that the link's fuse ends it; wait for its next generation."""
        generations = self.generations
        try:
            for _ in range(UNACKNOWLEDGED_MAX + 1):
                self.send(GrantCredit([]))
        except PeerNotConnected:
            pass
        else:
            raise AssertionError("the maker was to set the fuse of the links")
        await self.until(lambda: self.generations > generations)

    def _take(self, event: ChannelEvent) -> None:
        match event:
            case PeerUp():
                self.generations += 1
                self.send(Resync([_live(s) for s in self.streams.values() if s.end is None]))
            case PeerDown():
                pass
            case Received(message=StatisticsReport(statistics=statistics)):
                self.statistics = statistics
            case Received(message=StepOutputs(outputs=outputs)):
                for output in outputs:
                    self._take_output(output)
            case Received(message=ResyncReply(unknown=unknown)):
                self.resynced += 1
                self.unknown += unknown
            case Received(message=UtilityReply() as reply):
                self.replies[reply.call_id] = reply
            case _:
                raise AssertionError(f"an engine does not say {event}")

    def _take_output(self, output: RequestOutput) -> None:
        stream = self.streams.get(output.request_id)
        if stream is None or stream.request.attempt != output.attempt:
            return  # on its way when the request was aborted, or sent again
        assert stream.end is None, "nothing comes after the end"
        assert output.first_index == len(stream.token_ids), "each token once, in order"
        stream.token_ids += output.token_ids
        assert stream.credit is None or len(stream.token_ids) <= stream.credit
        if output.finish_reason is not None:
            stream.end = output


def _live(stream: Stream) -> LiveRequest:
    key = stream.key
    return LiveRequest(key.request_id, key.attempt, len(stream.token_ids), stream.credit)


def add_request(
    name: str,
    *,
    prompt: list[int] | None = None,
    tokens: int = 12,
    seed: int | None = 7,
    attempt: int = 1,
    credit: int | None = None,
    output: list[int] | None = None,
    eos: list[int] | None = None,
    form: StructuredOutputs | None = None,
) -> AddRequest:
    """An ADD of `tokens` output tokens in all; `output` are those it has already (a replay)."""
    return AddRequest(
        request_id=name,
        attempt=attempt,
        prompt_token_ids=[9, 8, 7] if prompt is None else prompt,
        sampling=SamplingParams(
            seed=seed, max_tokens=tokens, ignore_eos=not eos, structured_outputs=form
        ),
        eos_token_ids=eos or [],
        output_token_ids=output or [],
        credit=credit,
    )


OpenEngine = Callable[[], AbstractAsyncContextManager[Caller]]


async def check_equal_seeds_bring_equal_tokens(open_engine: OpenEngine) -> None:
    """Alone or among others; another seed brings others."""
    async with open_engine() as caller:
        alone = await caller.run("alone")
        assert len(alone) == 12
        other = caller.add("another seed", seed=8)
        long = [caller.add(f"length {length}", prompt=[9] * length) for length in (40, 300)]
        same = caller.add("same")
        await caller.until(lambda: all(s.end is not None for s in [same, other, *long]))
        assert same.token_ids == alone
        assert other.token_ids != alone
        assert same.end is not None
        assert same.end.finish_reason is FinishReason.LENGTH
        caller.streams.clear()
        await caller.until_quiet()


async def check_abort_frees_blocks(open_engine: OpenEngine) -> None:
    """An abort is answered by nothing but news of free blocks; unknown ones are counted."""
    async with open_engine() as caller:
        before = await caller.until_quiet()
        stream = caller.add("aborted", tokens=100, credit=5)
        await caller.until(lambda: len(stream.token_ids) == 5)
        assert (await caller.counts()).kv_blocks_free < before.kv_blocks
        caller.abort(stream)
        caller.send(AbortRequests([RequestKey("never heard of", 1)]))
        after = await caller.until_quiet()
        assert after.requests_aborted == before.requests_aborted + 1
        assert after.aborts_unknown == before.aborts_unknown + 1
        await caller.until(
            lambda: (
                caller.statistics is not None
                and caller.statistics.kv_blocks_free == after.kv_blocks
            )
        )
        assert stream.end is None


async def check_credit_pauses(open_engine: OpenEngine) -> None:
    """Not a token beyond the credit, while others run; a smaller grant changes nothing."""
    async with open_engine() as caller:
        expected = await caller.run("free", tokens=20)
        stream = caller.add("on credit", tokens=20, credit=4)
        await caller.until(lambda: len(stream.token_ids) == 4)
        await caller.run("meanwhile", tokens=20)
        assert (await caller.counts()).paused == 1
        caller.grant(stream, 9)
        await caller.until(lambda: len(stream.token_ids) == 9)
        caller.send(GrantCredit([Grant("on credit", 1, 2)]))
        caller.send(GrantCredit([Grant("on credit", 99, None)]))  # another attempt
        await caller.run("meanwhile", tokens=20)
        assert stream.token_ids == expected[:9]
        caller.grant(stream, None)
        await caller.until(lambda: stream.end is not None)
        assert stream.token_ids == expected
        caller.streams.clear()
        await caller.until_quiet()


async def check_replay_continues_identically(open_engine: OpenEngine) -> None:
    """From wherever it broke off: the same tokens, counted as output."""
    async with open_engine() as caller:
        whole = await caller.run("first", tokens=20)
        for done in (1, 7, 19):
            assert await caller.run(f"from {done}", tokens=20, output=whole[:done]) == whole
        stream = caller.add("had it all", tokens=20, output=whole)
        await caller.until(lambda: stream.end is not None)
        assert stream.end is not None
        assert (stream.end.finish_reason, stream.end.token_ids) == (FinishReason.LENGTH, [])
        caller.streams.clear()
        await caller.until_quiet()


async def check_a_bad_add_fails_alone(open_engine: OpenEngine) -> None:
    """Each with a typed error, while a good one runs on."""
    async with open_engine() as caller:
        expected = await caller.run("expected", tokens=40)
        good = caller.add("good", tokens=40, credit=3)
        bad = {
            caller.add("id out of range", prompt=[VOCAB_SIZE]): "invalid_parameter",
            caller.add("no prompt", prompt=[]): "invalid_parameter",
            caller.add("no seed", seed=None): "invalid_parameter",
            caller.add("too long", prompt=[9] * MODEL_LEN): "context_length_exceeded",
        }
        await caller.until(lambda: all(stream.end is not None for stream in bad))
        for stream, code in bad.items():
            assert stream.end is not None
            assert stream.end.finish_reason is FinishReason.ERROR
            assert stream.end.error_code == code
            assert stream.end.error
        caller.grant(good, None)
        await caller.until(lambda: good.end is not None)
        assert good.token_ids == expected
        caller.streams.clear()
        await caller.until_quiet()


async def check_resync_after_a_link_break(open_engine: OpenEngine) -> None:
    """Tokens that were lost come again, the unlisted is aborted, the unknown is named."""
    async with open_engine() as caller:
        expected = await caller.run("expected", tokens=30)
        before = await caller.until_quiet()
        stream = caller.add("goes on", tokens=30, credit=6)
        unlisted = caller.add("unlisted", tokens=30, credit=2)
        await caller.until(lambda: len(stream.token_ids) == 6 and len(unlisted.token_ids) == 2)
        del caller.streams["unlisted"]
        del stream.token_ids[3:]  # as if these had been on the way when the link broke
        stream.credit = 10
        caller.streams["unknown"] = Stream(add_request("unknown"))
        await caller.break_link()
        await caller.until(lambda: caller.unknown == [RequestKey("unknown", 1)])
        await caller.until(lambda: len(stream.token_ids) == 10)
        caller.grant(stream, None)
        await caller.until(lambda: stream.end is not None)
        assert stream.token_ids == expected
        caller.streams.clear()
        caller.unknown.clear()
        after = await caller.until_quiet()
        assert after.requests_aborted == before.requests_aborted + 1


async def check_a_finish_that_was_lost_comes_again(open_engine: OpenEngine) -> None:
    """The engine keeps the end of a request until it knows that its frontend has it."""
    async with open_engine() as caller:
        expected = await caller.run("ended")
        caller.streams["ended"] = stream = Stream(add_request("ended"), expected[:2])
        await caller.break_link()
        await caller.until(lambda: stream.end is not None)
        assert stream.token_ids == expected
        caller.streams.clear()
        await caller.until_quiet()


async def check_a_newer_attempt_replaces_the_older(open_engine: OpenEngine) -> None:
    """Nothing is ever said of the older one again, and an old ADD that comes late is dropped."""
    async with open_engine() as caller:
        first = caller.add("twice", tokens=20, credit=4)
        await caller.until(lambda: len(first.token_ids) == 4)
        second = caller.add("twice", tokens=20, attempt=2, output=first.token_ids)
        caller.send(add_request("twice", tokens=20, attempt=1))
        await caller.until(lambda: second.end is not None)
        assert len(first.token_ids) == 4
        assert len(second.token_ids) == 20
        caller.streams.clear()
        await caller.until_quiet()


async def check_utilities(open_engine: OpenEngine) -> None:
    """Answers carry the number of their call; the tree shows the tasks of an engine."""
    async with open_engine() as caller:
        calls = [caller.begin_call(Utility.TASK_TREE) for _ in range(3)]
        calls += [caller.begin_call(Utility.STATISTICS)]
        await caller.until(lambda: all(call in caller.replies for call in calls))
        for call in calls[:3]:
            reply = caller.replies.pop(call)
            text = reply.result or await caller.call(Utility.TASK_TREE)  # it took too long
            tree = msgspec.json.decode(text, type=ProcessTree)
            assert tree.tasks is not None
            for name in (
                "input-handler",
                "step-loop",
                "orphan-watch",
                "statistics",
                "utilities",
                "grammar-compiler",
            ):
                assert len(find_tasks(tree.tasks, name)) == 1
        assert '"kv_blocks"' in caller.replies.pop(calls[3]).result


async def check_statistics(open_engine: OpenEngine) -> None:
    """Counts only grow, and say what was done."""
    async with open_engine() as caller:
        before = await caller.until_quiet()
        assert before.kv_blocks > 0
        await caller.run("counted", prompt=[9] * 5, tokens=8)
        held = caller.add("held", tokens=8, credit=1)
        await caller.until(lambda: len(held.token_ids) == 1)
        during = await caller.counts()
        assert (during.running, during.paused, during.waiting) == (1, 1, 0)
        caller.abort(held)
        after = await caller.until_quiet()
        assert after.requests_added == before.requests_added + 2
        assert after.requests_finished == before.requests_finished + 1
        assert after.prompt_tokens == before.prompt_tokens + 5 + 3
        assert after.output_tokens == before.output_tokens + 8 + 1
        assert after.step > before.step


async def check_structured_outputs(open_engine: OpenEngine) -> None:
    """What is asked to match a form matches it, replayed as well; what cannot fails alone."""
    form = StructuredOutputs.regex("[a-f]{8,12}-(yes|no)")
    decode = byte_tokenizer().decode
    async with open_engine() as caller:
        free = caller.add("free", tokens=40)
        bad = caller.add("bad", tokens=40, form=StructuredOutputs.json({"not": {}}))
        whole = await caller.run("whole", tokens=40, form=form, eos=[EOS])
        text = decode([token_id for token_id in whole if token_id != EOS])
        assert re.fullmatch(form.text, text)
        for cut in range(len(whole)):
            again = await caller.run(
                f"cut{cut}", tokens=40, form=form, eos=[EOS], output=whole[:cut]
            )
            assert again == whole
        await caller.until(lambda: free.end is not None and bad.end is not None)
        assert bad.end is not None
        assert bad.end.error_code == "invalid_parameter"
        assert "not supported" in bad.end.error
        del caller.streams["free"], caller.streams["bad"]
        await caller.until_quiet()


CHECKS = (
    check_structured_outputs,
    check_equal_seeds_bring_equal_tokens,
    check_abort_frees_blocks,
    check_credit_pauses,
    check_replay_continues_identically,
    check_a_bad_add_fails_alone,
    check_resync_after_a_link_break,
    check_a_finish_that_was_lost_comes_again,
    check_a_newer_attempt_replaces_the_older,
    check_utilities,
    check_statistics,
)
