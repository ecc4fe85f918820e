"""Last words of a child: a memfd that outlives the process which writes into it.

The parent makes it before the child exists and reads it after the child's death; the child's fault
handler and its unhandled error write there. It is a memfd: no file, no name, freed by the kernel
with its last holder.
"""

import fcntl
import os

import attrs

# Room for a traceback of every thread, twice over; what does not fit is refused by the kernel.
LAST_WORDS_BYTES_MAX = 64 * 1024


@attrs.define(eq=False)
class LastWords:
    """The parent's side. `fd` is passed to the child; close it when the words have been read."""

    fd: int

    @classmethod
    def create(cls) -> "LastWords":
        """Make an empty one of exactly `LAST_WORDS_BYTES_MAX` bytes that cannot grow or shrink."""
        fd = os.memfd_create("last-words", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, LAST_WORDS_BYTES_MAX)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        except OSError:
            os.close(fd)
            raise
        return cls(fd)

    def read(self) -> str:
        """Text written so far, "" if none. Leaves the writer's position alone.

        Raises `OSError` once closed.
        """
        return os.pread(self.fd, LAST_WORDS_BYTES_MAX, 0).rstrip(b"\0").decode(errors="replace")

    def close(self) -> None:
        """Let go of it; the words are lost unless they were read. Harmless when repeated."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def write_last_words(fd: int, text: str) -> None:
    """The child's side: append `text`, cut to what still fits. Never raises for want of room.

    Keeps the end of a text that is too long, since a traceback names its error last.
    """
    room = LAST_WORDS_BYTES_MAX - os.lseek(fd, 0, os.SEEK_CUR)
    data = text.encode(errors="replace")
    if room > 0 and data:
        os.write(fd, data[-room:])
