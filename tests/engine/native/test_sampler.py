"""The binding of the sampler: structures as large as the C++ side's."""

from triolet.engine.native.library import open_library
from triolet.engine.native.sampler import SamplerKernels, check_structures


def test_structures_have_the_sizes_of_the_library() -> None:
    check_structures()


def test_scratch_grows_with_rows_and_threads() -> None:
    kernels = SamplerKernels.of(open_library())
    one = kernels.scratch_bytes(32000, 1)
    assert one > 32000 * 20
    assert kernels.scratch_bytes(32000, 2) == 2 * one
