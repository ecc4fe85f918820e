"""Settings of a runtime: one frozen tree, engine settings included.

Plain data with its bounds checked at construction; where the values come from (command line,
environment, file) is for `api.commands`. Settings of clients' connections are `api.settings`.
"""

import ipaddress
import random
import re
from typing import Any

import attrs
import msgspec

from ..engine.config import EngineSettings, below, setting
from ..engine.errors import InvalidParameter
from ..nurseries.logs import LogSettings
from ..nurseries.processes.process import LadderTimes
from ..nurseries.tasks.supervision_policy import SupervisionPolicy
from .errors import RETRY_AFTER_S

# More processes of one kind than any machine has use for: a slip of the keyboard would otherwise
# start them until there is no memory left.
PROCESSES_MAX = 1024
PORT_MAX = 65535


GENERATION_CONFIG_AUTO, GENERATION_CONFIG_NONE = "auto", "none"
# How reasoning is marked: as the chat template says, not at all, or by a name of `text.reasoning`.
REASONING_AUTO, REASONING_NONE, REASONING_HARMONY = "auto", "none", "harmony"
REASONING_NAMES = ("think", "mistral", "seed", "cohere", REASONING_HARMONY)
REASONING_PARSERS = (REASONING_AUTO, REASONING_NONE, *REASONING_NAMES)
# How hosts come to be, see `launchers`.
LAUNCHER_JOINED, LAUNCHER_LOCAL, LAUNCHER_RAY = "joined", "local", "ray"
# How long tokens wait for each other where only the whole answer is wanted: what a request costs
# is then nearly its computing alone, and an engine that dies leaves a second to be computed again.
WHOLE_MERGE_S = 1.0


@attrs.frozen(kw_only=True, field_transformer=below("admission"))
class AdmissionLimits:
    """Above these, requests are refused with `Overloaded`; of one frontend."""

    # Four times what one engine runs by default; each costs its text, its ids and a few objects.
    active_requests_max: int = setting(
        256, at_least=1, help="Maximum number of requests in progress, of one frontend."
    )
    # Prompt tokens that engines have not worked off; a minute at about 4000 tokens a second.
    queued_tokens_max: int = setting(
        262_144, at_least=1, help="Maximum number of prompt tokens waiting for an engine."
    )
    # Embeddings of prompts are kept as long as their requests run, here and at the engines: five of
    # the largest.
    embeds_bytes_max: int = setting(
        256 * 2**20, at_least=1, help="Maximum size of the prompt embeddings of all requests."
    )
    # The least; the expected wait may ask for more.
    retry_after_s: float = setting(
        RETRY_AFTER_S, help="Minimum Retry-After of a refusal, in seconds."
    )


@attrs.frozen(kw_only=True, field_transformer=below("input"))
class InputLimits:
    """How prompts are turned into tokens."""

    # No model of today takes more tokens than this has characters.
    prompt_characters_max: int = setting(
        2**22, at_least=1, help="Maximum length of a prompt, in characters."
    )
    # Up to here the loop does it itself: some 0.5 ms; above, a thread does.
    inline_characters_max: int = setting(
        2048, help="Length up to which a text is tokenised without a thread."
    )
    # Texts that are tokenised in threads at the same time.
    threads: int = setting(1, at_least=1, help="Threads that tokenise long texts.")
    # Texts of one principal that wait for a thread: as many as requests are active.
    waiting_max: int = setting(
        256, at_least=1, help="Maximum number of long texts of one API key waiting to be tokenised."
    )


@attrs.frozen(kw_only=True, field_transformer=below("streams"))
class StreamSettings:
    """How far engines run ahead of those who read."""

    # A streaming request is scheduled up to so many tokens beyond what its client consumed.
    window_tokens: int = setting(
        256, at_least=1, help="Tokens that an engine may be ahead of a client that reads slowly."
    )


@attrs.frozen(kw_only=True)
class ReplaySettings:
    """How long, and how often, a request looks for an engine that goes on with it."""

    # More than a start with a large model takes; clients give up after a minute or more.
    replay_wait_s: float = setting(
        30.0, help="Seconds that a response whose engine died waits for another engine."
    )
    # Deaths of engines under one request, with no token of it between them.
    replay_attempts_max: int = setting(
        16,
        at_least=1,
        help="Engine deaths without a new token after which a response fails.",
        rare=True,
    )


@attrs.frozen(kw_only=True)
class JournalSettings:
    """Keeping of a frontend's streams for the next life of its rank."""

    # In memory of the root's, which outlives a frontend; in a folder also the root and the machine.
    folder: str = setting(
        "",
        option="journal",
        help="Folder for journals, with which responses survive a restart of server or machine.",
    )
    disabled: bool = setting(
        default=False,
        option="no-journal",
        help="Keep no journal: streams end with their frontend.",
    )
    # The period bounds what the death of a machine may lose; a process's death loses nothing. A
    # sync takes 0.5 to 1 ms of CPU time (measured): 0.4 % of a core so often, 1.5 % at 50 ms.
    sync_ms: float = setting(
        200.0,
        at_least=1,
        option="journal-sync-ms",
        help="Milliseconds between syncs of a journal to the disk.",
        rare=True,
    )
    # `JournalLimits.bytes_max`. As much as the embeddings of all requests, which it holds as well.
    bytes_max: int = setting(
        256 * 2**20,
        at_least=1,
        option="journal-bytes-max",
        help="Size of a frontend's journal at which it refuses new requests.",
        rare=True,
    )
    # Half of a response's longest `keep_s`: clients come back within seconds, or not at all.
    adopted_keep_s: float = setting(
        30.0, help="Seconds that a stream whose frontend died waits for its reader to reconnect."
    )

    def __attrs_post_init__(self) -> None:
        if self.folder and self.disabled:
            raise InvalidParameter("no_journal", "must not be set with a folder for journals")


@attrs.frozen(kw_only=True)
class SupervisionSettings:
    """When a dead engine gets a successor (Erlang's intensity and period)."""

    restart_limit: int = setting(
        3, help="Deaths within the restart period after which a process is not restarted."
    )
    restart_period_s: float = setting(
        60.0, at_least=0.001, help="Length of the restart period, in seconds."
    )
    backoff_min_s: float = setting(
        0.1, at_least=0.001, help="Seconds before the first restart.", rare=True
    )
    backoff_max_s: float = setting(
        5.0, at_least=0.001, help="Maximum number of seconds before a restart.", rare=True
    )

    def __attrs_post_init__(self) -> None:
        if self.backoff_max_s < self.backoff_min_s:
            raise InvalidParameter("backoff_max_s", "must be at least backoff_min_s")

    def policy(self, chance: random.Random, **options: Any) -> SupervisionPolicy:
        """The machine that decides by these values and fields; `chance` spreads its delays."""
        return SupervisionPolicy(
            chance,
            **options,
            restart_limit=self.restart_limit,
            restart_period_s=self.restart_period_s,
            backoff_min_s=self.backoff_min_s,
            backoff_max_s=self.backoff_max_s,
        )


@attrs.frozen(kw_only=True)
class HostSettings:
    """How engines on other machines serve here."""

    join_port: int = setting(
        0, at_most=65535, help="Port at which hosts join (`triolet engine --join`); 0: none may."
    )
    # Frontends' sockets and the door are bound there.
    advertise: str = setting("", help="IP address of this machine at which hosts reach it.")
    data_ports: str = setting(
        "", help="Ports of frontends' sockets for hosts, as LOW-HIGH; empty: any that are free."
    )
    key_file: str = setting(
        "", option="key", help="File of the cluster's keys, made by `triolet keygen`."
    )
    launcher: str = setting(
        LAUNCHER_JOINED,
        one_of=(LAUNCHER_JOINED, LAUNCHER_LOCAL, LAUNCHER_RAY),
        help="How hosts begin: joined: by themselves; local: as children of this server; or ray.",
    )
    hosts: int = setting(1, at_most=PROCESSES_MAX, help="Hosts that the launcher has begun.")
    engines_per_host: int = setting(
        1, at_least=1, at_most=PROCESSES_MAX, help="Engine processes of each of them."
    )
    ray_address: str = setting(
        "auto", help="Ray cluster to place hosts in, as HOST:PORT; auto: the one of this machine."
    )
    host_resources: str = setting(
        '{"CPU": 1}', help="Resources that Ray reserves for each host, as JSON."
    )
    # Programs and batches without engines of their own wait so long for one of a host: somebody has
    # to go there, and a model to be loaded. A server waits for ever.
    first_host_s: float = setting(300.0, at_least=0.001)

    def __attrs_post_init__(self) -> None:
        try:
            if self.advertise:
                ipaddress.ip_address(self.advertise)
        except ValueError:
            reason = f"must be an IP address of this machine, not {self.advertise!r}"
            raise InvalidParameter("advertise", reason) from None
        if self.data_ports and not self.ports:
            reason = f"must be LOW-HIGH, two ports or more, not {self.data_ports!r}"
            raise InvalidParameter("data_ports", reason)
        self.resources()

    def resources(self) -> dict[str, float]:
        """`host_resources` as they are meant. Raises `InvalidParameter`."""
        try:
            return msgspec.json.decode(self.host_resources, type=dict[str, float])
        except msgspec.MsgspecError as error:
            reason = f"must be a JSON object of numbers, not {self.host_resources!r}: {error}"
            raise InvalidParameter("host_resources", reason) from None

    @property
    def are_wanted(self) -> bool:
        """Whether any may join."""
        return bool(self.join_port) or self.launcher != LAUNCHER_JOINED

    @property
    def address(self) -> str:
        """Where hosts reach this machine; those on it need not be told."""
        return self.advertise or ("127.0.0.1" if self.launcher == LAUNCHER_LOCAL else "")

    @property
    def join_address(self) -> str:
        """Address and port that hosts dial, for people; "" where a launcher begins them."""
        if self.launcher != LAUNCHER_JOINED:
            return ""
        where = f"[{self.advertise}]" if ":" in self.advertise else self.advertise
        return f"{where}:{self.join_port}"

    @property
    def ports(self) -> range:
        """Ports of `data_ports`; none if any will do, or it is no range of two at least."""
        found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", self.data_ports)
        low, high = map(int, found.groups()) if found else (0, 0)
        return range(low, high + 1) if 0 < low < high <= PORT_MAX else range(0)


@attrs.frozen(kw_only=True)
class RuntimeTimes:
    """Bounds on waiting, in seconds."""

    # Requests in flight may go on for so long after a drain began.
    grace_s: float = setting(
        10.0, help="Seconds to finish running requests after the first Ctrl-C."
    )
    # Ending a child: after the order, after SIGTERM, after SIGKILL.
    ladder: LadderTimes = attrs.field(factory=LadderTimes)
    # A ready engine's link to the embedding program must be up by then, or entering fails.
    link_up_s: float = setting(10.0, at_least=0.001)


@attrs.frozen(kw_only=True)
class RuntimeSettings:
    """The whole tree. `engines` processes of `engine`, and `frontends` (0: the caller's own).

    Raises `InvalidParameter`, naming the field and its bound.
    """

    # 0 where hosts may join: all engines are on other machines.
    engines: int = setting(
        1, at_most=PROCESSES_MAX, help="Engine processes; each has the whole model."
    )
    frontends: int = setting(
        0,
        at_most=PROCESSES_MAX,
        help="Frontend processes, which serve HTTP and WebSocket.",
        served=1,
    )
    # Warm spares: processes that have imported everything and wait to be the next engine, or the
    # next frontend. What a program embeds should not grow by what it may never need.
    spare_engines: int = setting(
        0,
        at_most=PROCESSES_MAX,
        help="Warm spare processes, which replace engines that die.",
        served=1,
    )
    spare_frontends: int = setting(
        0,
        at_most=PROCESSES_MAX,
        help="Warm spare processes, which replace frontends that die.",
        served=1,
    )
    # Clients' name for the model; "" takes the folder's name.
    model_name: str = ""
    # Whether parameters that clients leave out are as the model's `generation_config.json` advises.
    generation_config: str = setting(
        GENERATION_CONFIG_AUTO,
        one_of=(GENERATION_CONFIG_AUTO, GENERATION_CONFIG_NONE),
        help="Defaults of sampling parameters: auto: the model's generation_config.json; or none.",
    )
    # Read at each start of a frontend, as the model's own is.
    chat_template: str = setting(
        "", help="File with a chat template, to use in place of the model's own."
    )
    engine: EngineSettings
    admission: AdmissionLimits = attrs.field(factory=AdmissionLimits)
    # People look away after ten seconds, and clients that mind give up: what begins later is
    # computed for nobody. 0: any wait, for programs that embed a runtime and want all answers.
    wait_target_s: float = setting(
        0.0,
        option="wait-target",
        help="Expected seconds to the first token above which requests are refused; 0: none.",
        served=10.0,
        rare=True,
    )
    input: InputLimits = attrs.field(factory=InputLimits)
    streams: StreamSettings = attrs.field(factory=StreamSettings)
    replay: ReplaySettings = attrs.field(factory=ReplaySettings)
    # Only processes' frontends have one: an embedding program's streams die with it.
    journal: JournalSettings = attrs.field(factory=JournalSettings)
    # Needs the journal: without one there is nothing that a connection could go on with.
    takeover: bool = setting(
        default=True, help="Keep connections open when their frontend dies; needs the journal."
    )
    hosts: HostSettings = attrs.field(factory=HostSettings)
    supervision: SupervisionSettings = attrs.field(factory=SupervisionSettings)
    times: RuntimeTimes = attrs.field(factory=RuntimeTimes)
    # Logs of our own processes; an embedding program logs as it likes.
    logs: LogSettings = attrs.field(factory=LogSettings)
    # Prompts and keys stand in a core; of a server's processes, as an embedding program has its own
    # limits.
    core_dumps: bool = setting(
        default=False, help="Let crashed processes write core files, which hold prompts and keys."
    )

    def __attrs_post_init__(self) -> None:
        if not self.engines and not self.hosts.are_wanted:
            raise InvalidParameter("engines", "must be at least 1, not 0, unless hosts may join")

    @property
    def takes_over(self) -> bool:
        """Whether a frontend's connections outlive it."""
        return self.takeover and not self.journal.disabled
