"""What is told of the machine that the tests run on."""

import attrs

from triolet.bench.steps.machine import QUIET_LOAD, look_at_machine


def test_it_has_a_processor_and_a_speed() -> None:
    machine = look_at_machine()
    assert machine.processor
    assert machine.cores >= 1
    assert machine.turn_ns > 0


def test_noise_is_told_in_words() -> None:
    machine = attrs.evolve(look_at_machine(), load=QUIET_LOAD / 2)
    assert ", quiet;" in machine.describe()
    noisy = attrs.evolve(machine, load=3.24)
    assert not noisy.is_quiet
    assert "NOT quiet: load 3.2" in noisy.describe()
