"""Plan of a launcher: which one the settings want, and what a host that it begins is to be."""

from functools import partial

import attrs

from ...engine.model.bundled import bundled_model_folder
from ..config import LAUNCHER_LOCAL, LAUNCHER_RAY, RuntimeSettings
from ..fleet.elsewhere import HeadParts
from ..hosts.host_fleet import HostFleet, MakeLauncher
from ..hosts.host_plan import HostPlan
from ..hosts.joined_host import HostLauncher
from .launcher import Door
from .local import LocalLauncher
from .messages import PlacerInit
from .ray import RayLauncher


@attrs.frozen(kw_only=True)
class LaunchPlan:
    """Plan of the launcher that `settings` name, for a head of this version and model."""

    settings: RuntimeSettings
    version: str
    model_hash: str

    @property
    def make(self) -> MakeLauncher | None:
        """For `JoinPlan.launch`; None where hosts come by themselves."""
        makers = {LAUNCHER_LOCAL: self._local, LAUNCHER_RAY: self._ray}
        return makers.get(self.settings.hosts.launcher)

    def _local(self, head: HeadParts, fleet: HostFleet) -> HostLauncher:
        return LocalLauncher(head.engines.parts, fleet, self.local_host, self.settings.hosts.hosts)

    def _ray(self, head: HeadParts, fleet: HostFleet) -> HostLauncher:
        plan = partial(self.placer, head.engines.parts.run_id)
        return RayLauncher(head.engines.parts, fleet, plan, self.settings.hosts.hosts)

    def local_host(self, name: str, door: Door) -> HostPlan:
        """A host on this machine; its engines are as the head's."""
        return HostPlan(
            name=name,
            heads=[door.address],
            keys=door.make_ticket(name),
            engines=self.settings.hosts.engines_per_host,
            engine=self.settings.engine,
            model_hash=self.model_hash,
            version=self.version,
            spare_engines=self.settings.spare_engines,
        )

    def placer(self, run_id: str, door: Door) -> PlacerInit:
        """A placer; the hosts that it has begun find the model where the head has it."""
        hosts, engine = self.settings.hosts, self.settings.engine
        folder = [] if engine.model == str(bundled_model_folder()) else [engine.model]
        options = {
            "join": door.address.removeprefix("tcp://"),
            "key": "-",
            "engines": hosts.engines_per_host,
            "spare-engines": self.settings.spare_engines,
            "device": engine.device,
        }
        return PlacerInit(
            run_id=run_id,
            ray_address=hosts.ray_address,
            node_address=hosts.address,
            resources=hosts.resources(),
            words=["engine", *folder, *(f"--{name}={value}" for name, value in options.items())],
        )
