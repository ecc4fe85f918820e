"""Options of `open_runtime` and `LLM` as a typed dictionary, for editors and type checkers.

What each means, its unit and default: `triolet config show`, `EngineSettings`, `RuntimeSettings`.
"""

from typing import TypedDict

from ..nurseries.logs import LogSettings
from .config import (
    AdmissionLimits,
    HostSettings,
    InputLimits,
    JournalSettings,
    ReplaySettings,
    RuntimeTimes,
    StreamSettings,
    SupervisionSettings,
)


class EngineArguments(TypedDict, total=False):
    """Fields of `EngineSettings` but the model, which has a parameter of its own."""

    revision: str
    executor: str
    isa: str
    load_format: str
    device: str
    workers: int
    threads: int
    block_tokens: int
    max_model_len: int
    kv_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    step_time_target_s: float
    max_logprobs: int
    scheduling_policy: str
    steps_in_flight: int
    prefix_cache: bool
    bitwise: bool
    kv_memory_bytes_max: int
    boot_timeout_s: float
    step_timeout_s: float
    orphan_s: float
    kv_events_endpoint: str
    kv_events_replay_endpoint: str
    kv_events_topic: str
    kv_events_token_ids: bool
    kv_events_open: bool
    kv_events_replay_batches: int
    kv_events_high_water: int
    record_steps: str
    null_step_s: float


class HostArguments(TypedDict, total=False):
    """Fields of `HostSettings`, which are options by themselves: a program may be a head, too."""

    join_port: int
    advertise: str
    data_ports: str
    key: str
    launcher: str
    engines_per_host: int
    ray_address: str
    host_resources: str
    first_host_s: float


class RuntimeArguments(EngineArguments, HostArguments, total=False):
    """Fields of `RuntimeSettings` but the engine's settings; those, and the hosts', one by one."""

    engines: int
    frontends: int
    spare_engines: int
    spare_frontends: int
    model_name: str
    generation_config: str
    chat_template: str
    admission: AdmissionLimits
    wait_target_s: float
    input: InputLimits
    streams: StreamSettings
    replay: ReplaySettings
    journal: JournalSettings
    takeover: bool
    hosts: HostSettings | int  # those of a launcher, or how many it begins
    supervision: SupervisionSettings
    times: RuntimeTimes
    logs: LogSettings
    core_dumps: bool
