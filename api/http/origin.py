"""Decides whether a request came here on purpose: the Host and Origin checks.

Sans-IO: strings in, verdict out. A web page may open `ws://127.0.0.1:8000` or post to it without
asking anyone (sockets know no CORS), and a name that an attacker rebinds to 127.0.0.1 arrives with
that name in `Host`. So the host must be localhost, a configured name, or an address: only names can
be rebound, and probes and neighbours have no name for us. A browser's `Origin`, when sent, must be
the very host asked or on the allow-list. Must not know keys or routes.
"""

import ipaddress
import re
from functools import lru_cache
from urllib.parse import urlsplit

import attrs

from ..errors import ApiError

LOCALHOST = "localhost"
# Written in a list of allowed hosts or origins, it allows all.
ANY = "*"
# Clients say the same few all the time. Each is at most a head long.
HOSTS_REMEMBERED = 16
_DEFAULT_PORTS = {"http": 80, "https": 443}
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")


@lru_cache(HOSTS_REMEMBERED)
def split_host(value: str) -> tuple[str, int | None] | None:
    """`name:port` to its parts, the name lowered and without brackets or a final dot.

    None when it is no host at all (user info, a path, a port out of range).
    """
    if not value or any(mark in value for mark in "/\\@?# \t,"):
        return None
    try:
        parts = urlsplit(f"//{value}")
        name, port = parts.hostname, parts.port
    except ValueError:
        return None
    name = (name or "").removesuffix(".")
    return (name, port) if name else None


def _cannot_be_rebound(name: str) -> bool:
    """Whether nobody elsewhere decides what it means: a name of this machine, or an address."""
    if name == LOCALHOST or name.endswith(f".{LOCALHOST}"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@attrs.frozen
class OriginPolicy:
    """`hosts`: names beside localhost, without ports. `origins`: `scheme://name[:port]`."""

    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()

    @classmethod
    def of(cls, hosts: tuple[str, ...], origins: tuple[str, ...]) -> "OriginPolicy":
        """Normalise configured names. Raises `ValueError`, naming what is no host or origin."""
        names = set()
        for host in hosts:
            split = split_host(host)
            if host != ANY and split is None:
                raise ValueError(f"{host!r} is not a host name")
            names.add(ANY if split is None else split[0])
        return cls(frozenset(names), frozenset(_normal_origin(origin) for origin in origins))

    def check_host(self, host: str) -> None:
        """Raise `ApiError` 403 for a name in the `Host` header that is none of ours."""
        split = split_host(host)
        if split is None:
            raise ApiError(400, "The Host header is not a host name", "invalid_host")
        name = split[0]
        if ANY in self.hosts or name in self.hosts or _cannot_be_rebound(name):
            return
        raise ApiError(
            403,
            "This server does not answer for that host name; its operator can, with --allowed-host",
            "host_not_allowed",
        )

    def check_origin(self, origin: str | None, host: str) -> None:
        """Raise `ApiError` 403 for a browser's page of another origin. No Origin: no browser."""
        if origin is None or self.allows_cross_origin(origin):
            return
        parts = _split_origin(origin)
        if parts is not None:
            scheme, name, port = parts
            split = split_host(host)
            default = _DEFAULT_PORTS[scheme]
            if split is not None and (split[0], split[1] or default) == (name, port or default):
                return
        raise ApiError(403, "Pages of that origin may not use this server", "origin_not_allowed")

    def allows_cross_origin(self, origin: str) -> bool:
        """Whether the origin is on the allow-list, so that CORS headers are sent for it."""
        return ANY in self.origins or origin.lower() in self.origins


def _normal_origin(origin: str) -> str:
    """A configured origin as browsers write it; any scheme, since apps and extensions have own."""
    if origin == ANY:
        return ANY
    scheme, mark, rest = origin.lower().rstrip("/").partition("://")
    split = split_host(rest)
    if not mark or not _SCHEME.fullmatch(scheme) or split is None:
        raise ValueError(f"{origin!r} is not an origin: it must be scheme://name[:port]")
    default = _DEFAULT_PORTS.get(scheme)
    return f"{scheme}://{rest.removesuffix(f':{default}')}"


def _split_origin(origin: str) -> tuple[str, str, int | None] | None:
    scheme, mark, rest = origin.lower().partition("://")
    split = split_host(rest)
    if not mark or scheme not in _DEFAULT_PORTS or split is None:
        return None  # "null", an extension's origin, nonsense
    return scheme, *split
