"""Control channel of a parent and its child: messages with descriptors, over one socketpair.

SOCK_SEQPACKET keeps messages apart and sends each whole or not at all, so a send that is cancelled
has sent nothing. A message that is too large for a datagram goes in a sealed memfd beside it.

    flag (1 byte): 0 packed frames follow · 1 they are in the first descriptor, nothing follows

Descriptors that were received belong to the caller that got the message; those of a message that
is malformed or unwanted are closed here. Handshake messages travel on the same socket, before all
others: see `handshake`.
"""

import logging
import os
import socket
from collections.abc import Sequence
from functools import lru_cache
from typing import Self

import attrs
import trio

from ..array import Frame
from ..codec import Codec, CodecLimits, MalformedMessage, frame_bytes, pack_frames, unpack_frames
from .handshake import HANDSHAKE_MESSAGES
from .passed_fds import (
    ANCILLARY_BYTES,
    PASSED_FDS_MAX,
    RECEIVE_FLAGS,
    close_fds,
    fds_from_ancillary,
    fds_to_ancillary,
    read_sealed,
    seal_in_memfd,
)

# A datagram must fit the socket's send buffer (208 KiB by default) with room for others.
INLINE_BYTES_MAX = 32 * 1024
_INLINE, _IN_MEMFD = b"\x00", b"\x01"
# There is no memory or descriptor for a message, or too many descriptors are on their way.
PAUSE_S = 0.05


logger = logging.getLogger(__name__)


@lru_cache
def _codec_of(message_types: tuple[type, ...], limits: CodecLimits | None) -> Codec:
    """Kept: building one takes longer than all that a boot says by it."""
    return Codec(*message_types, limits=limits)


class ControlChannel:
    """An end of a control channel. Takes over `sock`; close it by `close()` or a `with` block.

    `sends` and `receives` are the classes of each direction; the other end lists them the other way
    round, in the same order. Any number of tasks may send, one at a time may receive.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        sends: Sequence[type] = (),
        receives: Sequence[type] = (),
        limits: CodecLimits | None = None,
    ) -> None:
        if sock.type != socket.SOCK_SEQPACKET:
            raise ValueError("a control channel needs a SOCK_SEQPACKET socket")
        self._codec_out = _codec_of((*HANDSHAKE_MESSAGES, *sends), limits)
        self._codec_in = _codec_of((*HANDSHAKE_MESSAGES, *receives), limits)
        self._plain_sock = sock
        self._sock = trio.socket.from_stdlib_socket(sock)
        self._send_lock = trio.Lock()
        self._malformed = 0

    async def send(self, message: object, fds: Sequence[int] = ()) -> None:
        """Send one message; the other end gets duplicates of `fds`, ours stay open.

        Messages arrive in the order of the calls. Cancellation: sent whole or not at all. Raises
        `trio.BrokenResourceError` if the other end is gone, `trio.ClosedResourceError` if this one
        is, `MessageTooLarge`, `TypeError` for a class not listed, `ValueError` for too many fds,
        `OSError` for a descriptor that cannot be passed.
        """
        parts = pack_frames(self._codec_out.encode(message))
        if len(fds) > PASSED_FDS_MAX:
            raise ValueError(f"{len(fds)} descriptors beside a message, limit {PASSED_FDS_MAX}")
        async with self._send_lock:
            if sum(map(frame_bytes, parts)) <= INLINE_BYTES_MAX:
                await self._send_datagram([_INLINE, *parts], fds)
                return
            memfd = seal_in_memfd(parts, "triolet-control")
            try:
                await self._send_datagram([_IN_MEMFD], [memfd, *fds])
            finally:
                os.close(memfd)

    async def send_patiently(self, message: object, fds: Sequence[int] = ()) -> None:
        """Send, again and again while there is no memory or descriptor for it."""
        while True:
            try:
                return await self.send(message, fds)
            except OSError as error:
                logger.warning("a control message cannot be sent yet: %s", error)
                await trio.sleep(PAUSE_S)

    def send_nowait(self, message: object) -> bool:
        """Send one small message at once; False if there is no room, or nobody to take it.

        For the last words of a process: it needs no task, and works in one that is cancelled. It
        may overtake messages that still wait for room.
        """
        try:
            self._plain_sock.sendmsg([_INLINE, *pack_frames(self._codec_out.encode(message))])
        except OSError:  # full, left, closed, or too large for a datagram
            return False
        return True

    async def receive(self) -> tuple[object, list[int]]:
        """The next message and its descriptors, which the caller now owns.

        Late handshake messages are dropped. Cancellation loses nothing and leaves no
        descriptor open. Raises `trio.EndOfChannel` at the end, `trio.ClosedResourceError`;
        `MalformedMessage` for one bad message, which is logged; receiving then goes on. Of one that
        lost its descriptors, as this process has no room for more, it says which (`known`).
        """
        while True:
            try:
                message, fds = await self.receive_any()
            except MalformedMessage as error:
                self._malformed += 1
                # The 1st, 2nd, 4th, 8th …: who sends garbage does not fill the log with it.
                if self._malformed.bit_count() == 1:
                    count = self._malformed
                    logger.warning("a control message was dropped (%d so far): %s", count, error)
                raise
            if not isinstance(message, HANDSHAKE_MESSAGES):
                return message, fds
            close_fds(fds)

    async def receive_any(self) -> tuple[object, list[int]]:
        """Receive handshake messages as well; for `handshake`."""
        self._check_open()
        try:
            data, ancillary, flags, _ = await self._sock.recvmsg(
                1 + INLINE_BYTES_MAX, ANCILLARY_BYTES, RECEIVE_FLAGS
            )
        except ConnectionResetError as error:
            raise trio.EndOfChannel from error
        except OSError:
            self._check_open()  # closed in the burst of the wake-up
            raise
        # No checkpoint from here on: the descriptors are ours and not known elsewhere.
        try:
            fds = fds_from_ancillary(ancillary, flags)
        except MalformedMessage as error:
            raise attrs.evolve(error, known=self._read_alone(data, flags)) from error
        if not data and not fds:
            raise trio.EndOfChannel
        return self._open_datagram(data, fds)

    def close(self) -> None:
        """Close the socket; who waits on it gets `trio.ClosedResourceError`. Twice is harmless."""
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _send_datagram(self, parts: Sequence[Frame], fds: Sequence[int]) -> None:
        self._check_open()
        try:
            await self._sock.sendmsg(parts, fds_to_ancillary(fds))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise trio.BrokenResourceError("the other end of the control channel left") from error
        except OSError:
            self._check_open()
            raise

    def _check_open(self) -> None:
        if self._sock.fileno() < 0:
            raise trio.ClosedResourceError("this end of the control channel is closed")

    def _read_alone(self, data: bytes, flags: int) -> object | None:
        """The message of a datagram whose descriptors were cut; None if it is not whole either."""
        try:
            return None if flags & socket.MSG_TRUNC else self._open_datagram(data, [])[0]
        except MalformedMessage:
            return None

    def _open_datagram(self, data: bytes, fds: list[int]) -> tuple[object, list[int]]:
        """The message, and the descriptors that are its own; closes them all if it is malformed."""
        try:
            if data[:1] == _INLINE:
                packed: Frame = memoryview(data)[1:]
                own = fds
            elif data == _IN_MEMFD and fds:
                packed = read_sealed(fds[0], self._codec_in.limits.bytes_max)
                own = fds[1:]
            else:
                raise MalformedMessage(f"a datagram with flag {data[:1]!r}")
            message = self._codec_in.decode(unpack_frames(packed))
            if len(own) > PASSED_FDS_MAX:
                raise MalformedMessage(f"{len(own)} descriptors, limit {PASSED_FDS_MAX}")
        except BaseException:
            close_fds(fds)
            raise
        close_fds(fds[: len(fds) - len(own)])
        return message, own
