"""Frames of a completion: what is behind any id is what an undisturbed reader gets behind it."""

from random import Random
from typing import Any

import attrs
import pytest

from triolet.api.completions.cursor import NAMED_CHOICES_MAX, Answer, CompletionCursor
from triolet.api.completions.record import ChoiceRecord, CompletionRecord
from triolet.api.errors import ApiError, engine_error
from triolet.api.openai.chat import AnsweredPrompt, ChatAnswer, ChatMessages
from triolet.api.openai.completions import CompletionsAnswer
from triolet.api.openai.logprobs import LogprobFormatter
from triolet.engine.messages import FinishReason
from triolet.runtime.text.outputs import GenerationOutput, Usage

from ..answers import THINKING_CALLS, TOOLS
from ..chunks import as_bytes, frames_of, said_of
from ..fakes import make_logprobs

ID = "chatcmpl_00abc"
PROMPT = AnsweredPrompt([7, 8, 9], "ab")
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>'
TEXTS = [
    ["Well", "", ", \n", *CALL, " ", "\n", *CALL, "\n and", " <tool", "_", "\ufffd"],
    ["<tool_call>", "{</", "think>\nno call", ""],
]
THOUGHTFUL = attrs.evolve(TOOLS, answer_format=THINKING_CALLS)
FORMATTER = LogprobFormatter(spell=lambda ids: [b"%d" % i for i in ids], top=1)
PLAIN = ChatAnswer(completion_id=ID, created=5, model="toy")
ANSWERS: dict[str, Answer] = {
    "plain": PLAIN,
    "token ids": attrs.evolve(PLAIN, with_token_ids=True),
    "logprobs": attrs.evolve(PLAIN, formatter=FORMATTER),
    "tools": attrs.evolve(PLAIN, messages=ChatMessages(ID, TOOLS)),
    "reasoning": attrs.evolve(PLAIN, messages=ChatMessages(ID, THOUGHTFUL, True, True)),
    "tools with all": attrs.evolve(
        PLAIN,
        messages=ChatMessages(ID, attrs.evolve(TOOLS, is_parallel=False)),
        formatter=FORMATTER,
        with_token_ids=True,
    ),
    "completions": CompletionsAnswer(completion_id=ID, created=5, model="toy"),
    "completions with all": CompletionsAnswer(
        completion_id=ID,
        created=5,
        model="toy",
        formatter=FORMATTER,
        echoes_logprobs=True,
        with_token_ids=True,
        prompt_formatter=FORMATTER,
    ),
}


@attrs.define(eq=False)
class Writer:
    """A record, and what is yet to be added to it: each token of each choice, then each end."""

    choices: list[list[str]]
    with_logprobs: bool = True
    record: CompletionRecord = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        places = range(len(self.choices))
        self.record = CompletionRecord([ChoiceRecord(index, PROMPT) for index in places])

    def has_more(self, index: int) -> bool:
        return self.record.choices[index].finish_reason is None

    def write(self, index: int, count: int, *, with_end: bool = True) -> None:
        """So many tokens more of a choice; the last text is what its end completes."""
        choice, texts = self.record.choices[index], self.choices[index]
        begin = len(choice.token_ids)
        ids = list(range(begin, min(begin + count, len(texts) - 1)))
        is_end = with_end and begin + len(ids) == len(texts) - 1
        said = texts[begin : begin + len(ids)] + texts[-1:] * is_end
        output = GenerationOutput("".join(said), ids, begin + len(ids), index=index, texts=said)
        if ids and self.with_logprobs:
            output.logprobs = make_logprobs(ids, 1)
        if is_end:
            output.finish_reason, output.stop_reason = FinishReason.STOP, "END"
        choice.append(output)
        if not any(map(self.has_more, range(len(self.choices)))):
            self.record.end(Usage(3, sum(len(each) - 1 for each in self.choices)))


def read_whole(answer: Answer, record: CompletionRecord, behind: str | None = None) -> list[Any]:
    cursor = CompletionCursor(record, answer, True)
    if behind is not None:
        cursor.go_behind(behind)
    frames = list(frames_of(cursor.take()))
    assert cursor.is_done
    assert not cursor.take()
    return frames


def read_as_it_comes(answer: Answer, writer: Writer, random: Random) -> Any:
    """A reader that takes after each of some turns."""
    cursor = CompletionCursor(writer.record, answer, True)
    frames = list(frames_of(cursor.take()))
    while not writer.record.has_ended:
        index, count = random.randrange(len(writer.choices)), random.randrange(9)
        if writer.has_more(index):
            writer.write(index, count, with_end=count > 1)
            cursor.note(index)
            assert cursor.is_ready
            frames += frames_of(cursor.take())
    assert cursor.is_done
    return frames


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("seed", range(40))
def test_behind_any_id_comes_the_rest(name: str, seed: int) -> None:
    answer, random, count = ANSWERS[name], Random(seed), 1 + seed % 2
    with_logprobs = "all" in name or name == "logprobs"
    writer = Writer(TEXTS[:count], with_logprobs)
    frames = read_as_it_comes(answer, writer, random)
    ids = [number for number, _ in frames]
    assert len(set(ids)) == len(ids)
    assert ids[-2:] == ["usage", "done"]
    wanted = said_of(list(frames_of(as_bytes(frames))))
    whole = read_whole(answer, writer.record)
    assert said_of(list(frames_of(as_bytes(whole)))) == wanted
    at = random.randrange(len(frames))
    rest = read_whole(answer, writer.record, ids[at])
    assert not set(ids[: at + 1]) & {number for number, _ in rest}
    assert said_of(list(frames_of(as_bytes(frames[: at + 1] + rest)))) == wanted


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("seed", range(20))
def test_an_id_says_the_same_of_a_stream_that_was_merged_otherwise(name: str, seed: int) -> None:
    answer, random = ANSWERS[name], Random(seed)
    with_logprobs = "all" in name or name == "logprobs"
    read: list[list[Any]] = []
    for _ in range(2):
        writer = Writer(TEXTS, with_logprobs)
        read.append(read_as_it_comes(answer, writer, random))
    first, second = ([number for number, _ in frames] for frames in read)
    shared = [number for number in first if number in second]
    at = random.choice(shared)
    one, other = (
        said_of(list(frames_of(as_bytes(frames[: ids.index(at) + 1]))))
        for frames, ids in zip(read, (first, second), strict=True)
    )
    assert one == other


def ended(count: int = 2) -> CompletionRecord:
    writer = Writer((TEXTS * count)[:count], with_logprobs=False)
    for index in range(count):
        writer.write(index, 999)
    return writer.record


def test_ids_state_how_far_each_choice_is() -> None:
    writer = Writer([["a", "b", "\ufffd"], ["c", ""]], with_logprobs=False)
    cursor = CompletionCursor(writer.record, PLAIN, False)
    ids = [number for number, _ in frames_of(cursor.take())]
    for index, count, with_end in ((0, 1, False), (1, 1, True), (0, 1, False), (0, 0, True)):
        writer.write(index, count, with_end=with_end)
        cursor.note(index)
        ids += [number for number, _ in frames_of(cursor.take())]
    assert ids == ["0.-", "0.0", "1.0", "1.1r", "1.1e", "2.1e", "2r.1e", "2e.1e", "done"]


@pytest.mark.parametrize(
    "position",
    ["", "1", "1.1.1", "x.1", "1.-1", "1.+1", "1.1x", "1.1 ", "1.9999999999", "-1.0", "1r.0",
     "9999.0", "0.4", "0.2e", "Usage", "1,1", "\u0661.1"],
)  # fmt: skip
def test_what_was_no_id_is_refused(position: str) -> None:
    cursor = CompletionCursor(ended(), PLAIN, True)
    with pytest.raises(ApiError) as caught:
        cursor.go_behind(position)
    assert (caught.value.status, caught.value.param) == (400, "starting_after")


@pytest.mark.parametrize("position", ["2.0", "1r.0", "1e.0", "usage", "done"])
def test_nothing_is_behind_what_has_not_come(position: str) -> None:
    writer = Writer(TEXTS)
    writer.write(0, 1)
    cursor = CompletionCursor(writer.record, PLAIN, True)
    with pytest.raises(ApiError, match="beyond"):
        cursor.go_behind(position)


def test_frames_of_many_choices_have_no_ids_and_are_read_on_all_the_same() -> None:
    record = ended(NAMED_CHOICES_MAX + 1)
    cursor = CompletionCursor(record, PLAIN, True)
    begin = cursor.take(1)
    other = CompletionCursor(record, PLAIN, True)
    other.go_behind(cursor.position)
    whole = CompletionCursor(record, PLAIN, True).take()
    assert b"id:" not in whole
    assert said_of(list(frames_of(begin + other.take()))) == said_of(list(frames_of(whole)))


def test_behind_all_that_there_is_nothing_is_ready() -> None:
    writer = Writer(TEXTS)
    cursor = CompletionCursor(writer.record, PLAIN, True)
    assert cursor.is_ready, "the openings"
    writer.write(0, 1)
    cursor.take()
    behind = CompletionCursor(writer.record, PLAIN, True)
    behind.go_behind(cursor.position)
    assert not behind.is_ready
    writer.write(1, 1)
    behind.note(1)
    assert behind.is_ready


def test_a_failure_comes_behind_what_was_added_and_again() -> None:
    writer = Writer([["a", "b", ""]], with_logprobs=False)
    writer.write(0, 1)
    writer.record.end(engine_error())
    writer.record.end(Usage(1, 1))
    for behind, count in ((None, 3), ("0", 2), ("1", 1), ("2", 1)):
        cursor = CompletionCursor(writer.record, PLAIN, True)
        if behind is not None:
            cursor.go_behind(behind)
        data = cursor.take()
        assert cursor.is_done
        assert len(data.strip().split(b"\n\n")) == count
        assert b'"error"' in data.strip().split(b"\n\n")[-1]


def test_pieces_of_bounded_size() -> None:
    record = ended()
    cursor = CompletionCursor(record, PLAIN, True)
    frames: list[Any] = []
    while not cursor.is_done:
        frames += frames_of(cursor.take(2))
        assert cursor.position == frames[-1][0]
    whole = read_whole(PLAIN, record)
    assert len(frames) > len(whole)
    assert said_of(frames) == said_of(whole)


def test_from_where_a_choice_is_inexact_is_said_with_that_token() -> None:
    record = ended(1)
    record.choices[0].inexact_from = 3
    for behind, notes in ((None, 1), ("3", 1), ("4", 0)):
        frames = read_whole(PLAIN, record, behind)
        chunks = [chunk["choices"][0] for _, chunk in frames[:-2]]
        assert [c["runtime"] for c in chunks if "runtime" in c] == [{"inexact_from": 3}] * notes


def read_tokens(writer: Writer, **options: Any) -> bytes:
    """Token by token."""
    cursor = CompletionCursor(writer.record, PLAIN, True, **options)
    data = cursor.take()
    while not writer.record.has_ended:
        for index in range(len(writer.choices)):
            if writer.has_more(index):
                writer.write(index, 1)
                cursor.note(index)
        data += cursor.take()
    return data


def test_frames_without_ids_are_data_alone() -> None:
    frames = read_tokens(Writer(TEXTS), has_ids=False).removesuffix(b"\n\n").split(b"\n\n")
    assert len(frames) > len(TEXTS[0])
    assert all(frame.startswith(b"data: ") and b"\n" not in frame for frame in frames)


@pytest.mark.parametrize("name", ["plain", "completions with all"])
def test_every_chunk_has_the_usage_so_far(name: str) -> None:
    writer = Writer(TEXTS, with_logprobs="all" in name)
    cursor = CompletionCursor(writer.record, ANSWERS[name], True, continuous_usage=True)
    frames = list(frames_of(cursor.take()))
    while not writer.record.has_ended:
        for index in range(2):
            if writer.has_more(index):
                writer.write(index, 1)
                cursor.note(index)
                frames += frames_of(cursor.take())
    *chunks, _ = frames
    for number, chunk in chunks[:-1]:
        usage = chunk["usage"]
        said = sum(int(place.rstrip("re") or 0) for place in number.replace("-", "").split("."))
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, said)
        assert usage["total_tokens"] == 3 + said
    last = [chunk["usage"]["completion_tokens"] for _, chunk in chunks[-2:]]
    assert last == [sum(len(texts) - 1 for texts in TEXTS)] * 2
