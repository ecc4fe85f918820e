"""The executor that computes with torch, on a CPU or a CUDA device by the same code.

It is bitwise unless the settings say otherwise: on a CPU in float32, and then the oracle that
faster executors are compared with; on a GPU in the model's own dtype.
"""

import logging
import math
import pathlib
import time
from functools import partial

import attrs
import torch

from ...config import EngineSettings
from ...control_messages import BootPhase
from ...errors import InvalidParameter
from ...host import threads_default
from ...model.attention import kv_token_bytes
from ...model.decoder import Decoder, attention_shape
from ...model.layers import has_packed_linear
from ...model.registry import compute_dtype, device_memory_bytes, load_model, plan_weights
from ...model_config.config import ModelConfig, load_model_config
from ...step_messages import Step, StepResult, WorkerReady
from ..executor_interface import Progress, WaitMask, boot_phase
from ..kv_plan import KV_MEMORY_BYTES_DEFAULT, KvPlan, device_kv_bytes, plan_kv
from ..numerics import model_numerics_id, processor_name
from .runner import ModelRunner
from .trial import is_same_in_pieces

logger = logging.getLogger(__name__)
BUILT_FOR_CUDA = bool(torch.version.cuda)
# Counts changes of layers, attention or sampler that change any bit of any result.
REVISION = 2
# Logged once by each worker, since it is a matter of the installation and not of the model.
NO_PACKED_LINEAR = (
    "torch %s lacks the oneDNN operators that our linear layers use on a CPU; strips take their"
    " place: as bitwise, and about half as fast"
)
NOT_THE_SAME = (
    "%s does not compute the same bits for a prompt in pieces: a stream whose engine dies ends,"
    " unless its request allows another to go on inexactly"
)
# Gathered keys and values (`plain_attention`), the sampler's groups, the library's own workspaces.
GPU_WORKSPACE_BYTES = 3 * 2**30
KV_LAYOUT = "layer,kv head,slot,channel"


@attrs.define(eq=False)
class TorchExecutor:
    """Model on one device; `execute` is called by one thread at a time."""

    settings: EngineSettings
    rank: int
    name: str = attrs.field(default="torch", init=False)
    _runner: ModelRunner | None = attrs.field(default=None, init=False)

    def load(self, progress: Progress) -> WorkerReady:
        """Read, cast and place the weights, take the KV memory, hash the files."""
        settings = self.settings
        folder = pathlib.Path(settings.model)
        device = _device(settings.device)
        torch.set_num_threads(settings.threads or threads_default())
        config = load_model_config(folder)
        bitwise = settings.bitwise
        dtype = compute_dtype(config, device, bitwise=bitwise)
        token_bytes = kv_token_bytes(config.layers, attention_shape(config), dtype)
        plan = plan_kv(
            settings,
            model_len=config.max_model_len,
            token_bytes=token_bytes,
            memory_bytes=_kv_memory_bytes(settings, config, dtype, device),
        )
        plan.check_memory(
            device_memory_bytes(device),
            block_bytes=settings.block_tokens * token_bytes,
            where=f"of {device}",
        )
        if bitwise and device.type == "cpu" and not has_packed_linear():
            logger.warning(NO_PACKED_LINEAR, torch.__version__)
        with boot_phase(progress, BootPhase.LOAD_WEIGHTS):
            model = load_model(
                folder,
                config,
                load_format=settings.load_format,
                bitwise=bitwise,
                positions=plan.max_model_len,
                device=device,
                progress=partial(progress, BootPhase.LOAD_WEIGHTS),
            )
        with boot_phase(progress, BootPhase.KV_MEMORY):
            self._runner = ModelRunner.of(
                model,
                rows=settings.max_num_seqs,
                blocks=plan.blocks,
                block_tokens=settings.block_tokens,
                length=plan.max_model_len,
            )
            if device.type == "cuda" and not self._try(plan, config):
                bitwise = False
        with boot_phase(progress, BootPhase.HASH_FILES):
            identity = _numerics_id(settings, plan, config, model)
        return plan.ready(config, identity, bitwise=bitwise)

    def _try(self, plan: KvPlan, config: ModelConfig) -> bool:
        """Whether this device computes the same bits in pieces; never where it need not."""
        assert self._runner is not None
        block_tokens = self.settings.block_tokens
        is_same = is_same_in_pieces(
            self._runner.run,
            vocab_size=config.vocab_size,
            tokens=plan.max_model_len,
            block_tokens=block_tokens,
        )
        if self.settings.bitwise and not is_same:
            logger.warning(NOT_THE_SAME, torch.cuda.get_device_name())
        return is_same

    def execute(self, step: Step, wait_mask: WaitMask) -> StepResult:
        """Compute a forward pass and its samples; the time includes the wait for a mask."""
        assert self._runner is not None, "load comes first"
        begin = time.perf_counter()
        result = self._runner.run(step, wait_mask)
        return attrs.evolve(result, compute_s=time.perf_counter() - begin)


def _kv_memory_bytes(
    settings: EngineSettings, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> int:
    """Bytes for KV where the settings leave it open, before anything is loaded."""
    if device.type == "cpu":
        return KV_MEMORY_BYTES_DEFAULT
    from ...model.gpu_attention import workspace_bytes  # where there is Triton

    shapes = plan_weights(config).values()
    length = settings.model_len_of(config.max_model_len)
    return device_kv_bytes(
        torch.cuda.mem_get_info(device)[0],
        weight_bytes=sum(math.prod(shape) for shape in shapes) * dtype.itemsize,
        step_bytes=step_bytes(settings, config) + workspace_bytes(attention_shape(config), length),
    )


def step_bytes(settings: EngineSettings, config: ModelConfig) -> int:
    """An estimate from above of what one step needs on a GPU beside weights and KV."""
    experts = config.experts
    chosen = experts.chosen * experts.intermediate_size if experts else 0
    heads = config.heads + 2 * config.kv_heads
    widest = max(2 * config.intermediate_size, 2 * chosen, heads * config.head_size)
    # float32 throughout: the hidden state, what is added to it and a few of the widest beside it.
    token = 4 * (4 * config.hidden_size + 4 * widest)
    # Logits, what sampling makes of them, and the edits' copies.
    row = 4 * 6 * config.vocab_size
    tokens, rows = settings.step_tokens_max, settings.max_num_seqs
    return GPU_WORKSPACE_BYTES + tokens * token + rows * row


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidParameter("device", f"{name!r} is not known to torch") from error
    if device.type not in ("cpu", "cuda"):
        raise InvalidParameter("device", f"must be cpu or cuda, not {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidParameter("device", f"{name!r} is not available on this machine")
    return device


def _numerics_id(
    settings: EngineSettings, plan: KvPlan, config: ModelConfig, model: Decoder
) -> str:
    device = model.device
    if device.type == "cuda":
        # Triton and the libraries of products come with torch's version, which has CUDA's in it;
        # the length decides how keys are split.
        name, driver = torch.cuda.get_device_name(device), torch.version.cuda
        hardware = f"{name} CUDA {driver}, {plan.max_model_len} tokens"
    else:
        hardware = f"{torch.backends.cpu.get_cpu_capability()} {processor_name()}"
    facts = {
        "executor": "torch",
        "revision": REVISION,
        "torch": torch.__version__,
        "hardware": hardware,
        "dtype": model.dtype,
        "bitwise": model.bitwise,
        "packed_linear": has_packed_linear(model.dtype),
        "workers": settings.workers,
        "kv_layout": KV_LAYOUT,
    }
    return model_numerics_id(facts, settings, config)
