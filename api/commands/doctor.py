"""Diagnosis of the machine and the installation for bug reports, `triolet doctor`.

Each finding is a fact or a fault; a fault names the way out. Nothing secret is read: no key, no
environment beyond the names that are set. Nothing is started, and no heavy package is imported, so
that it answers where those are broken.
"""

import ctypes
import importlib.metadata
import os
import pathlib
import platform
import re
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator

import attrs
import msgspec

from ... import __version__
from ...engine.config import TORCH_REMEDY
from ...engine.errors import EngineError
from ...engine.host import cores, has_torch
from ...engine.kernels.library import machine_isas, native_fault, open_library
from ...engine.model.bundled import bundled_model_folder
from ...engine.model_config.config import load_model_limits
from ...runtime.control.run_folder import base_folder, live_runs
from ...runtime.fleet.platform import UnsupportedPlatform, check_platform
from ...transports.takeover.memory import SLOT_BYTES, SLOTS, address_space_free
from .sources import PREFIX

# Flags that decide how fast a CPU computes, as `/proc/cpuinfo` spells them.
_ISA_FLAGS = ("avx2", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
# Each connection is one descriptor; below this a busy server runs out.
_DESCRIPTORS_LEAST = 1024
_SHOWN_RUNS_MAX = 8
# Fewer connections than these that outlive their frontend are a fault.
_HELD_LEAST = 256
# A root's own descriptors, and a frontend's address space, before a connection comes.
_ROOT_DESCRIPTORS, _FRONTEND_BYTES = 80, 200 * 2**20


@attrs.frozen
class Finding:
    """Line of the report. A fault has a `remedy`."""

    topic: str
    fact: str
    remedy: str = ""


def findings_text(*, as_json: bool) -> tuple[str, bool]:
    """The report, and whether it holds no fault."""
    findings = list(all_findings())
    is_sound = not any(finding.remedy for finding in findings)
    if as_json:
        return msgspec.json.format(msgspec.json.encode(findings)).decode(), is_sound
    width = max(len(finding.topic) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.topic:{width}}  {finding.fact}")
        if finding.remedy:
            lines.append(f"{'':{width}}  FAULT: {finding.remedy}")
    return "\n".join(lines), is_sound


def all_findings() -> Iterator[Finding]:
    """Every finding; one that cannot be made is a finding too."""
    for topic, look in _LOOKS.items():
        try:
            yield from look()
        except (OSError, ValueError, ImportError) as error:
            yield Finding(topic, f"could not be read: {error}")


def _versions() -> Iterator[Finding]:
    yield Finding("triolet", f"{__version__} in {pathlib.Path(__file__).parents[2]}")
    yield Finding("python", f"{platform.python_version()} ({sys.executable})")
    requirements = importlib.metadata.requires("triolet") or []
    for requirement in requirements:
        is_extra = "extra ==" in requirement
        if is_extra and not re.search(r"extra == .torch.", requirement):
            continue
        (name,) = re.findall(r"^[^ ;<>=!~\[]+", requirement)
        try:
            yield Finding(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            remedy = "" if is_extra else f"pip install '{requirement}'"
            yield Finding(name, "is not installed", remedy)


def _system() -> Iterator[Finding]:
    libc = " ".join(platform.libc_ver()) or "unknown libc"
    yield Finding("system", f"{platform.platform()}, {libc}")
    try:
        check_platform()
    except UnsupportedPlatform as error:
        yield Finding("kernel calls", "incomplete", str(error))
    else:
        yield Finding("kernel calls", "pidfd, memfd, eventfd")


def _processor() -> Iterator[Finding]:
    text = pathlib.Path("/proc/cpuinfo").read_text()
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    flags = fields.get("flags", "").split()
    known = " ".join(flag for flag in _ISA_FLAGS if flag in flags) or "none of note"
    name = fields.get("model name", platform.machine())
    yield Finding("processor", f"{name}, {cores()} cores usable")
    yield Finding("instructions", known)
    yield Finding("cgroup limits", f"cpu {_cgroup('cpu.max')}, memory {_cgroup('memory.max')}")


def _cgroup(name: str) -> str:
    path = pathlib.Path("/sys/fs/cgroup") / name
    return path.read_text().strip() if path.exists() else "unknown"


def _kernels() -> Iterator[Finding]:
    """Find out what the executor "auto" will find in the worker."""
    if fault := native_fault():
        fact = f"none, so that torch computes: {fault}" if has_torch() else f"none: {fault}"
        yield Finding("native kernels", fact, "" if has_torch() else TORCH_REMEDY)
    else:
        there = ", ".join(machine_isas())
        yield Finding("native kernels", f"{open_library().isa} (this processor runs {there})")


def _memory() -> Iterator[Finding]:
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if ":" in line}
    total, free = kib["MemTotal"] / 2**20, kib["MemAvailable"] / 2**20
    yield Finding("memory", f"{total:.1f} GiB, {free:.1f} GiB available")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # `serve` takes as many as may be had.
    remedy = f"ulimit -n {_DESCRIPTORS_LEAST} or more" if hard < _DESCRIPTORS_LEAST else ""
    yield Finding("descriptors", f"{soft} (at most {hard})", remedy)


def _takeover() -> Iterator[Finding]:
    """How many connections would outlive their frontend."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2 - _ROOT_DESCRIPTORS
    mapped = (address_space_free() - _FRONTEND_BYTES) / SLOT_BYTES
    held = int(max(0, min(SLOTS, descriptors, mapped)))
    remedy = "ulimit -v unlimited" if mapped < descriptors else "a higher ulimit -n"
    fact = f"{held} connections of a frontend outlive it"
    yield Finding("takeover", fact, remedy if held < _HELD_LEAST else "")


def _shared_memory() -> Iterator[Finding]:
    from ...engine.kernels.shared_memory import has_huge_pages

    if has_huge_pages():
        fact = "huge pages: weights once for all engines, and a KV cache that outlives them"
    else:
        fact = "no huge pages (Linux 6.1 has them): each worker has its own weights and KV cache"
    yield Finding("shared memory", fact)


def _accelerator() -> Iterator[Finding]:
    driver = pathlib.Path("/proc/driver/nvidia/version")
    fact = driver.read_text().splitlines()[0] if driver.exists() else "none"
    yield Finding("accelerator", fact)


def _child_ends_with_parent() -> Iterator[Finding]:
    """PR_GET_PDEATHSIG answers where the death signal can be set; some sandboxes forbid it."""
    libc, signal_number = ctypes.CDLL(None, use_errno=True), ctypes.c_int()
    if libc.prctl(2, ctypes.byref(signal_number), 0, 0, 0) == 0:
        yield Finding("death signal", "can be set")
    else:
        remedy = "allow prctl(PR_SET_PDEATHSIG) in the sandbox"
        yield Finding("death signal", os.strerror(ctypes.get_errno()), remedy)


def _folders() -> Iterator[Finding]:
    base = base_folder()
    parent = base if base.exists() else base.parent
    remedy = "" if os.access(parent, os.W_OK) else "set XDG_RUNTIME_DIR to a folder of yours"
    yield Finding("run folder", str(base), remedy)
    yield Finding("temporary folder", tempfile.gettempdir())
    try:
        load_model_limits(str(bundled_model_folder()))
    except EngineError as error:
        yield Finding("bundled model", str(error), "install the package again")
    else:
        yield Finding("bundled model", "readable")


def _runs() -> Iterator[Finding]:
    runs = list(live_runs())
    for run in runs[:_SHOWN_RUNS_MAX]:
        facts = run.facts
        yield Finding("running server", f"{facts.run_id}, pid {facts.pid}, {facts.url}")
    if not runs:
        yield Finding("running server", "none of this user")
    names = sorted(name for name in os.environ if name.startswith(PREFIX))
    yield Finding("environment", " ".join(names) or f"no {PREFIX}* set")


_LOOKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "packages": _versions,
    "system": _system,
    "processor": _processor,
    "native kernels": _kernels,
    "memory": _memory,
    "takeover": _takeover,
    "shared memory": _shared_memory,
    "accelerator": _accelerator,
    "death signal": _child_ends_with_parent,
    "folders": _folders,
    "running server": _runs,
}
