"""What is said between the throughput benchmark and the process that runs its yardstick.

Must not know torch, which the one side of it must not load.
"""

import attrs

MODULE = "triolet.bench.serving.transformers_process"


@attrs.frozen(kw_only=True)
class OpenReference:
    """Load the model in `folder`; `threads` 0: as the library chooses."""

    folder: str
    threads: int


@attrs.frozen
class ReferenceOpened:
    """It is loaded; what computes, with its version."""

    description: str


@attrs.frozen(kw_only=True)
class RunReference:
    """Answer these prompts as one batch, greedily, with exactly so many tokens each."""

    prompts: list[list[int]]
    tokens: int


@attrs.frozen(kw_only=True)
class ReferenceRun:
    """It has; `elapsed_s` is of the call alone, `cpu_s` of all threads in it."""

    elapsed_s: float
    cpu_s: float
    output_tokens: int


@attrs.frozen
class ReferenceFailed:
    """It cannot; `reason` is for the person who asked."""

    reason: str


TO_REFERENCE = (OpenReference, RunReference)
FROM_REFERENCE = (ReferenceOpened, ReferenceRun, ReferenceFailed)
