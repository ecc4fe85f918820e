"""The reference of offline throughput: `generate` of transformers, in a process of its own.

One left-padded static batch in bfloat16, greedy, as its documentation shows it. Apart, so that its
threads and its memory are not those of what it is compared with. Each line of JSON on stdin is
answered by one on stdout; the end of stdin ends the process.
"""

import json
import sys
import time
from typing import Any

import torch
import transformers

# Any token: padding is masked.
_PADDING = 0


def main() -> None:
    """Open the model that the first line names, then answer a batch for each further line."""
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print
    opened = json.loads(sys.stdin.readline())
    try:
        model = open_model(opened["folder"], opened["threads"])
    except (OSError, ValueError) as error:
        print(json.dumps({"failed": f"cannot load the model: {error}"}), file=answers, flush=True)
        return
    description = (
        f"transformers {transformers.__version__}, torch {torch.__version__},"
        f" {torch.get_num_threads()} threads"
    )
    print(json.dumps({"description": description}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(run_batch(model, **json.loads(line))), file=answers, flush=True)


def open_model(folder: str, threads: int) -> torch.nn.Module:
    """The model as the library loads it. Raises `OSError` or `ValueError`."""
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if threads:
        torch.set_num_threads(threads)
    model: torch.nn.Module = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, local_files_only=True
    )
    return model.eval()


def run_batch(model: torch.nn.Module, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """Answer a batch, and time it: the fields of a `ReferenceRun`."""
    longest = max(map(len, prompts))
    padded = [[_PADDING] * (longest - len(each)) + each for each in prompts]
    mask = [[0] * (longest - len(each)) + [1] * len(each) for each in prompts]
    prompts_BT = torch.tensor(padded)  # noqa: N806
    cpu_s, began_s = time.process_time(), time.perf_counter()
    with torch.inference_mode():
        whole_BT = model.generate(  # type: ignore[operator] # noqa: N806
            input_ids=prompts_BT,
            attention_mask=torch.tensor(mask),
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            pad_token_id=_PADDING,
        )
    return {
        "elapsed_s": time.perf_counter() - began_s,
        "cpu_s": time.process_time() - cpu_s,
        "output_tokens": (whole_BT.shape[1] - prompts_BT.shape[1]) * prompts_BT.shape[0],
    }


if __name__ == "__main__":
    main()
