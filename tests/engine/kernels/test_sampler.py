"""The binding of the sampler: structures as large as the C++ side's, and the bits of its noise."""

import numpy as np
import pytest

from triolet.engine.kernels.library import machine_isas, open_library
from triolet.engine.kernels.sampler import SamplerKernels, check_structures
from triolet.engine.worker.torch.exact_math import exact_log

pytestmark = pytest.mark.usefixtures("kernels_here")


def test_structures_have_the_sizes_of_the_library() -> None:
    check_structures()


def test_scratch_grows_with_rows_and_threads() -> None:
    kernels = SamplerKernels.of(open_library())
    one = kernels.scratch_bytes(32000, 1)
    assert one > 32000 * 20
    assert kernels.scratch_bytes(32000, 2) == 2 * one


@pytest.mark.parametrize("isa", machine_isas())
def test_noise_has_the_specified_bits(isa: str) -> None:
    random = np.random.default_rng(3).integers(0, 2**32, 2000, np.uint32)
    ends = np.array([0, 1, 2, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1], np.uint32)
    words = np.concatenate([random, ends])
    expected = [-exact_log(-exact_log((word + 0.5) * 2.0**-32)) for word in words.tolist()]
    noise = SamplerKernels.of(open_library(isa)).noise(words)
    assert noise.tolist() == expected
    assert (noise.min() > -3.14) & (noise.max() < 22.88)
