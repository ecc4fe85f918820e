"""Host and Origin: rebinding and foreign pages are refused, loopback and configured names pass."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.errors import ApiError
from triolet.api.http.access import (
    ANONYMOUS,
    SUBPROTOCOL,
    Authentication,
    OriginPolicy,
    authorization_of,
    authorization_of_offer,
    sealed,
    split_host,
)

POLICY = OriginPolicy.of(("api.example",), ("https://app.example",))


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "127.8.8.8", "API.example:443",
     "a.localhost", "localhost.", "10.0.0.1:8000", "0.0.0.0", "[2001:db8::1]:80"],
)  # fmt: skip
def test_own_names_pass(host: str) -> None:
    POLICY.check_host(host)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 403),
        ("10.0.0.1.evil.example", 403),
        ("2130706433", 403),
        ("0x7f.1", 403),
        ("localhost.evil.example", 403),
        ("api.example.evil", 403),
        ("user@localhost", 400),
        ("localhost/x", 400),
        ("localhost:99999", 400),
        ("[::1]evil", 400),
        ("[::1]evil:80", 400),
        ("a, localhost", 400),
        ("", 400),
        (".", 400),
        (".:80", 400),
    ],
)
def test_other_names_do_not(host: str, status: int) -> None:
    with pytest.raises(ApiError) as caught:
        POLICY.check_host(host)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (None, "localhost:8000"),
        ("http://localhost:8000", "localhost:8000"),
        ("http://127.0.0.1", "127.0.0.1:80"),
        ("http://127.0.0.1:80", "127.0.0.1"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("https://app.example", "localhost:8000"),
    ],
)
def test_own_and_listed_pages_pass(origin: str | None, host: str) -> None:
    POLICY.check_origin(origin, host)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://evil.example", "localhost:8000"),
        ("http://localhost:3000", "localhost:8000"),
        ("http://localhost", "127.0.0.1"),
        ("null", "localhost"),
        ("file://", "localhost"),
        ("http://app.example", "localhost"),
        ("https://app.example.evil", "localhost"),
    ],
)
def test_other_pages_do_not(origin: str, host: str) -> None:
    with pytest.raises(ApiError) as caught:
        POLICY.check_origin(origin, host)
    assert caught.value.status == 403


def test_a_star_allows_all() -> None:
    policy = OriginPolicy.of(("*",), ("*",))
    policy.check_host("evil.example")
    policy.check_origin("null", "evil.example")


def test_settings_that_are_no_hosts_are_refused() -> None:
    with pytest.raises(ValueError, match="no/host"):
        OriginPolicy.of(("no/host",), ())


@pytest.mark.parametrize(
    "origin",
    ["", "app.example", "https://", "https://a/b", "://a", "1x://a", "null", "https://a b", "**"],
)
def test_settings_that_are_no_origins_are_refused(origin: str) -> None:
    with pytest.raises(ValueError, match="scheme://name"):
        OriginPolicy.of((), (origin,))


@pytest.mark.parametrize(
    ("listed", "sent"),
    [
        ("https://App.example/", "https://app.example"),
        ("https://app.example:443", "https://app.example"),
        ("http://app.example:80", "http://app.example"),
        ("http://app.example:443", "http://app.example:443"),
        ("http://[fd00::1]:3000", "http://[fd00::1]:3000"),
        ("tauri://localhost", "tauri://localhost"),
    ],
)
def test_listed_origins_are_compared_as_browsers_write_them(listed: str, sent: str) -> None:
    assert OriginPolicy.of((), (listed,)).allows_cross_origin(sent)


@given(st.text(max_size=20))
def test_any_text_is_split_or_refused(text: str) -> None:
    split = split_host(text)
    assert split is None or split[0]


def principal_of(key: str) -> str:
    return Authentication.of_keys((key,)).authenticate(f"Bearer {key}")


KEYS = Authentication.of_keys(("first", "second"))


@pytest.mark.parametrize("key", ["first", "second"])
@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER  "])
def test_each_key_is_its_own_principal(key: str, scheme: str) -> None:
    assert KEYS.authenticate(scheme + key) == principal_of(key)
    assert principal_of("first") != principal_of("second")


@pytest.mark.parametrize(
    "header", [None, "", "first", "Basic first", "Bearer", "Bearer ", "Bearer fir", "Bearer \xff"]
)
def test_anything_else_is_401(header: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        KEYS.authenticate(header)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")


def test_without_keys_everyone_is_anonymous() -> None:
    assert Authentication.of_keys(()).authenticate("Bearer x") == ANONYMOUS


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        Authentication.of_keys(("a", " "))


def test_keys_are_not_kept_or_shown() -> None:
    assert "first" not in repr(KEYS)
    assert principal_of("first") not in repr(KEYS)


def test_an_admin_key_opens_what_a_user_key_opens() -> None:
    keys = Authentication.of_keys(("user",), ("admin",))
    assert keys.authenticate("Bearer admin") == principal_of("admin")
    assert keys.check_admin("Bearer admin") == principal_of("admin")
    for header, status in ((None, 401), ("Bearer x", 401), ("Bearer user", 403)):
        with pytest.raises(ApiError) as caught:
            keys.check_admin(header)
        assert caught.value.status == status


def test_an_admin_key_alone_closes_nothing_else() -> None:
    keys = Authentication.of_keys((), ("admin",))
    assert keys.authenticate(None) == ANONYMOUS
    assert keys.authenticate("Bearer none") == ANONYMOUS
    assert keys.authenticate("Bearer admin") == principal_of("admin")
    with pytest.raises(ValueError, match="empty"):
        Authentication.of_keys((), ("",))


@pytest.mark.parametrize(
    ("headers", "authorization"),
    [
        ({}, None),
        ({"authorization": "Basic x", "x-api-key": "k"}, "Basic x"),
        ({"x-api-key": "k", "api-key": "j"}, "bearer k"),
        ({"api-key": "k"}, "bearer k"),
    ],
)
def test_a_key_may_come_in_other_headers(
    headers: dict[str, str], authorization: str | None
) -> None:
    assert authorization_of(headers.get) == authorization


@pytest.mark.parametrize("key", ["k", "secret", "kéy/+~", "x" * 100])
def test_the_key_of_an_offer_of_subprotocols_is_that_of_a_header(key: str) -> None:
    text = base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")
    offered = [SUBPROTOCOL, f"triolet.key.{text}"]
    assert authorization_of_offer(offered) == f"bearer {key}"


def test_an_offer_without_key_stands_for_no_header() -> None:
    assert authorization_of_offer([]) is None
    assert authorization_of_offer([SUBPROTOCOL, "realtime"]) is None


@pytest.mark.parametrize("text", ["!", "a", "_w", "é"])
def test_what_is_no_key_in_an_offer_is_401_without_the_key(text: str) -> None:
    with pytest.raises(ApiError) as refused:
        authorization_of_offer([f"triolet.key.{text}"])
    assert refused.value.status == 401


def test_a_key_may_be_given_as_its_digest() -> None:
    keys = Authentication.of_keys((sealed("user"),), (sealed("admin"),))
    assert keys == Authentication.of_keys(("user",), ("admin",))
    assert sealed(sealed("user")) == sealed("user")
    with pytest.raises(ApiError):
        keys.authenticate(f"Bearer {sealed('user')}")  # who has read it has no key
