"""Settings of a frontend: made by the command, carried as text by the root, read by frontends.

The live root loads this, so it imports nothing that speaks a protocol or knows a tokenizer.
"""

import attrs
import msgspec

from ..runtime.config import WHOLE_MERGE_S, RuntimeSettings
from .limits import ServerLimits

# In flight requests get so long to end by themselves; the usual grace of Kubernetes is 30 s.
GRACE_S = 10.0
# Long enough for a laptop that changes its network; it costs what the tokens cost meanwhile.
RESUME_KEEP_S = 60.0


@attrs.frozen(kw_only=True)
class ServeSettings:
    """How the edge serves. `allowed_hosts` are names beside localhost, `allowed_origins` are
    `scheme://name[:port]`; `*` allows all. Without `api_keys` everyone is one principal.
    """

    api_keys: tuple[str, ...] = attrs.field(default=(), repr=False)
    # Without any there are no admin routes.
    admin_keys: tuple[str, ...] = attrs.field(default=(), repr=False)
    # Tell the metrics under vLLM's names, too.
    vllm_metrics: bool = False
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    limits: ServerLimits = attrs.field(factory=ServerLimits)
    grace_s: float = GRACE_S
    # How long a response may go on without a reader at most; `runtime.keep_s` asks for it, without
    # it a response is aborted when its last reader leaves. 0: always.
    resume_keep_s: float = RESUME_KEEP_S

    def merge_s(self, *, streaming: bool) -> float:
        """How long tokens wait for each other, of a request that does not say."""
        return self.limits.merge_ms / 1000 if streaming else WHOLE_MERGE_S


@attrs.frozen(kw_only=True)
class FrontendSettings:
    """What a frontend needs to know, as `FrontendInit.settings` carries it."""

    runtime: RuntimeSettings
    serve: ServeSettings


def settings_to_text(settings: FrontendSettings) -> str:
    """JSON text for INIT."""
    return msgspec.json.encode(settings).decode()


def settings_of_text(text: str) -> FrontendSettings:
    """The way back. Raises `msgspec.ValidationError` for a wrong type, and for other fields.

    A root that runs since before an upgrade has other fields than its next frontend.
    """
    settings = msgspec.json.decode(text, type=FrontendSettings)
    if msgspec.json.decode(settings_to_text(settings)) != msgspec.json.decode(text):
        raise msgspec.ValidationError("settings with other fields: of another version?")
    return settings
