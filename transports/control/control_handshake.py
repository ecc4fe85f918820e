"""Carries out the handshake over a control channel, on either side of a spawn.

The thin shell of `handshake`: it receives, asks the machine, and does what it decides. Descriptors
travel beside INIT only. Malformed and refused messages are dropped; the deadline's error quotes
them. Must not know processes, nor what INIT and READY carry.
"""

import os
from collections.abc import Callable, Sequence
from typing import NoReturn, assert_never

import attrs
import trio

from ..codec import MalformedMessage
from .channel import ControlChannel
from .handshake import (
    Advanced,
    ChildSide,
    ChildState,
    Done,
    Fail,
    Ignore,
    Initialised,
    ParentDecision,
    ParentSide,
    SendInit,
)
from .handshake_messages import HANDSHAKE_MESSAGES, WIRE_VERSION, Hello, PeerLeft
from .passed_fds import close_fds

OnProgress = Callable[[str, float], None]
# Gets what a child says beside its handshake, with descriptors that it then owns.
OnOther = Callable[[object, Sequence[int]], None]


async def perform_parent_handshake(
    channel: ControlChannel,
    init_payload: bytes,
    *,
    who: str,
    role: str,
    boot_timeout_s: float,
    fds: Sequence[int] = (),
    on_progress: OnProgress | None = None,
    on_other: OnOther | None = None,
    epoch: int = 0,
    pid: int | None = None,
    key: bytes = b"",
    wire_version: int = WIRE_VERSION,
) -> bytes:
    """Wait for the child's HELLO, send INIT with `fds`, wait for READY; returns READY's payload.

    `who` names the child in errors ("worker 1"); `on_progress(phase, fraction)` is called for each
    PROGRESS, which re-arms the deadline: `boot_timeout_s` is time without progress. What an
    accepted child says beside its handshake goes to `on_other`, which must not raise and owns the
    descriptors; without one, or before HELLO, it is refused. It does not re-arm the deadline.

    Raises a `HandshakeError` that says who and in which phase. Cancellation: the child is left
    where it is, and the channel is of no use for another handshake.
    """
    machine = ParentSide(
        who=who,
        role=role,
        init=init_payload,
        boot_timeout_s=boot_timeout_s,
        started_at=trio.current_time(),
        epoch=epoch,
        pid=pid,
        key=key,
        wire_version=wire_version,
    )
    while True:
        decision = await _next_parent_decision(channel, machine, on_other)
        match decision:
            case SendInit(message=init):
                with trio.move_on_at(machine.next_deadline()):
                    await _send_init(channel, machine, init, fds)
            case Advanced(phase=phase, fraction=fraction):
                if on_progress is not None:
                    on_progress(phase, fraction)
            case Done(payload=payload):
                return payload
            case Fail(error=error):
                raise error
            case Ignore() | None:
                pass
            case _:
                assert_never(decision)


async def _next_parent_decision(
    channel: ControlChannel, machine: ParentSide, on_other: OnOther | None
) -> ParentDecision | None:
    """One message or the deadline, whichever is first."""
    received: tuple[object, list[int]] | None = None
    try:
        with trio.move_on_at(machine.next_deadline()):
            received = await channel.receive_any()
    except MalformedMessage as error:
        machine.handle_refusal(error)
        return machine.handle_timeout(trio.current_time())
    except trio.EndOfChannel as error:
        raise PeerLeft(machine.who, machine.phase) from error
    if received is None:
        return machine.handle_timeout(trio.current_time())
    message, fds = received
    if on_other is not None and machine.booting and not isinstance(message, HANDSHAKE_MESSAGES):
        on_other(message, fds)
        return machine.handle_timeout(trio.current_time())
    close_fds(fds)
    decision = machine.handle_message(message, trio.current_time())
    if isinstance(decision, Ignore):
        return machine.handle_timeout(trio.current_time()) or decision
    return decision


async def _send_init(
    channel: ControlChannel, machine: ParentSide, init: object, fds: Sequence[int]
) -> None:
    try:
        await channel.send(init, fds)
    except trio.BrokenResourceError as error:
        raise PeerLeft(machine.who, machine.phase) from error


@attrs.define(eq=False)
class ChildHandshake:
    """The child between INIT and READY. `fds` came beside INIT and are the child's to close."""

    init: bytes
    fds: list[int]
    _channel: ControlChannel
    _machine: ChildSide

    async def progress(self, phase: str, fraction: float) -> None:
        """Tell the parent how far booting is: `fraction` (0 to 1) of `phase` (a few words).

        Raises what `ControlChannel.send` raises; a parent that is gone is the death monitor's.
        """
        await self._channel.send(self._machine.progress(phase, fraction))

    async def ready(self, payload: bytes) -> None:
        """Tell the parent that booting is done. Once, and nothing of the handshake after it.

        Raises what `ControlChannel.send` raises.
        """
        await self._channel.send(self._machine.ready(payload))

    @property
    def booting(self) -> bool:
        """Whether neither READY nor a refusal has been sent."""
        return self._machine.state is ChildState.BOOTING

    async def refuse(self, reason: str) -> NoReturn:
        """Tell the parent that this child, and any like it, can never do what INIT asks.

        `reason` is a sentence for people. Waits for the end that the parent then makes, since a
        death would be taken for a failure like others; returns only by being cancelled. Raises
        what `ControlChannel.send` raises.
        """
        await self._channel.send(self._machine.refuse(reason))
        await trio.sleep_forever()


async def perform_child_handshake(
    channel: ControlChannel,
    role: str,
    *,
    key: bytes = b"",
    capabilities: Sequence[str] = (),
    wire_version: int = WIRE_VERSION,
) -> ChildHandshake:
    """Say HELLO and wait for INIT, for ever if need be: a warm spare does just that.

    Raises `PeerLeft` if the parent ends first. Cancellation loses no descriptor.
    """
    hello = Hello(
        wire_version=wire_version,
        role=role,
        pid=os.getpid(),
        key=key,
        capabilities=tuple(capabilities),
    )
    machine = ChildSide(hello=hello)
    try:
        await channel.send(hello)
        while True:
            try:
                message, fds = await channel.receive_any()
            except MalformedMessage:
                continue  # counted by the channel; the parent's deadline ends a hopeless case
            decision = machine.handle_message(message)
            if isinstance(decision, Initialised):
                return ChildHandshake(decision.payload, fds, channel, machine)
            close_fds(fds)
    except (trio.EndOfChannel, trio.BrokenResourceError) as error:
        raise PeerLeft(machine.who, machine.state.value) from error
