"""Turns the credential of a request into a principal: who owns responses and carries limits.

Sans-IO: digests and compares. The presented key is hashed and compared with the digest of *every*
configured key in constant time, so that neither the number of equal characters nor the key that
matched can be timed. Keys themselves are not kept. Must not know routes or sockets.
"""

import hashlib
import hmac

import attrs

from ..errors import ApiError

# Everyone, when no key is configured.
ANONYMOUS = ""
# 64 bits of the digest: a name for logs, metrics and cache salts, not a secret, never collides.
PRINCIPAL_HEX_DIGITS = 16
_BEARER = "bearer "


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def principal_of(key: str) -> str:
    """The name of a key's owner: the first digits of its SHA-256."""
    return _name_of(_digest(key))


def _name_of(digest: bytes) -> str:
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
        """Digest the keys. Raises `ValueError` for an empty one, which would admit everybody."""
        if any(not key.strip() for key in (*keys, *admin_keys)):
            raise ValueError("an API key is empty; remove it or set one")
        return cls(tuple(map(_digest, keys)), tuple(map(_digest, admin_keys)))

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
        return _name_of(presented)

    def check_admin(self, authorization: str | None) -> str:
        """The principal of an admin's header. Raises `ApiError` 401, or 403 for a user's key."""
        presented = _presented(authorization)
        is_user = _is_among(presented, self.digests)
        if _is_among(presented, self.admin_digests):
            return _name_of(presented)
        if is_user:
            raise ApiError(403, "This route needs an admin key", "admin_key_required")
        raise _unauthorized("The API key is not one of this server's")

    def _admin_or_anonymous(self, authorization: str | None) -> str:
        """Without user keys nobody is refused; SDKs send some key in any case."""
        if not self.admin_digests or authorization is None:
            return ANONYMOUS
        try:
            return self.check_admin(authorization)
        except ApiError:
            return ANONYMOUS


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
