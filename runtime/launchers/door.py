"""Door of a head: the port at which hosts join, made of settings that are checked first.

Roots of servers have one, and programs that a runtime is embedded in: whoever has engines, and
frontends that other machines may reach.
"""

import importlib.util
import pathlib
from collections.abc import Callable
from functools import partial

import attrs

from ... import __version__
from ...engine.errors import InvalidParameter
from ...transports.endpoint import BadEndpoint, check_endpoint
from ..config import LAUNCHER_JOINED, LAUNCHER_RAY, RuntimeSettings
from ..fleet.elsewhere import HeadParts, MakeElsewhere
from ..hosts.host_directory import HostDirectory
from ..hosts.host_fleet import HostFleet, MakeLauncher
from ..hosts.host_guests import HostGuests
from ..hosts.host_keys import ClusterKeys, make_cluster_keys, read_cluster_keys
from ..hosts.host_plan import boottime_s
from ..hosts.model_hash import model_hash
from .plan import LaunchPlan


@attrs.frozen(kw_only=True)
class JoinPlan:
    """Plan of the door: where hosts dial, and with which keys."""

    endpoint: str
    keys: ClusterKeys
    model_hash: str
    version: str
    launch: MakeLauncher | None = None
    # Reads the keys' file again.
    read_keys: Callable[[], ClusterKeys] | None = None

    @property
    def make(self) -> MakeElsewhere:
        """For `Root.make_elsewhere`."""
        return partial(_make_host_fleet, self)


def _make_host_fleet(plan: JoinPlan, head: HeadParts) -> HostFleet:
    fleet = HostFleet(
        endpoint=plan.endpoint,
        guests=HostGuests(plan.keys, plan.read_keys),
        directory=HostDirectory(
            model_hash=plan.model_hash, version=plan.version, epochs=head.engines.parts.epochs
        ),
        engines=head.engines,
        frontends=head.frontends,
        on_membership=head.on_membership,
        on_event=head.on_event,
        on_said=head.on_said,
        on_reports=head.on_reports,
        now_s=boottime_s,
    )
    if plan.launch is not None:
        fleet.launcher = plan.launch(head, fleet)
    return fleet


def make_join_plan(settings: RuntimeSettings) -> JoinPlan:
    """The door for hosts. Raises `InvalidParameter`."""
    hosts = settings.hosts
    is_joined = hosts.launcher == LAUNCHER_JOINED
    if is_joined and not hosts.key_file:
        raise InvalidParameter("key", "is missing: hosts join with keys (triolet keygen FILE)")
    if not hosts.address:
        raise InvalidParameter("advertise", "is missing: the address at which hosts reach this one")
    if hosts.launcher == LAUNCHER_RAY and importlib.util.find_spec("ray") is None:
        raise InvalidParameter("launcher", "ray needs the package: pip install 'triolet[ray]'")
    read_keys = partial(read_cluster_keys, pathlib.Path(hosts.key_file), is_head=True)
    launch = LaunchPlan(
        settings=settings, version=__version__, model_hash=model_hash(settings.engine.model)
    )
    return JoinPlan(
        endpoint=endpoint_of("advertise", hosts.address, hosts.join_port),
        # Those of a launcher are this run's alone.
        keys=read_keys() if hosts.key_file else make_cluster_keys(),
        read_keys=read_keys if hosts.key_file else None,
        model_hash=launch.model_hash,
        version=__version__,
        launch=launch.make,
    )


def endpoint_of(option: str, host: str, port: int | str) -> str:
    """Endpoint of a head. Raises `InvalidParameter`, which names the option."""
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    endpoint = f"tcp://{host}:{port}"
    try:
        check_endpoint(endpoint)
    except BadEndpoint as error:
        raise InvalidParameter(option, f"{host}:{port} is wrong: {error.reason}") from error
    return endpoint
