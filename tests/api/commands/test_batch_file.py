"""Requests are read line by line, and answers are taken up where a death left them."""

import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from triolet.api.commands.batch_file import (
    AnswerFile,
    BatchFileError,
    answer_line,
    check_files,
    read_requests,
)
from triolet.engine.errors import InvalidParameter

GOOD: dict[str, Any] = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/responses",
    "body": {"input": "hi"},
}
WHOLE = answer_line("a", {"status_code": 200}, None)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "batch.jsonl"


@pytest.fixture
def opened(path: pathlib.Path) -> Iterator[AnswerFile]:
    answers = AnswerFile.open(path)
    yield answers
    answers.close()


def done(path: pathlib.Path) -> set[str]:
    answers = AnswerFile.open(path)
    answers.close()
    return answers.done


def test_requests_are_read_in_order_and_empty_lines_passed_over(path: pathlib.Path) -> None:
    path.write_text(f"{json.dumps(GOOD)}\n\n{json.dumps({**GOOD, 'custom_id': 'b'})}")
    assert [each.custom_id for each in read_requests(path)] == ["a", "b"]
    assert next(read_requests(path)).body == {"input": "hi"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: Input data was truncated"),
        ("[]", "line 2: must be a JSON object"),
        (json.dumps(GOOD), "line 2: custom_id 'a' stands there twice"),
        (json.dumps({**GOOD, "custom_id": 5}), "custom_id must be text"),
        (json.dumps({**GOOD, "custom_id": "b", "method": "GET"}), "method must be POST"),
        (json.dumps({**GOOD, "custom_id": "b", "url": "/v1/embeddings"}), "url must be one of"),
        (json.dumps({**GOOD, "custom_id": "b", "body": "x"}), "body must be an object"),
        (json.dumps({**GOOD, "custom_id": "b", "body": {"stream": True}}), "must not ask for"),
    ],
)
def test_a_wrong_line_is_named(path: pathlib.Path, line: str, words: str) -> None:
    path.write_text(f"{json.dumps(GOOD)}\n{line}\n")
    with pytest.raises(BatchFileError, match=words) as caught:
        list(read_requests(path))
    assert str(caught.value).startswith(f"{path}: line 2: ")


def test_files_that_will_not_do(path: pathlib.Path) -> None:
    with pytest.raises(BatchFileError, match="cannot be read: No such file"):
        check_files(path, path)
    path.write_text(json.dumps(GOOD))
    with pytest.raises(InvalidParameter, match="another file"):
        check_files(path, path)
    assert check_files(path, path.with_name("out")) == 1
    with pytest.raises(BatchFileError, match="cannot be written: Is a directory"):
        AnswerFile.open(path.parent)


@pytest.mark.parametrize("cut", range(len(WHOLE) + 1))
def test_a_torn_last_line_is_cut_off_wherever_it_was_torn(path: pathlib.Path, cut: int) -> None:
    for before in (b"", answer_line("b", {"status_code": 200}, None)):
        path.write_bytes(before + WHOLE[:cut])
        found = {"b"} if before else set()
        found |= {"a"} if cut == len(WHOLE) else set()
        assert done(path) == found
        assert path.read_bytes() == before + (WHOLE if cut == len(WHOLE) else b"")


@pytest.mark.parametrize("content", [b"my notes", b"my notes\n", b'{"a": 1}\n' + WHOLE])
def test_a_file_of_something_else_is_left_alone(path: pathlib.Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(BatchFileError, match="name another file"):
        AnswerFile.open(path)
    assert path.read_bytes() == content


def test_answers_are_added_by_one_at_a_time(path: pathlib.Path, opened: AnswerFile) -> None:
    opened.write("a", WHOLE)
    assert path.read_bytes() == WHOLE
    with pytest.raises(BatchFileError, match="another batch writes to it"):
        AnswerFile.open(path)


def test_a_full_disk_is_one_sentence() -> None:
    answers = AnswerFile(pathlib.Path("out"), os.open("/dev/full", os.O_WRONLY))
    with pytest.raises(BatchFileError, match="out: cannot be written: No space left on device"):
        answers.write("a", WHOLE)
    answers.close()
