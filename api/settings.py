"""Settings of a server: one tree with every bound.

Sans-IO: plain data. A limit is checked before memory is allocated for what it limits.
"""

from collections.abc import Mapping

import attrs
import msgspec

from ..engine.config import below, setting
from ..engine.request_options import RequestOptions
from ..runtime.config import REASONING_AUTO, REASONING_PARSERS, WHOLE_MERGE_S, RuntimeSettings

# Treatment of a request's field that no table names.
WARN, IGNORE, REFUSE = "warn", "ignore", "refuse"
POLICIES = (WARN, IGNORE, REFUSE)
# The longest that people still take for flowing text; more than a second is no stream.
MERGE_MS_MAX = 1000


@attrs.frozen(kw_only=True, field_transformer=below("limits.http"))
class HttpLimits:
    """Bounds of one HTTP connection and of each request on it."""

    # A whole head must arrive within this, from its first byte (or from the accept).
    head_s: float = setting(
        5.0, at_least=0.001, help="Seconds for the whole head of a request to arrive."
    )
    # nginx takes 32 KiB of headers by default (4 × 8).
    head_bytes_max: int = setting(
        32 * 2**10, at_least=1, help="Maximum size of the head of a request."
    )
    body_s: float = setting(
        30.0, at_least=0.001, help="Seconds for the body of a request to arrive."
    )
    # Room for the longest prompts as JSON: 1 M tokens are about 5 MB of text.
    body_bytes_max: int = setting(16 * 2**20, at_least=1, help="Maximum size of a request body.")
    # nginx's keepalive_timeout. An idle connection costs a task and a descriptor.
    idle_s: float = setting(
        75.0, at_least=0.001, help="Seconds after which an idle keep-alive connection is closed."
    )
    # Time for one write; a client that takes nothing for so long is gone or hostile.
    write_s: float = setting(
        20.0,
        at_least=0.001,
        help="Seconds that one write may take before the connection is closed.",
    )
    # Bytes of further requests that a client may send while it is being answered.
    pipelined_bytes_max: int = setting(
        64 * 2**10,
        at_least=1,
        help="Maximum size of pipelined requests that wait for the one before.",
    )
    # After an answer to a request not read to its end: how long and how much to read away.
    linger_s: float = setting(
        1.0,
        at_least=0.001,
        help="Seconds to read and discard the rest of a request that was refused.",
    )
    linger_bytes_max: int = setting(
        2**20, at_least=1, help="Maximum size of what is read and discarded."
    )


@attrs.frozen(kw_only=True, field_transformer=below("limits.socket"))
class SocketLimits:
    """Bounds of one WebSocket connection."""

    # OpenAI's figure.
    lanes_active_max: int = setting(
        16, at_least=1, help="Maximum number of lanes of one socket that generate at the same time."
    )
    # OpenAI's figure.
    lane_names_max: int = setting(
        32, at_least=1, help="Maximum number of lane names over the life of one socket."
    )
    # Pulled out of the air: one client turn never waits for 16.
    queued_per_lane_max: int = setting(
        16, at_least=1, help="Maximum number of requests waiting in one lane."
    )
    # Limit of all lanes together; one body's worth.
    queued_bytes_max: int = setting(
        16 * 2**20,
        at_least=1,
        help="Maximum size of the requests waiting in all lanes of one socket.",
    )
    message_bytes_max: int = setting(
        16 * 2**20, at_least=1, help="Maximum size of a message from a client."
    )
    # Clients send one frame a message, some split at 16 KiB or 64 KiB: 16 MiB / 16 KiB.
    fragments_per_message_max: int = setting(
        1024, at_least=1, help="Maximum number of frames of one message."
    )
    # Frames that carry no data of a new message (pings, pongs, empty continuations) cost CPU only:
    # a bucket of so many, refilled at the rate below.
    idle_frames_burst: int = setting(
        256, at_least=1, help="Number of control and empty frames accepted at once."
    )
    idle_frames_per_s: float = setting(
        20.0, at_least=0.001, help="Rate at which further control and empty frames are accepted."
    )
    ping_s: float = setting(20.0, at_least=0.001, help="Seconds between pings to a client.")
    pong_s: float = setting(
        20.0, at_least=0.001, help="Seconds to wait for a pong before the socket is closed."
    )
    write_s: float = setting(
        20.0, at_least=0.001, help="Seconds that one write may take before the socket is closed."
    )
    # Deltas of one lane are merged up to so many bytes; then the lane's request is paused.
    lane_buffer_bytes_max: int = setting(
        64 * 2**10,
        at_least=1,
        help="Size of the unsent text of one lane at which its generation pauses.",
    )
    # Limit of what one wake-up of the writer gathers into one write.
    burst_bytes_max: int = setting(256 * 2**10, at_least=1, help="Maximum size of one write.")
    # Error events that wait for a client which sends but does not read.
    waiting_errors_max: int = setting(
        256, at_least=1, help="Maximum number of unsent error events; then the socket is closed."
    )
    # Responses refused in a row because the server is overloaded; then the socket ends with 1013,
    # and its client comes back by another frontend. Pulled out of the air: half of the lanes.
    overloads_max: int = setting(
        8, at_least=1, help="Overload errors in a row after which the socket is closed."
    )
    # OpenAI's figure: 60 minutes.
    age_s: float = setting(3600.0, at_least=0.001, help="Seconds after which a socket is closed.")
    # The closing handshake.
    close_s: float = setting(5.0, at_least=0.001, help="Seconds to wait for the closing handshake.")


@attrs.frozen(kw_only=True, field_transformer=below("limits"))
class ServerLimits:
    """Bounds of the whole frontend."""

    # Half of the usual descriptor limit of 4096; above it a connection is answered 503 and closed.
    connections_max: int = setting(
        2048, at_least=1, help="Maximum number of connections of one frontend."
    )
    # Limit for one address that is not this machine's own (of IPv6: one network of 64 bits),
    # answered the same way. A quarter: no client takes all; behind a proxy on another machine,
    # which has one address for everybody, this wants to be as large as the limit above.
    connections_per_address_max: int = setting(
        512, at_least=1, help="Maximum number of connections from one client address."
    )
    # Limit of unfinished bodies and messages of all connections together; each has 64 KiB for
    # nothing. Sixteen of the largest.
    input_bytes_max: int = setting(
        256 * 2**20,
        at_least=1,
        help="Maximum size of all unfinished request bodies and messages together.",
    )
    # Ended responses, kept for `GET`, for those who resume, and for `previous_response_id`. Beyond
    # these the oldest are forgotten. The time is a socket's age limit: a chain on one never breaks.
    ended_responses_max: int = setting(
        4096, at_least=1, help="Maximum number of finished responses kept for retrieval."
    )
    ended_bytes_max: int = setting(
        64 * 2**20, at_least=1, help="Maximum size of all finished responses kept for retrieval."
    )
    ended_s: float = setting(
        3600.0, at_least=0.001, help="Seconds that a finished response is kept for retrieval."
    )
    # Idempotency keys whose home a frontend is, each with some hundred bytes: four a second for an
    # hour. Beyond it, or when it is so old, the oldest is forgotten, and its key is new. An answer
    # is kept as ended responses are; a day is Stripe's figure.
    keys_max: int = setting(
        16384, at_least=1, help="Maximum number of idempotency keys remembered."
    )
    key_age_s: float = setting(
        24 * 3600.0, at_least=0.001, help="Seconds that an idempotency key is remembered."
    )
    # Tokens of a stream may wait so long for more, unless its request says how long
    # (`runtime.merge_ms`): fewer messages, events and writes. 0: each is sent when it comes.
    merge_ms: int = setting(
        0,
        at_most=MERGE_MS_MAX,
        help="Milliseconds for which tokens are merged into one event; 0: each is sent at once.",
    )
    http: HttpLimits = attrs.field(factory=HttpLimits)
    socket: SocketLimits = attrs.field(factory=SocketLimits)


@attrs.frozen(kw_only=True)
class ListenSettings:
    """Address that a server listens on."""

    host: str = setting("127.0.0.1", help="Address to listen on.")
    port: int = setting(8000, at_most=65535, help="Port to listen on; 0 lets the system choose.")


@attrs.frozen(kw_only=True)
class ServeSettings:
    """How the edge serves. `allowed_hosts` are names beside localhost, `allowed_origins` are
    `scheme://name[:port]`; `*` allows all. Without `api_keys` everyone is one principal.
    """

    api_keys: tuple[str, ...] = setting(
        (), help="Key that clients must send; repeatable.", option="api-key", secret=True
    )
    admin_keys: tuple[str, ...] = setting(
        (),
        help="Key for the admin routes as well; without one they are closed. Repeatable.",
        option="admin-key",
        secret=True,
    )
    served_model_names: tuple[str, ...] = setting(
        (),
        help="Name of the model in the API; repeatable. Answers carry the first.",
        option="served-model-name",
    )
    vllm_metrics: bool = setting(
        default=False, help="Export metrics under vLLM's names as well, for its dashboards."
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        help="Host header to accept besides localhost and IP addresses; repeatable.",
        option="allowed-host",
    )
    allowed_origins: tuple[str, ...] = setting(
        (), help="Browser origin to accept besides our own; repeatable.", option="allowed-origin"
    )
    unknown_fields: str = setting(
        WARN,
        one_of=POLICIES,
        help="Unknown fields of requests: log each name once, ignore them, or refuse the request.",
    )
    reasoning_parser: str = setting(
        REASONING_AUTO,
        one_of=REASONING_PARSERS,
        help="Format of reasoning in the output; auto: as the chat template shows. Or none.",
    )
    demo: bool = setting(
        default=False,
        help="Print the address of a page that can watch the server and kill its processes; on a"
        " terminal of this machine it is printed anyway.",
    )
    no_demo: bool = setting(default=False, help="Never print that address.")
    otlp_endpoint: str = setting(
        "", help="OpenTelemetry collector that traces are sent to, as http://host:4318."
    )
    limits: ServerLimits = attrs.field(factory=ServerLimits)
    # A response asks for it with `runtime.keep_s`, else it is aborted when its last reader leaves.
    # 0: always. Long enough for a laptop that changes its network; it costs what tokens cost.
    resume_keep_s: float = setting(
        60.0, help="Maximum of runtime.keep_s: seconds that a response outlives its reader."
    )

    access_log: bool = setting(
        default=True, help="Log a line for each finished request, except health checks."
    )
    throughput_log_s: float = setting(
        10.0,
        help="Seconds between log lines with the throughput, while the server is busy; 0: none.",
    )
    # Proxies cut a connection that is silent for a minute (nginx), some clouds' after half of that.
    sse_keep_alive_s: float = setting(
        15.0, help="Seconds of silence after which an event stream gets a comment; 0: never."
    )

    def with_merging(self, options: RequestOptions, *, streaming: bool) -> RequestOptions:
        """Options with the time that tokens wait for each other: for streams that do not say it
        the server's own, and long for whole answers.
        """
        if streaming and options.merge_s is not None:
            return options
        merge_s = self.limits.merge_ms / 1000 if streaming else WHOLE_MERGE_S
        return options.changed(merge_s=merge_s)


@attrs.frozen(kw_only=True)
class ServerSettings:
    """Settings of a server; the options of `serve` are this tree, flattened.

    A frontend gets it whole, as `FrontendInit.settings`.
    """

    listen: ListenSettings = attrs.field(factory=ListenSettings)
    serve: ServeSettings = attrs.field(factory=ServeSettings)
    runtime: RuntimeSettings


TRACES_PATH = "/v1/traces"


def traces_url(endpoint: str, environ: Mapping[str, str]) -> str:
    """Address for traces by option and OpenTelemetry's standard variables; "" if none."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    url = endpoint or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    exact = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
    if exact and not endpoint:
        return exact
    return f"{url.rstrip('/').removesuffix(TRACES_PATH)}{TRACES_PATH}" if url else ""


def settings_to_text(settings: ServerSettings) -> str:
    """JSON text for INIT."""
    return msgspec.json.encode(settings).decode()


def settings_of_text(text: str) -> ServerSettings:
    """The way back. Raises `msgspec.ValidationError` for a wrong type, and for other fields.

    A root that runs since before an upgrade has other fields than its next frontend.
    """
    settings = msgspec.json.decode(text, type=ServerSettings)
    if msgspec.json.decode(settings_to_text(settings)) != msgspec.json.decode(text):
        raise msgspec.ValidationError("settings with other fields: of another version?")
    return settings
