"""Each kind of tool that is not served is logged once."""

import pytest

from triolet.api.responses.ignored_tools import IgnoredTools


def test_each_kind_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    ignored = IgnoredTools()
    for kinds in (["mcp", "mcp"], [], ["shell", "mcp"]):
        ignored.note(kinds)
    assert [each.args for each in caplog.records] == [("mcp",), ("shell",)]
