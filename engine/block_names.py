"""Names of KV blocks, in memory that outlives their engine: its successor finds what is cached.

A full block gets its hash as a name when the step that filled it is complete, and loses it before
anything else is written to the block. So whenever an engine and its worker are killed, what has a
name has the keys and values of that name. A name that was half written is no hash of anything.

The names are about memory that may be lost on its own: a worker that does not find it drops them
before it takes other memory, and the root drops them after a death that may have written wild.
"""

import hashlib
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import attrs

from .step_messages import KVMemory, WorkerReady

NAME_BYTES = 32
_NO_NAME = bytes(NAME_BYTES)
# A hash of what the names are about; zeros: they were dropped.
_HEAD_BYTES = 32


def drop_names(fd: int) -> None:
    """Drop all names, as none is true any more. Other processes may have them open."""
    if os.fstat(fd).st_size:
        os.pwrite(fd, bytes(_HEAD_BYTES), 0)


@attrs.define(eq=False)
class BlockNames:
    """The engine's side: `memory` holds the head, and a name for each block."""

    memory: memoryview
    _head: bytes

    def put(self, block_id: int, name: bytes) -> None:
        """The block has a name from now on."""
        begin = _HEAD_BYTES + NAME_BYTES * block_id
        self.memory[begin : begin + NAME_BYTES] = name

    def remove(self, block_id: int) -> None:
        """The block is about to be another one."""
        self.put(block_id, _NO_NAME)

    def clear(self) -> None:
        """No block has a name, of the memory that there is now."""
        self.memory[_HEAD_BYTES:] = bytes(len(self.memory) - _HEAD_BYTES)
        self.memory[:_HEAD_BYTES] = self._head  # at last: one killed before it leaves no name

    def found(self) -> dict[int, bytes]:
        """{block: its name}, of those that have one."""
        if bytes(self.memory[:_HEAD_BYTES]) != self._head:
            return {}
        whole = bytes(self.memory[_HEAD_BYTES:])
        names = (whole[at : at + NAME_BYTES] for at in range(0, len(whole), NAME_BYTES))
        return {block_id: name for block_id, name in enumerate(names) if name != _NO_NAME}


@contextmanager
def open_block_names(
    fd: int | None,
    ready: WorkerReady,
    block_tokens: int,
    make: Callable[[memoryview, bytes], BlockNames] = BlockNames,
) -> Iterator[BlockNames | None]:
    """The names of this worker's blocks; those of another memory are cleared.

    None where there is nothing that outlives us. Raises `OSError`.
    """
    if fd is None or ready.kv_memory is KVMemory.OWN:
        yield None
        return
    about = f"{ready.numerics_id} {ready.kv_blocks} {block_tokens}".encode()
    head = hashlib.blake2b(about, digest_size=_HEAD_BYTES).digest()
    size = _HEAD_BYTES + NAME_BYTES * ready.kv_blocks
    if os.fstat(fd).st_size != size:
        os.ftruncate(fd, 0)
        os.ftruncate(fd, size)
    with mmap.mmap(fd, size) as mapped, memoryview(mapped) as memory:
        names = make(memory, head)
        if ready.kv_memory is not KVMemory.FOUND or not names.found():
            names.clear()
        yield names


# `open_block_names`, whatever it makes.
OpenNames = Callable[[int | None, WorkerReady, int], AbstractContextManager[BlockNames | None]]
