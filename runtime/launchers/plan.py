"""Plan of a launcher: which one the settings want, and what a host that it begins is to be."""

import attrs

from ..config import LAUNCHER_LOCAL, RuntimeSettings
from ..fleet.elsewhere import HeadParts
from ..hosts.host_fleet import HostFleet, MakeLauncher
from ..hosts.host_plan import HostPlan
from .launcher import Door
from .local import LocalLauncher


@attrs.frozen(kw_only=True)
class LaunchPlan:
    """Plan of the launcher that `settings` name, for a head of this version and model."""

    settings: RuntimeSettings
    version: str
    model_hash: str

    @property
    def make(self) -> MakeLauncher | None:
        """For `JoinPlan.launch`; None where hosts come by themselves."""
        return self._local if self.settings.hosts.launcher == LAUNCHER_LOCAL else None

    def _local(self, head: HeadParts, fleet: HostFleet) -> LocalLauncher:
        return LocalLauncher(head.engines.parts, fleet, self.local_host, self.settings.hosts.hosts)

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
