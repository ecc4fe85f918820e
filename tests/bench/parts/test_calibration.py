"""What the calibration makes of takes, and what it says of a figure and its target."""

import math

import pytest

from triolet.bench.parts.building_blocks import BLOCKS, measure
from triolet.bench.parts.calibration import REFERENCE_US, Calibration, Take, Target


def taken(*ratios: float) -> Calibration:
    """A take for each ratio, the same for all blocks, with half of a processor."""
    return Calibration(
        [Take({name: us * each for name, us in REFERENCE_US.items()}, 0.5) for each in ratios]
    )


def test_factor_of_the_reference_machine_is_one() -> None:
    assert taken(1.0).factor() == pytest.approx(1.0)


def test_factor_is_the_median_of_takes() -> None:
    assert taken(2.0, 2.2, 9.0).factor() == pytest.approx(2.2)


def test_factor_is_that_of_the_block_which_is_slowed_least() -> None:
    take = {name: us * 4 for name, us in REFERENCE_US.items()}
    take["cancel scope"] /= 2
    assert Calibration([Take(take, 1.0)]).factor() == pytest.approx(2.0)


def test_factor_of_a_take_is_the_geometric_mean() -> None:
    take = dict(REFERENCE_US)
    first, second = list(take)[:2]
    take[first] *= 8.0
    take[second] /= 8.0
    assert Take(take, 1.0).factor() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("target", "raw", "scaled", "verdicts"),
    [
        (Target(6.0), 12.0, 6.0, (False, True)),
        (Target(6.0), 5.0, 2.5, (True, True)),
        (Target(6.0), 13.0, 6.5, (False, False)),
        (Target(1500, at_least=True), 800, 1600, (False, True)),
        (Target(1500, at_least=True), 700, 1400, (False, False)),
    ],
)
def test_a_figure_is_judged_raw_and_scaled(
    target: Target, raw: float, scaled: float, verdicts: tuple[bool, bool]
) -> None:
    assert target.scale(raw, 2.0) == scaled
    assert (target.is_met(raw), target.is_met(target.scale(raw, 2.0))) == verdicts


def test_verdict_of_a_cost() -> None:
    said = Target(6.0).verdict(13.0, 2.0)
    assert said == "÷ 2.00 = 6.50; target ≤ 6: raw missed, scaled missed"


def test_verdict_of_a_rate() -> None:
    said = Target(1500, at_least=True).verdict(800, 2.0)
    assert said == "× 2.00 = 1600; target ≥ 1500: raw missed, scaled met"


def test_a_factor_that_is_not_known_scales_nothing() -> None:
    said = Target(3.0).verdict(4.0, math.nan)
    assert said == "not scaled, as the machine's floor is not known; target ≤ 3: raw missed"


def test_description_tells_drift_and_the_blocks_that_differ_most() -> None:
    slow = {name: us * 2 for name, us in REFERENCE_US.items()} | {"cancel scope": 12.8}
    said = Calibration([Take(slow, 0.4), Take(slow, 0.4), *taken(1.0).takes]).describe()
    assert "(all blocks 1.00 to " in said
    assert "in 3 takes; 2.00 checkpoint alone to 4.00 cancel scope" in said
    assert said.endswith("takes had 40 % of a processor)")


async def test_every_block_of_the_reference_is_measured() -> None:
    assert BLOCKS.keys() == REFERENCE_US.keys()
    found = await measure(turns=1, repeats=10)
    assert found.cpu_us.keys() == REFERENCE_US.keys()
    assert all(us > 0 for us in found.cpu_us.values())
