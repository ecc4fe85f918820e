"""Event numbers and ids are a function of the tokens, however they are pulled and resumed."""

import pathlib
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.responses.record import ResponseRecord
from triolet.api.responses.record_reader import RecordReader
from triolet.engine.messages import FinishReason, RequestOutput
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.frontend.generation import GenerationStream
from triolet.runtime.frontend.output_collector import OutputCollector
from triolet.runtime.text.detokenizer import OutputProcessor
from triolet.runtime.text.tokenizer import Tokenizer

from ...runtime.model_folders import byte_level_tokenizer, write_folder
from ..fakes import FakeFlow, FakeGenerator
from ..records import COMPLETED, check_invariants, make_record, taken

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "é🙂"}}\n</tool_call>'
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
# Each is made of one token or more; they are cut in the midst of characters, too.
WORDS = ["Well, ", "é🙂", "the cat", CALL, CALL[:40], "<tool_call>no", "\n"]
STOP = "xy"


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: pathlib.Path = tmp_path_factory.mktemp("byte-level")
    return Tokenizer.load(write_folder(folder, byte_level_tokenizer()))


@attrs.define(eq=False)
class Source:
    """One choice of a request: its tokens in, as a frontend takes them from an engine."""

    processor: OutputProcessor
    collector: OutputCollector
    waiting: list[int]
    # The end comes by itself, not with the last token.
    ends_apart: bool = False

    def put(self, count: int) -> None:
        """So many tokens come at once."""
        if self.collector.finished:
            return
        ids, self.waiting = self.waiting[:count], self.waiting[count:]
        self.collector.token_ids.extend(ids)
        is_end = not (self.waiting or (ids and self.ends_apart))
        is_first = self.processor.token_count == 0 and not self.collector.tokens_waiting
        if is_first or is_end or self.processor.searches:
            self.collector.settle()
            self.collector.put(self.processor.handle_output(self._output(ids, is_end=is_end)))
        elif ids:
            self.collector.put_tokens(len(ids))

    def _output(self, ids: list[int], *, is_end: bool) -> RequestOutput:
        return RequestOutput(
            request_id="r",
            attempt=0,
            first_index=self.processor.token_count,
            token_ids=ids,
            finish_reason=FinishReason.LENGTH if is_end else None,
        )


@attrs.define(eq=False)
class Client:
    """Reads one response, is cut, and comes back with the last number that it saw."""

    events: list[Any] = attrs.field(factory=list)
    reader: RecordReader | None = None

    def take(self, record: ResponseRecord, characters_max: int) -> None:
        if self.reader is None:
            last = self.events[-1]["sequence_number"] if self.events else None
            self.reader = RecordReader.behind(record, last)
        self.events += taken(self.reader, characters_max)


def make_sources(
    tokenizer: Tokenizer, params: SamplingParams, answers: list[list[int]]
) -> tuple[list[Source], GenerationStream]:
    sources = []
    for ids in answers:
        processor = OutputProcessor.make(tokenizer, params)
        sources.append(Source(processor, OutputCollector("r", processor), list(ids)))
    generator = FakeGenerator()
    flows = [FakeFlow(source.collector, generator) for source in sources]
    return sources, GenerationStream("r", [1], flows)


def pull(stream: GenerationStream, records: list[ResponseRecord]) -> None:
    while (output := stream.take_nowait()) is not None:
        records[output.index].append(output)
        check_invariants(records[output.index])
        if output.finish_reason is not None:
            records[output.index].end(COMPLETED)


def rebuilt(tokenizer: Tokenizer, params: SamplingParams, ids: list[int], **values: Any) -> Any:
    """From the request and the tokens, one by one; and what a reader sees that never waits."""
    [source], stream = make_sources(tokenizer, params, [ids])
    source.ends_apart = True
    record, client = make_record(**values), Client()
    while record.ending is None:
        source.put(1)
        pull(stream, [record])
        client.take(record, 2**30)
    return record, client.events


def said(events: list[Any]) -> dict[Any, list[Any]]:
    """Of each item its deltas and their tokens, joined; and all other events."""
    found: dict[Any, list[Any]] = {"others": [e for e in events if "delta" not in e]}
    for event in events:
        if "delta" in event:
            of_item = found.setdefault(event["item_id"], ["", []])
            of_item[0] += event["delta"]
            of_item[1] += event.get("token_ids", [])
    return found


# A choice's tokens come, its writer pulls, or a client takes or is cut.
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["put", "pull", "take", "cut"]), st.integers(0, 1), st.integers(1, 9)
    ),
    max_size=40,
)
ANSWER = st.lists(st.sampled_from([*WORDS, STOP]), min_size=1, max_size=6).map("".join)


@given(
    st.lists(ANSWER, min_size=1, max_size=2), MOVES, st.booleans(), st.booleans(), st.booleans(),
    st.integers(0, 3),
)  # fmt: skip
def test_numbers_ids_and_deltas_are_those_of_the_tokens(
    tokenizer: Tokenizer,
    answers: list[str],
    moves: list[tuple[str, int, int]],
    has_tools: bool,
    token_ids: bool,
    has_stop: bool,
    cut_off: int,
) -> None:
    values: dict[str, Any] = {"runtime": {"token_ids": token_ids}}
    values |= {"tools": TOOLS} if has_tools else {}
    params = SamplingParams(stop=(STOP,) if has_stop else ())
    encoded = [tokenizer.encode(answer, add_special_tokens=False) for answer in answers]
    ids_of = [ids[: len(ids) - cut_off] or ids for ids in encoded]
    sources, stream = make_sources(tokenizer, params, ids_of)
    records = [make_record(**values) for _ in sources]
    # Two of each, at paces of their own.
    clients = [[Client(), Client()] for _ in sources]
    for move, place, size in moves:
        index = place % len(sources)
        match move:
            case "put":
                sources[index].put(size)
            case "pull":
                pull(stream, records)
            case "take":
                clients[index][size % 2].take(records[index], size)
            case "cut":
                clients[index][size % 2].reader = None
    for index, source in enumerate(sources):
        source.put(10**6)
        pull(stream, records)
        again, expected = rebuilt(tokenizer, params, ids_of[index], **values)
        assert list(records[index].numbers) == list(again.numbers)
        for client in clients[index]:
            client.take(records[index], 2**30)
            check_stream(client.events, again, expected)


def check_stream(heard: list[Any], again: ResponseRecord, expected: list[Any]) -> None:
    """Whether a client has what the rebuilt record says, and may go on there from any event."""
    assert said(heard) == said(expected)
    numbers = [event["sequence_number"] for event in heard]
    assert numbers == sorted(set(numbers))
    for seen, number in enumerate(numbers, 1):
        rest = taken(RecordReader.behind(again, number))
        assert said([*heard[:seen], *rest]) == said(expected)
