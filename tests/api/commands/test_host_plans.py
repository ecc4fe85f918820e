"""Plans of hosts: what is wrong is named before anything is started."""

import math
import os
import pathlib
import sys
from typing import Any

import pytest

from triolet.api.commands.host_plans import make_host_plan
from triolet.engine.errors import InvalidParameter
from triolet.runtime.hosts.host_keys import make_cluster_keys, write_cluster_keys


@pytest.fixture
def key(tmp_path: pathlib.Path) -> str:
    write_cluster_keys(tmp_path / "key")
    return str(tmp_path / "key")


def plan_with(key_file: str, **changes: Any) -> Any:
    options: dict[str, Any] = {
        "join": ("10.0.0.1:7401",),
        "key": key_file,
        "name": "b",
        "engines": 2,
        "spare_engines": 1,
        "drain_grace": 5.0,
        "device": "cpu",
        "threads": 0,
    }
    return make_host_plan(None, **{**options, **changes})


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        ("10.0.0.1:7401", "tcp://10.0.0.1:7401"),
        ("head", "tcp://head:7400"),
        ("[fe80::1]:7401", "tcp://[fe80::1]:7401"),
        ("[fe80::1]", "tcp://[fe80::1]:7400"),
    ],
)
def test_a_head_is_named_by_host_and_port(key: str, address: str, endpoint: str) -> None:
    plan = plan_with(key, join=(address,))
    assert plan.heads == [endpoint]
    assert (plan.name, plan.engines, plan.spare_engines) == ("b", 2, 1)


def test_a_host_without_a_name_has_that_of_its_machine(key: str) -> None:
    assert plan_with(key, name="").name


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"join": ()}, "join is missing: HEAD:PORT"),
        ({"join": ("head:x",)}, "join head:x is wrong: the port is not a number"),
        ({"join": ("head:70000",)}, "join head:70000 is wrong"),
        ({"drain_grace": -1.0}, "drain_grace must be at least 0, not -1.0"),
        ({"key": ""}, "key is missing: hosts join with keys"),
        ({"key": "/nowhere"}, "key /nowhere cannot be read"),
        ({"engines": 0}, "engines must be at least 1, not 0"),
        ({"device": "tpu"}, "device must be one of"),
    ],
)
def test_what_is_wrong_is_named(key: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidParameter, match=reason):
        plan_with(key, **changes)


def test_keys_of_a_launcher_come_on_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = make_cluster_keys().make_ticket()
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin, os.fdopen(writing, "w") as launcher:
        monkeypatch.setattr(sys, "stdin", stdin)
        launcher.write(ticket.text() + "\n")
        launcher.flush()
        plan = plan_with("-")
    assert plan.keys == ticket
    assert plan.patience_s < math.inf


def test_stdin_must_be_a_pipe(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    with open(key) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(InvalidParameter, match="key on stdin is for a pipe"):
            plan_with("-")
