"""Cuts what a step brings for one frontend into messages that fit the wire.

Sans-IO: one pure function. Nearly always there is nothing to cut; but logprobs of prompts are told
at once, and those of several requests may end in the same step. Must not know links.
"""

import attrs

from ..messages import RequestOutput, StepOutputs, TokenLogprobs

# One request's may be three times this (`sampling_params.LOGPROB_ITEMS_MAX`) and goes alone then; a
# message may have 64 MiB (`transports.codec.CodecLimits`).
PART_BYTES_MAX = 16 * 2**20


def split_outputs(message: StepOutputs) -> list[StepOutputs]:
    """The message, or several that say the same: columns in the first."""
    sizes = [_size(output) for output in message.outputs]
    if sum(sizes) <= PART_BYTES_MAX:
        return [message]
    parts: list[list[RequestOutput]] = [[]]
    room = PART_BYTES_MAX
    for output, size in zip(message.outputs, sizes, strict=True):
        if size > room and parts[-1]:
            parts.append([])
            room = PART_BYTES_MAX
        parts[-1].append(output)
        room -= size
    first = attrs.evolve(message, outputs=parts[0])
    return [first, *(StepOutputs(message.step, part) for part in parts[1:])]


def _size(output: RequestOutput) -> int:
    """Of its arrays, in bytes; what else there is takes little."""
    if output.logprobs is None and output.prompt_logprobs is None:
        return 0
    return _array_bytes(output.logprobs) + _array_bytes(output.prompt_logprobs)


def _array_bytes(told: TokenLogprobs | None) -> int:
    return 0 if told is None else len(told.token_ids) + len(told.logprobs) + len(told.ranks)
