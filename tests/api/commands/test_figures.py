"""JSON to where it was asked for, and nowhere that cannot be written."""

import json
import math
import pathlib

import pytest

from triolet.api.commands.figures import check_target, shows_table, write_figures
from triolet.engine.errors import InvalidParameter

FIGURES = {"a": 1.5, "none": math.nan, "many": (math.inf, {2: "x"}), "yes": True}


def test_a_file_gets_them_with_null_for_what_is_no_number(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "f.json"
    check_target(str(path))
    write_figures(str(path), FIGURES)
    expected = {"a": 1.5, "none": None, "many": [None, {"2": "x"}], "yes": True}
    assert json.loads(path.read_text()) == expected
    assert shows_table(str(path))


def test_stdout_gets_them_instead_of_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    check_target("-")
    write_figures("-", {"a": 1})
    assert json.loads(capsys.readouterr().out) == {"a": 1}
    assert not shows_table("-")


def test_without_a_target_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    check_target("")
    write_figures("", {"a": 1})
    assert capsys.readouterr().out == ""
    assert shows_table("")


def test_a_target_that_cannot_be_written_is_named(tmp_path: pathlib.Path) -> None:
    for target, word in ((tmp_path, "is a folder"), (tmp_path / "no" / "f.json", "is no folder")):
        with pytest.raises(InvalidParameter, match=word):
            check_target(str(target))
