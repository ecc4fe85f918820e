"""Lines for people about a run's processes and downloads, as its events come.

Servers log them, `triolet run` and `LLM(verbose=True)` print them.
"""

import sys
import time
from typing import TextIO, assert_never

import attrs
from rich.filesize import decimal

from .events import (
    ChildFailed,
    ChildGone,
    ChildHung,
    ChildPhaseEnded,
    ChildProgress,
    ChildReady,
    ChildStarting,
    ChildStopped,
    Draining,
    EngineDiffers,
    FileDownloaded,
    HostHeard,
    HostJoined,
    HostLost,
    HostSaid,
    HostsAwaited,
    HostSilent,
    ModelFetched,
    RequestRefused,
    RunEvent,
    Serving,
    Stopped,
)

# Names for people of phases that are over; a phase that is not listed keeps its own.
PHASES = {
    "start": "started",
    "load weights": "weights loaded",
    "KV memory": "KV memory taken",
    "hash files": "files hashed",
    "load tokenizer": "tokenizer loaded",
}


def sentence(event: RunEvent) -> str:
    """Line for people about an event; "" for what only a bar shows, and for a stop in order."""
    match event:
        case ChildStarting() | ChildProgress() | ChildStopped():
            return ""
        case FileDownloaded(model=model, file=file, size_bytes=size_bytes, seconds=seconds):
            return f"{model}: {file} downloaded ({decimal(size_bytes)} in {_seconds(seconds)} s)"
        case ModelFetched(model=model, revision=revision, remark=remark):
            return f"{model}: revision {revision}" + (f", {remark}" if remark else "")
        case ChildPhaseEnded(child=child, phase=phase, seconds=seconds):
            return f"{child}: {PHASES.get(phase, f'{phase} done')} in {_seconds(seconds)} s"
        case ChildReady(child=child, epoch=epoch, boot_s=boot_s):
            return f"{child}: ready after {boot_s:.1f} s (epoch {epoch})"
        case EngineDiffers(child=child, epoch=epoch, numerics_id=numerics_id, before=before):
            return (
                f"{child}: computes otherwise than engines before it (epoch {epoch}, {numerics_id},"
                f" not {before}): its model folder or code was exchanged; what was begun before"
                " does not go on there"
            )
        case ChildHung(child=child, cause=cause):
            return f"{child}: {cause}; it is killed"
        case ChildGone(child=child, cause=cause):
            return f"{child}: {cause}"
        case ChildFailed(child=child, cause=cause):
            return f"{child}: given up: {cause}"
        case RequestRefused(child=child, content=content):
            return f"{child}: died of request content {content}; it is refused from now on"
        case HostsAwaited(address=""):
            return "waiting for the first host"
        case HostsAwaited(address=address):
            return f"waiting for a host: triolet engine --join {address} --key FILE starts one"
        case HostJoined(host=host, ranks=ranks, remark=remark):
            engines = f"engine{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
            said = f"host {host}: joined with {engines}"
            return f"{said} ({remark})" if remark else said
        case HostSilent(host=host):
            return f"host {host}: says nothing, or hears nothing; its streams go on elsewhere"
        case HostHeard(host=host):
            return f"host {host}: speaks again"
        case HostLost(host=host, cause=cause):
            return f"host {host}: {cause}"
        case HostSaid(host=host, text=text):
            return f"host {host}: {text}"
        case Serving(url=url, boot_s=boot_s):
            return f"serving on {url} after {boot_s:.1f} s"
        case Draining(open_streams=open_streams, grace_s=grace_s):
            return (
                f"draining: {open_streams} open stream{'s' * (open_streams != 1)},"
                f" at most {grace_s:g} s;"
                " press Ctrl-C again to abort them"
            )
        case Stopped():
            return "stopped: every process has ended"
        case _:
            assert_never(event)


def _seconds(seconds: float) -> str:
    """A small model's phases take hundredths, and 0.0 would look like a mistake."""
    return f"{seconds:.1f}" if seconds >= 0.1 else f"{seconds:.2f}"


@attrs.define(eq=False)
class LineReport:
    """Report of one line an event, with the time; for logs and pipes."""

    stream: TextIO

    def __call__(self, event: RunEvent) -> None:
        """Write the line at once."""
        line = sentence(event)
        if line:
            print(f"{time.strftime('%H:%M:%S')} {line}", file=self.stream, flush=True)


def show_download(event: RunEvent) -> None:
    """A line that grows for each file, where there is a terminal; else one when it is there.

    And what is to be done by hand.
    """
    match event:
        case ChildProgress(child=model, phase=file, fraction=fraction) if "/" in model:
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{model}: {file} {fraction:4.0%}")
        case FileDownloaded(model=model, file=file):
            begin = "\r" if sys.stderr.isatty() else ""
            sys.stderr.write(f"{begin}{model}: {file} downloaded\n")
        case HostsAwaited():
            sys.stderr.write(f"{sentence(event)}\n")
