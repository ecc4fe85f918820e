"""CPU and memory of processes: of this one while it computes, of a stopped one, of none."""

import os
import signal
import subprocess
import sys
import time

from triolet.nurseries.processes.usage import UsageMeter, cpu_clock_s


def test_cpu_is_what_was_used_between_two_looks() -> None:
    meter, row = UsageMeter(), {"place": "me", "pid": os.getpid(), "state": "ready"}
    (first,) = meter.add_usage([row], 7.0)
    assert first["cpu"] == 0.0
    assert first["memory"] > 2**20
    before_s = time.process_time()
    while time.process_time() < before_s + 0.1:
        pass
    (second,) = meter.add_usage([row], 8.0)
    assert 0.1 <= second["cpu"] < 1.0
    assert second["state"] == "ready"


def test_a_stopped_process_is_seen_and_one_that_is_gone_uses_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    row = {"place": "x", "pid": process.pid, "state": "ready"}
    meter = UsageMeter()
    try:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert meter.add_usage([row], 0.0)[0]["state"] == "stopped"
        assert cpu_clock_s(process.pid) > 0
    finally:
        process.kill()
        process.communicate()
    assert meter.add_usage([row], 1.0) == [row | {"cpu": 0.0, "memory": 0}]
    assert meter.add_usage([row | {"pid": 0}], 1.0) == [row | {"pid": 0, "cpu": 0.0, "memory": 0}]
