"""Plan of a host: where it dials, what only its machine can say of its engines, and its clock."""

import math
import time
from collections.abc import Sequence

import attrs

from ...engine.config import EngineSettings
from ...transports.links.link_header import LinkSettings
from ...transports.links.zmq_channel import ZmqSettings
from ..fleet.engine_fleet import ENGINE_MODULE
from .host_keys import ClusterKeys

# Beats go both ways ten times a second: acknowledgements go with them, and silence is for the lease
# to find. So a link that is idle but for beats wakes its ends up for them, and for little else.
HOST_LINK = ZmqSettings(link=LinkSettings(ack_delay_s=0.2), remote_silence_probe_s=math.inf)


def boottime_s() -> float:
    """CLOCK_BOOTTIME, which goes on while the machine is suspended: a lease ends in its sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@attrs.frozen(kw_only=True)
class HostPlan:
    """Plan of a host. `heads` are tcp endpoints, tried in turn; `engine` is what only this machine
    can say of its engines: folder, device, instruction set, threads. Not let in for `patience_s`,
    it is given up: what a launcher placed is of no use without the head that wanted it.
    """

    name: str
    heads: Sequence[str]
    keys: ClusterKeys
    engines: int
    engine: EngineSettings
    model_hash: str
    version: str
    spare_engines: int = 0
    # How long its engines finish what they run when the host is to end.
    drain_grace_s: float = 5.0
    engine_module: str = ENGINE_MODULE
    patience_s: float = math.inf
    # Without a head for so long, what engines left in memory is given back.
    keep_s: float = 300.0
