"""Settings of the garbage collector that keep its pauses away from a process that serves.

Python looks for cycles again and again in everything that lives: the modules, which never die, and
the thousands of small objects that a server keeps for a while on purpose. With the collector's own
thresholds that was a quarter of a busy frontend's CPU time, a sixth of a second at a stretch, in
which no stream went on (measured).
"""

import gc

# Young objects between two collections of the young: a burst of requests in flight fits, at some
# hundred objects each, so that most have gone by themselves; about a millisecond of work.
YOUNG_OBJECTS = 10_000
# Collections of the young for one of the middle-aged: the default.
YOUNG_PER_MIDDLE = 10
# Collections of the middle-aged for one of everything. Reference counts free nearly all that dies;
# what is left for this are cycles of long-lived objects, such as those of a connection.
MIDDLE_PER_OLD = 50


def relax_collector() -> None:
    """Call once, before anything is imported: modules are made of objects that all stay.

    With Python's own thresholds a tenth of a frontend's imports was the collector's (measured).
    """
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_PER_MIDDLE, MIDDLE_PER_OLD)


def settle_modules() -> None:
    """Call once, when everything is imported: `settle_heap` has less to look at then.

    Nothing is collected, since others wait for this process: what imports leave behind, less
    than a MiB, stays.
    """
    gc.freeze()


def settle_heap() -> None:
    """Call once, when the process is ready to serve: what is here now is here to stay."""
    gc.collect()
    gc.freeze()
    relax_collector()
