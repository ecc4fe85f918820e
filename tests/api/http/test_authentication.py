"""Keys: which are taken, what principal they make, and that nothing of them is kept."""

import pytest

from triolet.api.errors import ApiError
from triolet.api.http.access import ANONYMOUS, Authentication, principal_of

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
