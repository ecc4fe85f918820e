"""Key files: written once and for their owner alone, read back, and refused with the reason."""

import json
import os
import pathlib

import pytest

from triolet.engine.errors import InvalidParameter
from triolet.runtime.hosts.host_keys import (
    RETIRING_MAX,
    make_cluster_keys,
    parse_cluster_keys,
    read_cluster_keys,
    retire_cluster_keys,
    rotate_cluster_keys,
    write_cluster_keys,
)


def test_keys_are_read_as_they_were_written(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "key"
    write_cluster_keys(path)
    assert path.stat().st_mode & 0o777 == 0o600
    keys = read_cluster_keys(path, is_head=True)
    assert keys.head != keys.hosts
    assert keys.head.secret.hex() in path.read_text()
    assert keys.head.secret.hex() not in repr(keys)


def test_a_file_is_not_written_over(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "key"
    write_cluster_keys(path)
    before = path.read_text()
    with pytest.raises(InvalidParameter, match=r"key cannot be made: File exists"):
        write_cluster_keys(path)
    assert path.read_text() == before


def test_a_host_needs_no_secret_of_the_head(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "key"
    write_cluster_keys(path)
    content = json.loads(path.read_text())
    del content["head"]["secret"]
    path.write_text(json.dumps(content))
    assert read_cluster_keys(path, is_head=False).hosts.secret
    with pytest.raises(InvalidParameter, match="is no file of"):
        read_cluster_keys(path, is_head=True)


def test_a_pair_of_hosts_is_rotated_and_then_retired(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "key"
    write_cluster_keys(path)
    first = read_cluster_keys(path, is_head=True)
    rotate_cluster_keys(path)
    second = read_cluster_keys(path, is_head=True)
    assert second.head == first.head
    assert second.let_in == (second.hosts.public, first.hosts.public)
    rotate_cluster_keys(path)
    third = read_cluster_keys(path, is_head=True)
    assert third.let_in == (third.hosts.public, *second.let_in)
    assert path.stat().st_mode & 0o777 == 0o600
    assert third.make_ticket().retiring == ()
    retire_cluster_keys(path)
    assert read_cluster_keys(path, is_head=True).let_in == (third.hosts.public,)
    assert list(tmp_path.iterdir()) == [path]
    for _ in range(RETIRING_MAX):
        rotate_cluster_keys(path)
    with pytest.raises(InvalidParameter, match="has 4 pairs to --retire first"):
        rotate_cluster_keys(path)


def test_what_cannot_be_rotated_is_as_it_was(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(InvalidParameter, match="cannot be read: No such file"):
        rotate_cluster_keys(path)
    write_cluster_keys(path)
    (tmp_path / f".key.{os.getpid()}").mkdir()
    before = path.read_text()
    with pytest.raises(InvalidParameter, match="key cannot be written: File exists"):
        rotate_cluster_keys(path)
    assert path.read_text() == before


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"head": {"public": "00"}, "hosts": {}}', "\xff", "9" * 5000]
)
def test_what_is_no_file_of_keys_is_refused_without_its_bytes(
    tmp_path: pathlib.Path, content: str
) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(InvalidParameter, match="is no file of `triolet keygen`") as caught:
        read_cluster_keys(path, is_head=False)
    assert caught.value.__cause__ is None


def test_a_file_that_others_may_read_or_that_is_missing_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(InvalidParameter, match="cannot be read: No such file"):
        read_cluster_keys(path, is_head=False)
    write_cluster_keys(path)
    path.chmod(0o640)
    with pytest.raises(InvalidParameter, match="can be read by others: chmod 600"):
        read_cluster_keys(path, is_head=False)


def test_a_ticket_is_a_line_with_a_pair_of_its_own_and_no_secret_of_the_head() -> None:
    keys = make_cluster_keys()
    ticket = keys.make_ticket()
    text = ticket.text()
    assert (ticket.head_public, "\n" in text) == (keys.head_public, False)
    assert ticket.hosts.public != keys.hosts.public
    assert keys.head_secret.hex() not in text
    assert parse_cluster_keys(text.encode() + b"\n", "stdin", is_head=False) == ticket
    with pytest.raises(InvalidParameter, match="stdin is no file of"):
        parse_cluster_keys(text.encode(), "stdin", is_head=True)
