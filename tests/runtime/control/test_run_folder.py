"""A run's folder: private, found again, gone afterwards; a dead owner's is cleared away."""

import json
import os
import pathlib
import re

import pytest

from triolet.runtime.control.run_folder import base_folder, find_run, live_runs, make_run_folder
from triolet.runtime.errors import RunNotFound


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_a_run_is_found_by_its_id_and_leaves_nothing() -> None:
    with make_run_folder("abcd", url="http://x", model="m", version="1") as folder:
        assert folder.path.stat().st_mode & 0o777 == 0o700
        assert find_run().facts == folder.facts
        assert find_run("ab").path == folder.path
        with pytest.raises(RunNotFound, match="abcd"):
            find_run("zz")
    assert list(base_folder().iterdir()) == []


def test_two_runs_must_be_told_apart() -> None:
    with (
        make_run_folder("aa", url="http://x:1", model="m", version=""),
        make_run_folder("bb", url="http://x:2", model="n", version=""),
    ):
        with pytest.raises(RunNotFound, match=r"^name one of the running servers") as caught:
            find_run()
        lines = str(caught.value).splitlines()[1:]
        forms = [r"  aa  http://x:1  m, up for \d+ (s|min|h)", r"  bb  http://x:2  n, up for "]
        assert all(re.match(form, line) for form, line in zip(forms, lines, strict=True))
        with pytest.raises(RunNotFound, match="not exactly one is, or begins with, 'c'"):
            find_run("c")
        for address in ("2", "x:2", "http://x:2", "http://x:2/"):
            assert find_run(address).facts.run_id == "bb"
        assert find_run("b").facts.run_id == "bb"
        assert [run.facts.run_id for run in live_runs()] == ["aa", "bb"]


def test_what_a_dead_owner_left_is_removed_and_never_found() -> None:
    with make_run_folder("dead", url="", model="", version="") as folder:
        facts = json.loads((folder.path / "run.json").read_text())
        facts["start_ticks"] += 1  # the pid was used again by another process
        (folder.path / "run.json").write_text(json.dumps(facts))
        with pytest.raises(RunNotFound):
            find_run()
        with make_run_folder("next", url="", model="", version=""):
            assert os.listdir(base_folder()) == ["next"]


def test_a_folder_in_the_making_is_left_alone(runtime_folder: pathlib.Path) -> None:
    making = base_folder() / ".making-other"
    making.mkdir(parents=True)
    with make_run_folder("mine", url="", model="", version=""):
        assert making.is_dir()
        assert find_run().facts.run_id == "mine"


def test_what_is_no_run_is_left_alone() -> None:
    """Somebody keeps a folder of his own there, or the base has become a folder of his."""
    kept = base_folder() / "thesis"
    kept.mkdir(parents=True)
    (kept / "chapter-1").write_text("years of work")
    (base_folder() / "notes").write_text("")
    with make_run_folder("mine", url="", model="", version=""):
        assert sorted(os.listdir(base_folder())) == ["mine", "notes", "thesis"]
    # A run of which a removal left half is one.
    (kept / "chapter-1").rename(kept / "control.sock")
    with make_run_folder("mine", url="", model="", version=""):
        assert sorted(os.listdir(base_folder())) == ["mine", "notes"]


def test_a_link_is_not_followed(tmp_path: pathlib.Path) -> None:
    """In a temporary folder of everybody's, somebody else may have put one there."""
    home = tmp_path / "home"
    home.mkdir()
    base_folder().symlink_to(home)
    with (
        pytest.raises(PermissionError, match="set XDG_RUNTIME_DIR"),
        make_run_folder("mine", url="", model="", version=""),
    ):
        pass
    assert list(home.iterdir()) == []


def test_a_folder_that_others_may_write_to_is_refused() -> None:
    base_folder().mkdir(mode=0o700)
    base_folder().chmod(0o777)
    with (
        pytest.raises(PermissionError, match="chmod 700"),
        make_run_folder("mine", url="", model="", version=""),
    ):
        pass
