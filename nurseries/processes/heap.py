"""Settings of garbage collector and allocator for a process that serves: no long pauses, and no
memory kept that nothing needs.

Python looks for cycles again and again in everything that lives: the modules, which never die, and
the thousands of small objects that a server keeps for a while on purpose. With the collector's own
thresholds that was a quarter of a busy frontend's CPU time, a sixth of a second at a stretch, in
which no stream went on (measured).
"""

import ctypes
import gc

# Young objects between two collections of the young: a burst of requests in flight fits, at some
# hundred objects each, so that most have gone by themselves; about a millisecond of work.
YOUNG_OBJECTS = 10_000
# Collections of the young for one of the middle-aged: the default.
YOUNG_PER_MIDDLE = 10
# Collections of the middle-aged for one of everything. Reference counts free nearly all that dies;
# what is left for this are cycles of long-lived objects, such as those of a connection.
MIDDLE_PER_OLD = 50
# A quiet process: Python's own thresholds, but for the last. A collection of the middle generation
# is then one of everything that is not frozen, which is little.
QUIET_YOUNG_OBJECTS, QUIET_YOUNG_PER_MIDDLE, QUIET_MIDDLE_PER_OLD = 700, 10, 1
# A block of this size is a mapping of its own. Nothing that a stream needs for a token is so large.
OWN_MAPPING_BYTES = 2**20
# Parameters of glibc's mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def pause_collector() -> None:
    """Call before imports: modules are made of objects that all stay. `settle_modules` ends it.

    A tenth of a process's imports was the collector's, whatever its thresholds (measured).
    """
    gc.disable()


def settle_modules() -> None:
    """Call when everything is imported: `settle_heap` has less to look at then.

    Nothing is collected, since others wait for this process: what imports leave behind, less
    than a MiB, stays.
    """
    gc.freeze()
    _relax_collector()


def settle_heap() -> None:
    """Call once, when the process is ready to serve: what is here now is here to stay."""
    gc.collect()
    gc.freeze()
    _relax_collector()


def _relax_collector() -> None:
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_PER_MIDDLE, MIDDLE_PER_OLD)
    gc.enable()


def settle_quiet_heap() -> None:
    """Settle the heap of a process that has little to do, and lives long; see `settle_heap`.

    A child that dies leaves cycles of objects as old as itself, which only a collection of
    everything finds. With Python's own thresholds that is one after a thousand deaths or more, and
    by then they fill 2 MiB, which stay with the process (measured).
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # it is put off until there is a quarter more than what the last one has left
    gc.set_threshold(QUIET_YOUNG_OBJECTS, QUIET_YOUNG_PER_MIDDLE, QUIET_MIDDLE_PER_OLD)


def return_large_blocks() -> None:
    """Call once, in a process whose large blocks are rare: what is freed goes back to the kernel.

    After the first large block was freed glibc takes the next ones, up to 32 MiB each, from its
    heap, where any small object above them holds them; and what finds no memory, or is allocated by
    another thread, gets a heap of its own. Eight bodies of 4 MiB, sent again and again to a
    frontend with little memory, so left 70 MiB that nothing used (measured). Other C libraries
    return blocks by themselves.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for parameter, value in (
            (_M_MMAP_THRESHOLD, OWN_MAPPING_BYTES),
            (_M_TRIM_THRESHOLD, OWN_MAPPING_BYTES),
            (_M_ARENA_MAX, 1),
        ):
            library.mallopt(parameter, value)
