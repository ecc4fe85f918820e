"""A child whose memory is over: not even its error can be put into words."""

from triolet.nurseries.processes.child import ChildFds, run_child


class Speechless(MemoryError):
    def __str__(self) -> str:
        raise MemoryError


async def main(fds: ChildFds) -> None:
    raise Speechless


if __name__ == "__main__":
    run_child(main)
