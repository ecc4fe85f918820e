"""Names the contents of full KV blocks, so that equal prefixes can be found.

Sans-IO: pure functions. A block's digest covers its own tokens and, through its parent's digest,
all before them; the chain begins with a root that covers what else the keys and values depend on
and who may share them. Equal digests are taken for equal contents, so this has to be a
cryptographic hash: a client who could make two prefixes collide would read another's answers.
Must not know blocks' numbers or requests.

Measured on one core: 0.8 µs for a block of 16 tokens (sha256: 0.9 µs).
"""

import hashlib
from array import array
from collections.abc import Sequence

# 256 bits: nobody finds a collision, however long they try.
DIGEST_BYTES = 32


def root_digest(numerics_id: str, principal: str, cache_salt: str, group: str = "") -> bytes:
    """The digest before the first block.

    `numerics_id` stands for the weights and how they are computed with. `group` is not empty where
    only the choices of one request may share.
    """
    hashed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for text in (numerics_id, principal, cache_salt, group):
        data = text.encode("utf-8", "surrogatepass")
        hashed.update(len(data).to_bytes(8, "little"))  # so that no two splits look alike
        hashed.update(data)
    return hashed.digest()


def block_digest(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The digest of a full block of these tokens (each of 32 bits) after `parent`."""
    return hashlib.blake2b(
        parent + array("i", token_ids).tobytes(), digest_size=DIGEST_BYTES
    ).digest()
