"""Endpoints and identities: what is accepted, what is refused, and that names differ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.transports.endpoint import (
    GENERATION_MAX,
    IDENTITY_BYTES,
    BadEndpoint,
    BadIdentity,
    abstract_endpoint,
    check_endpoint,
    decode_identity,
    encode_identity,
    is_local,
)


def test_an_abstract_endpoint_names_one_socket_of_one_incarnation() -> None:
    text = abstract_endpoint("00ff", "frontend", 1, 2, socket="input")
    assert text == "ipc://@triolet-00ff-frontend-1-2-input"
    assert is_local(text)


def test_a_name_that_the_kernel_would_cut_is_refused() -> None:
    with pytest.raises(BadEndpoint, match="longer"):
        abstract_endpoint("f" * 100, "frontend", 0, 0, socket="input")


def test_tcp() -> None:
    check_endpoint("tcp://[::1]:5555")
    assert not is_local("tcp://[::1]:5555")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ipc:///tmp/file",
        "ipc://@",
        "ipc://@a b\x00",
        "inproc://x",
        "tcp://",
        "tcp://host",
        "tcp://:1",
        "tcp://host:",
        "tcp://host:-1",
        "tcp://host:65536",
        "tcp://host:²",
        "http://host:1",
    ],
)
def test_what_is_not_an_endpoint_of_ours(text: str) -> None:
    with pytest.raises(BadEndpoint) as caught:
        check_endpoint(text)
    assert repr(text) in str(caught.value)


@given(st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, GENERATION_MAX))
def test_identities_come_back(rank: int, epoch: int, generation: int) -> None:
    identity = encode_identity(rank, epoch, generation)
    assert identity[0] != 0, "ZeroMQ keeps a leading zero for itself"
    assert len(identity) == IDENTITY_BYTES
    assert decode_identity(identity) == (rank, epoch, generation)


@given(st.binary(max_size=12))
def test_other_bytes_are_an_identity_or_refused(identity: bytes) -> None:
    try:
        decoded = decode_identity(identity)
    except BadIdentity:
        assert identity[:1] != b"E" or len(identity) != IDENTITY_BYTES
    else:
        assert encode_identity(*decoded) == identity
