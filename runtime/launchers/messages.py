"""Messages between a head and its placer, the process that talks to a Ray cluster.

A *placement* is one life of a host in the cluster: an actor, whose child the host is. Wants are
numbered full snapshots, the latest wins; so an order that a placer took into its grave is the next
one's.
"""

from collections.abc import Mapping, Sequence

import attrs

from ...engine.control_messages import TreeReply, TreeRequest


@attrs.frozen(kw_only=True)
class PlacerInit:
    """What a placer boots with; `words` are the command of a host, but for its name.

    `resources` are what Ray is asked for, for each host, in Ray's own words.
    """

    run_id: str
    ray_address: str
    node_address: str  # IP address of this machine, by which Ray knows its node
    resources: Mapping[str, float]
    words: Sequence[str]


@attrs.frozen
class WantedHost:
    """Life of a host that is wanted, with its keys in a line."""

    name: str
    life: int
    ticket: str = attrs.field(repr=False)


@attrs.frozen
class WantedHosts:
    """All that are wanted; what else there is of this run is ended."""

    number: int
    hosts: list[WantedHost]


@attrs.frozen
class HostEnded:
    """Placement that is over, as its actor says, or as Ray does if not `is_certain`."""

    name: str
    life: int
    cause: str
    is_certain: bool


@attrs.frozen
class PlacementNews:
    """Line for people about a placement that is not over, and whether the cluster reaches it."""

    name: str
    text: str
    is_warning: bool = True
    is_out_of_reach: bool = False


ROOT_TO_PLACER = (WantedHosts, TreeRequest)
PLACER_TO_ROOT = (HostEnded, PlacementNews, TreeReply)
