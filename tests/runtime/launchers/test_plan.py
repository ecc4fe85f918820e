"""Which launcher the settings want, and what it makes of a host."""

from typing import Any

import pytest

from triolet.engine.config import EngineSettings
from triolet.engine.errors import InvalidParameter
from triolet.runtime.config import HostSettings, RuntimeSettings
from triolet.runtime.launchers.plan import LaunchPlan

from .launcher_contract import ActingDoor


def plan_with(**hosts: Any) -> LaunchPlan:
    settings = RuntimeSettings(engine=EngineSettings(), hosts=HostSettings(**hosts))
    return LaunchPlan(settings=settings, version="1", model_hash="m")


def test_hosts_that_join_by_themselves_have_no_launcher() -> None:
    assert plan_with(join_port=7400).make is None
    assert plan_with(launcher="local").make is not None


def test_a_host_of_this_machine_has_a_ticket_and_the_engines_of_the_head() -> None:
    door, plan = ActingDoor(), plan_with(launcher="local", engines_per_host=3)
    found = plan.local_host("local-0", door)
    assert (found.name, found.heads, found.engines) == ("local-0", [door.address], 3)
    assert found.keys.hosts.public == door.tickets["local-0"]
    assert (found.engine, found.model_hash) == (plan.settings.engine, "m")


def test_a_placer_knows_the_command_of_a_host_and_what_it_takes() -> None:
    plan = plan_with(launcher="ray", advertise="10.0.0.1", host_resources='{"CPU": 2, "tpu": 1}')
    assert plan.make is not None
    found = plan.placer("r", ActingDoor())
    assert (found.run_id, found.node_address) == ("r", "10.0.0.1")
    assert found.resources == {"CPU": 2, "tpu": 1}
    assert found.words[0] == "engine"
    assert {"--join=127.0.0.1:7400", "--key=-", "--engines=1"} <= set(found.words)


@pytest.mark.parametrize("text", ["", "[]", '{"CPU": "two"}', "{"])
def test_resources_are_an_object_of_numbers(text: str) -> None:
    with pytest.raises(InvalidParameter, match="host_resources must be a JSON object of numbers"):
        HostSettings(host_resources=text)
