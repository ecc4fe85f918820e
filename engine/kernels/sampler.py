"""The sampler's structures as Python sees them: `sampler.h`, field by field.

Pointers are addresses of arrays that the caller keeps alive.
"""

from ctypes import Structure, c_int32, c_int64, c_void_p

import attrs
import numpy

from ..sampling_params import DistributionParams

# Rows of logits are so many floats long, or a multiple.
STRIDE = 64
# Why a row failed: `Failure`.
FAILED_NOT_NUMBERS, FAILED_ALL_FORBIDDEN = 1, 2
# The table of rows. Pointers are 64-bit integers; 0 is none.
ROW_PARAMETERS = numpy.dtype(
    [
        ("seed", numpy.uint64),
        ("top_p", numpy.float64),
        ("bias_ids", numpy.uint64),
        ("bias_values", numpy.uint64),
        ("allowed", numpy.uint64),
        ("seen_ids", numpy.uint64),
        ("seen_counts", numpy.uint64),
        ("choice", numpy.uint32),
        ("inverse_temperature", numpy.float32),
        ("least", numpy.float32),
        ("top_k", numpy.int32),
        ("logprobs", numpy.int32),
        ("repetition_penalty", numpy.float32),
        ("frequency_penalty", numpy.float32),
        ("presence_penalty", numpy.float32),
        ("bias_count", numpy.int32),
        ("seen_count", numpy.int32),
        ("seen_max", numpy.int32),
        ("padding", numpy.int32),
    ]
)


# The numbers among them that a row's parameters have by the same name and in the same form.
ROW_NUMBERS = tuple(
    name
    for name in ROW_PARAMETERS.names or ()
    if name in {"seed", "choice", *(field.name for field in attrs.fields(DistributionParams))}
)


class SampleCall(Structure):
    """Draws a token from each row of logits; null where a feature is not used."""

    _fields_ = (
        ("logits", c_void_p),
        ("stride", c_int64),
        ("table", c_void_p),
        ("table_rows", c_void_p),
        ("positions", c_void_p),
        ("masks", c_void_p),
        ("mask_of", c_void_p),
        ("forbidden", c_void_p),
        ("forbidden_ends", c_void_p),
        ("tokens", c_void_p),
        ("failures", c_void_p),
        ("top_ids", c_void_p),
        ("logprobs", c_void_p),
        ("ranks", c_void_p),
        ("vocab", c_int32),
        ("rows", c_int32),
        ("width", c_int32),
        ("threads", c_int32),
    )


class ScoreCall(Structure):
    """Scores one given token of each row of logits."""

    _fields_ = (
        ("logits", c_void_p),
        ("stride", c_int64),
        ("targets", c_void_p),
        ("failures", c_void_p),
        ("top_ids", c_void_p),
        ("logprobs", c_void_p),
        ("ranks", c_void_p),
        ("vocab", c_int32),
        ("rows", c_int32),
        ("width", c_int32),
        ("threads", c_int32),
    )
