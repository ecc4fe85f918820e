"""The options' defaults are a load that can be run."""

import attrs

from triolet.bench.load.http import HttpKind
from triolet.bench.load.options import BenchOptions, Protocol
from triolet.bench.load.schedule import Load


def test_the_options_of_a_load_are_its_fields() -> None:
    fields = {field.name for field in attrs.fields(Load)}
    assert fields <= {field.name for field in attrs.fields(BenchOptions)}


def test_every_protocol_but_lanes_is_a_kind_of_http() -> None:
    assert {p.value for p in Protocol} == {kind.value for kind in HttpKind} | {"lanes"}


def test_a_key_is_not_printed() -> None:
    assert "secret" not in repr(BenchOptions(api_key="secret"))
