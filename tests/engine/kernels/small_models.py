"""Models in the kernels' memory for tests: from a folder or from names alone; driven by steps."""

import pathlib
from collections.abc import Sequence

import numpy
import pytest
from numpy.typing import NDArray

from triolet.engine.config import BLOCK_TOKENS
from triolet.engine.kernels.binding import declare_functions, take_memory
from triolet.engine.kernels.layout import Layout
from triolet.engine.kernels.library import native_fault, open_library
from triolet.engine.kernels.model import ForwardStep, NativeModel, int32s
from triolet.engine.kernels.weights import (
    DummyTensors,
    FolderTensors,
    Packer,
    TensorSource,
    plan_tensors,
)
from triolet.engine.model.weight_folder import open_weight_folder, rename_of
from triolet.engine.model_config.config import ModelConfig, load_model_config

needs_kernels = pytest.mark.skipif(bool(native_fault()), reason="no compiler, no kernels")
BLOCKS = 160
ROWS = 40
TOKENS_MAX = 600


def load_native(
    folder: pathlib.Path, *, isa: str = "", threads: int = 1, dummy: bool = False
) -> NativeModel:
    """The model of a folder, for steps of `TOKENS_MAX` tokens in `ROWS` rows."""
    config = load_model_config(folder)
    if dummy:
        return pack_native(config, DummyTensors(), isa=isa, threads=threads)
    with open_weight_folder(folder, rename_of(config.architecture)) as files:
        files.check(plan_tensors(config))
        source = FolderTensors(files, lambda fraction: None)
        return pack_native(config, source, isa=isa, threads=threads)


def pack_native(
    config: ModelConfig, source: TensorSource, *, isa: str = "", threads: int = 1
) -> NativeModel:
    """The same of any tensors."""
    functions, layout = declare_functions(open_library(isa)), Layout.of(config)
    memory = take_memory(layout.size)
    Packer(config, layout, memory, functions, threads, source).pack_all()
    return NativeModel.of(
        config,
        functions,
        memory,
        positions=config.max_model_len,
        blocks=BLOCKS,
        threads=threads,
        tokens_max=TOKENS_MAX,
        sequences_max=ROWS,
        logit_rows_max=TOKENS_MAX,
    )


class Driver:
    """Runs steps, with block tables that a test may choose; row r's blocks are `tables[r]`."""

    def __init__(self, model: NativeModel, tables: Sequence[Sequence[int]] = ()) -> None:
        self.model = model
        self.tables = numpy.zeros((ROWS, model.config.max_model_len // BLOCK_TOKENS), numpy.int32)
        for row, table in enumerate(tables):
            self.tables[row, : len(table)] = table

    def forget(self) -> None:
        """Leave nothing in the cache."""
        self.model._cache[:] = 0

    def step(
        self, work: Sequence[tuple[int, int, Sequence[int]]], *, last_only: bool = False,
        wanted: Sequence[int] | None = None,
    ) -> NDArray[numpy.float32]:  # fmt: skip
        """Compute (row, first position, tokens) of each row at once; logits of all the tokens.

        `last_only`: of each row's last one; `wanted`: of these, as indices of all the tokens.
        """
        counts = int32s([len(tokens) for _, _, tokens in work])
        tokens = int32s([token for _, _, tokens in work for token in tokens])
        last = numpy.cumsum(counts, dtype=numpy.int32) - 1
        every = int32s(range(len(tokens)) if wanted is None else wanted)
        step = ForwardStep(
            token_ids=tokens,
            rows=int32s([row for row, _, _ in work]),
            begins=int32s([begin for _, begin, _ in work]),
            counts=counts,
            block_tables=self.tables,
            logit_tokens=last if last_only else every,
        )
        return self.model.forward(step)[:, : self.model.config.vocab_size].copy()
