"""The reference of offline throughput: `generate` of transformers, in a process of its own.

One left-padded static batch in bfloat16, greedy, as its documentation shows it. Apart, so that its
threads and its memory are not those of what it is compared with.
"""

import time
from functools import partial

import torch
import transformers
import trio

from ...nurseries.processes.child import ChildFds, run_child
from ...transports.control.channel import ControlChannel
from .reference import (
    FROM_REFERENCE,
    TO_REFERENCE,
    OpenReference,
    ReferenceFailed,
    ReferenceOpened,
    ReferenceRun,
    RunReference,
)

# Any token: padding is masked.
_PADDING = 0


async def main(child: ChildFds) -> None:
    """Answer one message after another until a stop is ordered."""
    channel = ControlChannel(child.control, sends=FROM_REFERENCE, receives=TO_REFERENCE)
    model: torch.nn.Module | None = None
    with channel:
        while True:
            message, _ = await channel.receive()
            match message:
                case OpenReference():
                    try:
                        model = await trio.to_thread.run_sync(open_model, message)
                    except (OSError, ValueError) as error:
                        await channel.send(ReferenceFailed(f"cannot load the model: {error}"))
                        continue
                    threads = torch.get_num_threads()
                    await channel.send(
                        ReferenceOpened(
                            f"transformers {transformers.__version__}, torch {torch.__version__},"
                            f" {threads} threads"
                        )
                    )
                case RunReference():
                    assert model is not None, "a model is opened first"
                    await channel.send(
                        await trio.to_thread.run_sync(partial(run_batch, model, message))
                    )
                case _:
                    raise AssertionError(f"the codec let {type(message).__name__} through")


def open_model(message: OpenReference) -> torch.nn.Module:
    """The model as the library loads it. Raises `OSError` or `ValueError`."""
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if message.threads:
        torch.set_num_threads(message.threads)
    model: torch.nn.Module = transformers.AutoModelForCausalLM.from_pretrained(
        message.folder, dtype=torch.bfloat16, local_files_only=True
    )
    return model.eval()


def run_batch(model: torch.nn.Module, message: RunReference) -> ReferenceRun:
    """Answer a batch, and time it."""
    longest = max(map(len, message.prompts))
    padded = [[_PADDING] * (longest - len(each)) + each for each in message.prompts]
    mask = [[0] * (longest - len(each)) + [1] * len(each) for each in message.prompts]
    prompts_BT = torch.tensor(padded)  # noqa: N806
    cpu_s, began_s = time.process_time(), time.perf_counter()
    with torch.inference_mode():
        whole_BT = model.generate(  # type: ignore[operator] # noqa: N806
            input_ids=prompts_BT,
            attention_mask=torch.tensor(mask),
            do_sample=False,
            min_new_tokens=message.tokens,
            max_new_tokens=message.tokens,
            pad_token_id=_PADDING,
        )
    return ReferenceRun(
        elapsed_s=time.perf_counter() - began_s,
        cpu_s=time.process_time() - cpu_s,
        output_tokens=(whole_BT.shape[1] - prompts_BT.shape[1]) * prompts_BT.shape[0],
    )


if __name__ == "__main__":
    run_child(main)
