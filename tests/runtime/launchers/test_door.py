"""Doors of heads: what is wrong is named before anything is started."""

import importlib.util
import pathlib
from typing import Any

import pytest

from triolet.engine.config import EngineSettings
from triolet.engine.errors import InvalidParameter
from triolet.engine.model.bundled import bundled_model_folder
from triolet.runtime.config import HostSettings, RuntimeSettings
from triolet.runtime.hosts.host_keys import write_cluster_keys
from triolet.runtime.hosts.model_hash import model_hash
from triolet.runtime.launchers.door import make_join_plan


@pytest.fixture
def key(tmp_path: pathlib.Path) -> str:
    write_cluster_keys(tmp_path / "key")
    return str(tmp_path / "key")


def settings_with(**hosts: Any) -> RuntimeSettings:
    engine = EngineSettings(model=str(bundled_model_folder()))
    return RuntimeSettings(engine=engine, engines=0, hosts=HostSettings(join_port=7400, **hosts))


def test_the_door_of_a_head_is_at_its_advertised_address(key: str) -> None:
    plan = make_join_plan(settings_with(key_file=key, advertise="10.0.0.1"))
    assert plan.endpoint == "tcp://10.0.0.1:7400"
    assert plan.model_hash == model_hash(str(bundled_model_folder()))


@pytest.mark.parametrize("missing", ["key", "advertise"])
def test_a_door_needs_a_key_and_an_address(key: str, missing: str) -> None:
    given = {"key_file": key, "advertise": "10.0.0.1"}
    del given["key_file" if missing == "key" else missing]
    with pytest.raises(InvalidParameter, match=f"{missing} is missing"):
        make_join_plan(settings_with(**given))


def test_no_engine_of_its_own_is_for_a_head_alone() -> None:
    with pytest.raises(InvalidParameter, match="engines must be at least 1, not 0, unless hosts"):
        RuntimeSettings(engine=EngineSettings(), engines=0)


def test_a_door_for_hosts_of_this_machine_needs_neither_key_nor_address(key: str) -> None:
    engine = EngineSettings(model=str(bundled_model_folder()))
    hosts = HostSettings(launcher="local")
    first, second = (
        make_join_plan(RuntimeSettings(engine=engine, engines=0, hosts=hosts)) for _ in range(2)
    )
    assert first.endpoint == "tcp://127.0.0.1:0"
    assert first.launch is not None
    assert first.keys != second.keys, "those of a run are its own"
    assert make_join_plan(settings_with(key_file=key, advertise="10.0.0.1")).launch is None


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is here")
def test_a_door_for_hosts_of_a_cluster_needs_the_package_of_that() -> None:
    with pytest.raises(InvalidParameter, match=r"pip install 'triolet\[ray\]'"):
        make_join_plan(settings_with(launcher="ray", advertise="10.0.0.1"))
