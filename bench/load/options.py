"""What can be said to `triolet bench`: one class, each field an option with its help.

Plain data with defaults; the command line's parser reads the annotations. Must not know what the
values mean: `command` does.
"""

import enum
from typing import Annotated

import attrs
from cyclopts import Parameter


class Protocol(enum.StrEnum):
    """How requests are made."""

    LANES = "lanes"  # Responses over WebSocket, 16 lanes on a socket
    SSE = "sse"  # Responses over HTTP, streamed
    CHAT = "chat"  # chat completions, streamed
    HTTP = "http"  # Responses over HTTP, whole


@attrs.frozen(kw_only=True)
class BenchOptions:
    """The load, where it goes, and how the result is shown."""

    url: Annotated[
        str, Parameter(help="Server to press, as http://host:port; without it one is started.")
    ] = ""
    api_key: Annotated[str, Parameter(help="Key to send.", env_var="TRIOLET_API_KEY")] = (
        attrs.field(default="", repr=False)
    )
    protocol: Annotated[
        Protocol, Parameter(help="lanes (WebSocket), sse, chat (streamed), or http (whole).")
    ] = Protocol.LANES
    requests: Annotated[int, Parameter(help="How many requests in all.")] = 256
    in_flight: Annotated[int, Parameter(help="At most so many at once.")] = 64
    rate: Annotated[
        float,
        Parameter(help="Arrivals a second, at random times; 0: as soon as an earlier one ends."),
    ] = 0.0
    prompt_words: Annotated[int, Parameter(help="Length of each prompt, in words.")] = 16
    prompt_words_max: Annotated[
        int, Parameter(help="Longest prompt, in words, if they are of different lengths.")
    ] = 0
    tokens: Annotated[int, Parameter(help="Length of each answer, in tokens.")] = 64
    merge_ms: Annotated[
        int, Parameter(help="Ask for merge windows of so many ms (lanes and sse); 0: do not ask.")
    ] = 0
    seed: Annotated[int, Parameter(help="Same seed, same prompts and times.")] = 0
    warm_up: Annotated[int, Parameter(help="Requests before those that count.")] = 16
    json: Annotated[
        str,
        Parameter(
            help="Write the figures as JSON to this file, or to stdout: -",
            allow_leading_hyphen=True,
        ),
    ] = ""
    frontends: Annotated[int, Parameter(help="Frontends of the server that is started.")] = 1
    engines: Annotated[int, Parameter(help="Engines of the server that is started.")] = 1
