"""Turns the credential of a request into a principal: who owns responses and carries limits.

Sans-IO: digests and compares. The presented key is hashed and compared with the digest of *every*
configured key in constant time, so that neither the number of equal characters nor the key that
matched can be timed. Keys themselves are not kept. Must not know routes or sockets.
"""

import hashlib
import hmac

import attrs

from .errors import ApiError

# Everyone, when no key is configured.
ANONYMOUS = ""
# 64 bits of the digest: a name for logs, metrics and cache salts, not a secret, never collides.
PRINCIPAL_HEX_DIGITS = 16
_BEARER = "bearer "


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def principal_of(key: str) -> str:
    """The name of a key's owner: the first digits of its SHA-256."""
    return _digest(key).hex()[:PRINCIPAL_HEX_DIGITS]


@attrs.frozen
class Authentication:
    """The configured keys, as digests. Without any, everyone is one anonymous principal."""

    digests: tuple[bytes, ...] = attrs.field(default=(), repr=False)

    @classmethod
    def of_keys(cls, keys: tuple[str, ...]) -> "Authentication":
        """Digest the keys. Raises `ValueError` for an empty one, which would admit everybody."""
        if any(not key.strip() for key in keys):
            raise ValueError("an API key is empty; remove it or set one")
        return cls(tuple(_digest(key) for key in keys))

    def authenticate(self, authorization: str | None) -> str:
        """The principal of an `Authorization` header. Raises `ApiError` 401."""
        if not self.digests:
            return ANONYMOUS
        if authorization is None:
            raise _unauthorized("Send an API key: Authorization: Bearer <key>")
        if not authorization.lower().startswith(_BEARER):
            raise _unauthorized("The Authorization header must be: Bearer <key>")
        presented = _digest(authorization[len(_BEARER) :].strip())
        matches = 0
        for digest in self.digests:  # all of them, whatever matched
            matches += hmac.compare_digest(digest, presented)
        if not matches:
            raise _unauthorized("The API key is not one of this server's")
        return presented.hex()[:PRINCIPAL_HEX_DIGITS]


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, "invalid_api_key", "authentication_error")
