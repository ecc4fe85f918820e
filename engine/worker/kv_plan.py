"""KV memory plan: how many blocks a worker has, and how long a sequence may therefore become.

Sans-IO: arithmetic on settings and the model's sizes.
"""

import attrs

from ..config import EngineSettings
from ..errors import InvalidParameter
from ..model_config.config import ModelConfig, ModelLimits
from ..step_messages import WorkerReady

# Used where neither settings nor free memory of a device say how much: hosts have other uses.
KV_MEMORY_BYTES_DEFAULT = 2**30
# Share of a device's free memory; the rest is for what its allocator loses between pieces.
DEVICE_SHARE = 0.9


@attrs.frozen
class KvPlan:
    """`blocks` of `EngineSettings.block_tokens` tokens each; `max_model_len` in tokens."""

    blocks: int
    max_model_len: int

    def ready(
        self, model: ModelConfig | ModelLimits, numerics_id: str, *, bitwise: bool = True
    ) -> WorkerReady:
        """Answer of a worker that has loaded this model by the plan."""
        return WorkerReady(
            kv_blocks=self.blocks,
            max_model_len=self.max_model_len,
            vocab_size=model.vocab_size,
            hidden_size=model.hidden_size,
            numerics_id=numerics_id,
            bitwise=bitwise,
        )

    def check_memory(self, memory_bytes: int, *, block_bytes: int, where: str) -> None:
        """Raises `InvalidParameter` if the blocks are more than there is memory at all."""
        if self.blocks * block_bytes > memory_bytes:
            fit = memory_bytes // block_bytes
            raise InvalidParameter("kv_blocks", f"must be at most {fit}, which is all {where}")


def plan_kv(
    settings: EngineSettings, *, model_len: int, token_bytes: int,
    memory_bytes: int = KV_MEMORY_BYTES_DEFAULT,
) -> KvPlan:  # fmt: skip
    """Blocks for `max_num_seqs` sequences of full length, or as many as memory allows.

    `model_len` is the model's own length and `token_bytes` the memory of one token in all layers;
    `memory_bytes` are to be had where the settings leave it open.
    If one sequence of the model's length does not fit, the length shrinks; a length that the
    settings demand is not shrunk: raises `InvalidParameter`.
    """
    length = settings.model_len_of(model_len)
    block_bytes = settings.block_tokens * token_bytes
    blocks = settings.kv_blocks or settings.max_num_seqs * -(-length // settings.block_tokens)
    if not settings.kv_blocks and block_bytes:
        blocks = min(blocks, (settings.kv_memory_bytes_max or memory_bytes) // block_bytes)
    fits = blocks * settings.block_tokens
    if fits < length and settings.max_model_len:
        raise InvalidParameter("max_model_len", f"of {length} does not fit {blocks} KV blocks")
    if blocks < 1:
        raise InvalidParameter(
            "kv_memory_bytes_max", f"must be at least {block_bytes}, one block of this model"
        )
    return KvPlan(blocks, min(length, fits))


def device_kv_bytes(free_bytes: int, *, weight_bytes: int, step_bytes: int) -> int:
    """Bytes left for KV on a device that is not loaded yet: 0 if the rest does not fit either.

    `step_bytes` are what one step needs for itself.
    """
    return max(0, int(free_bytes * DEVICE_SHARE) - weight_bytes - step_bytes)
