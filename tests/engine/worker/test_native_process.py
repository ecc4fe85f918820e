"""A worker that was started ahead for the native kernels is the usual one, with them loaded."""

from triolet.engine.worker import native_process, process
from triolet.engine.worker.native import executor as native_executor


def test_it_is_the_usual_worker() -> None:
    assert native_process.main is process.main
    assert native_process.native_executor is native_executor
