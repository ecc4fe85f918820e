"""The yardstick itself, in this process: it answers all prompts to the last token."""

import pathlib

import attrs
import pytest

from triolet.bench.serving.reference_messages import OpenReference, RunReference
from triolet.bench.serving.transformers_process import open_model, run_batch
from triolet.bench.steps.shapes import TINY, shape_folder

MINI = attrs.evolve(TINY, name="mini", vocab_size=600, hidden_size=32, intermediate_size=48)


@pytest.mark.slow
def test_a_batch_is_answered_and_timed(tmp_path: pathlib.Path) -> None:
    model = open_model(OpenReference(folder=str(shape_folder(MINI, tmp_path)), threads=0))
    run = run_batch(model, RunReference(prompts=[[5, 6, 7], [8]], tokens=4))
    assert run.output_tokens == 8
    assert run.elapsed_s > 0
    assert run.cpu_s > 0


@pytest.mark.slow
def test_a_folder_that_is_no_model_is_an_error_of_the_library(tmp_path: pathlib.Path) -> None:
    with pytest.raises((OSError, ValueError)):
        open_model(OpenReference(folder=str(tmp_path), threads=0))
