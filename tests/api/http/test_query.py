"""A query is read by its table: typed, bounded, and nothing that is not in it."""

import pytest

from triolet.api.errors import ApiError
from triolet.api.http.query import Query
from triolet.api.http.request import HttpRequest
from triolet.api.schema.reader import Field, Flag, Integer, Text

QUERY = Query(
    {
        "flag": Field(Flag(), "Yes or no."),
        "count": Field(Integer(minimum=-5, maximum=9)),
        "order": Field(Text(choices=("asc", "desc"))),
        "any": Field(Integer()),
    }
)
ABSENT = {"flag": None, "count": None, "order": None, "any": None}


def read(query: str) -> dict[str, object]:
    return QUERY.read(HttpRequest("GET", "/", query, ()))


@pytest.mark.parametrize(
    ("query", "values"),
    [
        ("", {}),
        ("other=1", {}),
        ("flag=true", {"flag": True}),
        ("flag=false&count=-5&order=asc", {"flag": False, "count": -5, "order": "asc"}),
        ("count=1&count=2", {"count": 2}),
        (f"any={2**63 - 1}", {"any": 2**63 - 1}),
    ],
)
def test_values_have_their_types(query: str, values: dict[str, object]) -> None:
    assert read(query) == ABSENT | values


@pytest.mark.parametrize(
    "query",
    [
        "flag=yes",
        "count=x",
        "count=1.0",
        "count=--1",
        "count=%D9%A1",
        "count=10",
        "order=up",
        f"any={2**63}",
        "any=" + "9" * 5000,
    ],
)
def test_a_wrong_value_is_a_400_that_names_it(query: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(query)
    assert (caught.value.status, caught.value.param) == (400, query.partition("=")[0])


def test_too_many_parameters_are_a_400() -> None:
    with pytest.raises(ApiError, match="cannot be read") as caught:
        read("&".join(["flag=true"] * 65))
    assert (caught.value.status, caught.value.param) == (400, "query")


def test_the_document_has_the_bounds_that_are_read() -> None:
    flag, count, order, _ = QUERY.parameters()
    assert (flag["in"], flag["required"], flag["description"]) == ("query", False, "Yes or no.")
    assert flag["schema"] == {"type": "boolean"}
    assert count["schema"] == {"type": "integer", "minimum": -5, "maximum": 9}
    assert order["schema"] == {"type": "string", "enum": ["asc", "desc"]}
