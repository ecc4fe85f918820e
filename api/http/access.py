"""Access checks of a request: Host, Origin and API key; which principal it is.

Sans-IO: strings in, verdict out. A web page may open `ws://127.0.0.1:8000` or post to it without
asking anyone (sockets know no CORS), and a name that an attacker rebinds to 127.0.0.1 arrives with
that name in `Host`. So the host must be localhost, a configured name, or an address: only names can
be rebound, and probes and neighbours have no name for us. A browser's `Origin`, when sent, must be
the very host asked or on the allow-list.

A presented key is hashed and compared with the digest of *every* configured key in constant time,
so that neither the number of equal characters nor the key that matched can be timed. Keys
themselves are not kept.
"""

import base64
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Callable, Iterable
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
# An IPv6 address with nothing but a port behind it, as Python 3.11 does not check.
_BRACKETED = re.compile(r"\[[^\[\]]*\](:[0-9]*)?")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")


@lru_cache(HOSTS_REMEMBERED)
def split_host(value: str) -> tuple[str, int | None] | None:
    """`name:port` to its parts, the name lowered and without brackets or a final dot.

    None when it is no host at all (user info, a path, a port out of range).
    """
    if not value or any(mark in value for mark in "/\\@?# \t,"):
        return None
    if value.startswith("[") and not _BRACKETED.fullmatch(value):
        return None
    try:
        parts = urlsplit(f"//{value}")
        name, port = parts.hostname, parts.port
    except ValueError:
        return None
    name = (name or "").removesuffix(".")
    return (name, port) if name else None


def _cannot_be_rebound(name: str) -> bool:
    """Whether it is a name of this machine or an address: no DNS decides what it means."""
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
        reason = f"The host {name[:100]!r} is not allowed; --allowed-host of `serve` adds one"
        raise ApiError(403, reason, "host_not_allowed")

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
        reason = f"Pages of {origin[:100]!r} are not allowed; --allowed-origin of `serve` adds one"
        raise ApiError(403, reason, "origin_not_allowed")

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


# Subprotocols that browsers offer for a socket, as they cannot set its headers: this name, and one
# with the key behind the prefix, in base64url. The answer selects the name alone.
SUBPROTOCOL = "triolet"
KEY_PREFIX = "triolet.key."


def authorization_of_offer(offered: Iterable[str]) -> str | None:
    """The `Authorization` header that an offer of subprotocols stands for; None without a key.

    Raises `ApiError` 401 for what is not base64url.
    """
    for name in offered:
        if name.startswith(KEY_PREFIX):
            text = name.removeprefix(KEY_PREFIX)
            try:
                key = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
                return f"{_BEARER}{key.decode()}"
            except ValueError as error:
                raise _unauthorized("The key in the subprotocol is not base64url") from error
    return None


# Everyone, when no key is configured.
ANONYMOUS = ""
# 64 bits of the digest: a name for logs, metrics and cache salts, not a secret, never collides.
PRINCIPAL_HEX_DIGITS = 16
_BEARER = "bearer "


# A key that is given as its digest, in hexadecimal digits.
_SEALED = re.compile(r"sha256:([0-9a-f]{64})")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def sealed(key: str) -> str:
    """Digest, spelled out, that may stand in a key's place where keys are configured."""
    return key if _SEALED.fullmatch(key) else f"sha256:{_digest(key).hex()}"


def _digest_given(key: str) -> bytes:
    """Digest of a configured key, or of its sealed form."""
    return bytes.fromhex(sealed(key).partition(":")[2])


def _principal_of(digest: bytes) -> str:
    """The name of a key's owner: the first digits of its SHA-256."""
    return digest.hex()[:PRINCIPAL_HEX_DIGITS]


@attrs.frozen
class Authentication:
    """The configured keys, as digests. Without user keys, everyone is one anonymous principal.

    An admin key opens what a user key opens, and the admin routes; without any there are none.
    """

    digests: tuple[bytes, ...] = attrs.field(default=(), repr=False)
    admin_digests: tuple[bytes, ...] = attrs.field(default=(), repr=False)

    @classmethod
    def of_keys(cls, keys: tuple[str, ...], admin_keys: tuple[str, ...] = ()) -> "Authentication":
        """Digest the keys, but for those that are `sealed`.

        Raises `ValueError` for an empty one, which would let everyone in.
        """
        if any(not key.strip() for key in (*keys, *admin_keys)):
            raise ValueError("an API key is empty; remove it or set one")
        return cls(tuple(map(_digest_given, keys)), tuple(map(_digest_given, admin_keys)))

    @property
    def has_admin(self) -> bool:
        """Whether there are admin routes."""
        return bool(self.admin_digests)

    def authenticate(self, authorization: str | None) -> str:
        """The principal of an `Authorization` header. Raises `ApiError` 401."""
        if not self.digests:
            return self._admin_or_anonymous(authorization)
        presented = _presented(authorization)
        if not _is_among(presented, (*self.digests, *self.admin_digests)):
            raise _unauthorized("The API key is not one of this server's")
        return _principal_of(presented)

    def knows(self, authorization: str | None) -> bool:
        """Whether its sender may read what an open route keeps from strangers."""
        if not self.digests:
            return True
        try:
            self.authenticate(authorization)
        except ApiError:
            return False
        return True

    def check_admin(self, authorization: str | None) -> str:
        """The principal of an admin's header. Raises `ApiError` 401, or 403 for a user's key."""
        presented = _presented(authorization)
        is_user = _is_among(presented, self.digests)
        if _is_among(presented, self.admin_digests):
            return _principal_of(presented)
        if is_user:
            raise ApiError(403, "This route needs an admin key", "admin_key_required")
        raise _unauthorized("The API key is not one of this server's")

    def _admin_or_anonymous(self, authorization: str | None) -> str:
        """Admit everybody where there are no user keys; SDKs send some key in any case."""
        if not self.admin_digests or authorization is None:
            return ANONYMOUS
        try:
            return self.check_admin(authorization)
        except ApiError:
            return ANONYMOUS


def authorization_of(header: Callable[[str], str | None]) -> str | None:
    """The `Authorization` header of a request, or what Anthropic's and Azure's clients send."""
    authorization = header("authorization")
    if authorization is not None:
        return authorization
    key = header("x-api-key") or header("api-key")
    return None if key is None else f"{_BEARER}{key}"


def _presented(authorization: str | None) -> bytes:
    """The digest of the key in a header. Raises `ApiError` 401 when there is none."""
    if authorization is None:
        raise _unauthorized("Send an API key: Authorization: Bearer <key>")
    if not authorization.lower().startswith(_BEARER):
        raise _unauthorized("The Authorization header must be: Bearer <key>")
    return _digest(authorization[len(_BEARER) :].strip())


def _is_among(presented: bytes, digests: tuple[bytes, ...]) -> bool:
    matches = 0
    for digest in digests:  # all of them, whatever matched
        matches += hmac.compare_digest(digest, presented)
    return matches > 0


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, "invalid_api_key", "authentication_error")
