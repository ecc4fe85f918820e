"""Health and statistics for operators: the state of each engine, counts of engines and frontend.

Snapshots only. Sans-IO: plain data.
"""

import attrs

from ...engine.messages import EngineStatistics
from ...nurseries.processes.counter_slot import GAUGE
from ..messages import EngineHealth
from .latencies import Latencies


@attrs.frozen
class Health:
    """`live`: this process makes progress. `ready`: at least one engine takes work now."""

    live: bool
    ready: bool
    engines: list[EngineHealth] = attrs.field(factory=list)
    reasons: list[str] = attrs.field(factory=list)
    # Contents that are refused, as engines died of them; as the log names them.
    refused: list[str] = attrs.field(factory=list)


def gauge() -> int:
    """A field that counts what there is now; all others count since the start."""
    return attrs.field(default=0, metadata={GAUGE: True})


@attrs.frozen(kw_only=True)
class FrontendStatistics:
    """Counts of one frontend since its start, and (without `_total`) what there is now."""

    requests_active: int = gauge()
    queued_tokens: int = gauge()  # prompt tokens of requests without a first token
    requests_total: int = 0
    requests_finished_total: int = 0
    requests_length_total: int = 0  # of those finished: at their last allowed token
    requests_failed_total: int = 0
    requests_aborted_total: int = 0
    requests_overloaded_total: int = 0
    requests_waiting: int = gauge()  # whose engine is gone, for another one
    requests_replayed_total: int = 0  # sent again, wherever to
    requests_migrated_total: int = 0  # of them, to another engine than before
    requests_migrated_inexactly_total: int = 0  # of these, with other tokens than the first's
    prompt_tokens_total: int = 0
    output_tokens_total: int = 0
    # Outputs that the ledger did not accept, {reason: count}.
    outputs_refused_total: dict[str, int] = attrs.field(factory=dict)
    # Mishaps on the links to engines, {kind: count}.
    link_mishaps_total: dict[str, int] = attrs.field(factory=dict)
    # Requests' times, still being counted.
    latencies: Latencies = attrs.field(factory=Latencies)


@attrs.frozen
class RuntimeStatistics:
    """`engines` holds the latest known counts by engine rank."""

    engines: dict[int, EngineStatistics] = attrs.field(factory=dict)
    frontend: FrontendStatistics = attrs.field(factory=FrontendStatistics)
