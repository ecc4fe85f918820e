"""Control characters of clients and models, kept from logs and terminals."""

from triolet.nurseries.plain_text import escaped, for_terminal


def test_a_terminal_is_given_lines_and_tabs_alone() -> None:
    clipboard = "near\x1b]52;c;cm0=\x07\tthe\nbeach\r\x7f\x9b31m é\u2028"
    expected = "near\ufffd]52;c;cm0=\ufffd\tthe\nbeach\ufffd\ufffd\ufffd31m é\u2028"
    assert for_terminal(clipboard) == expected


def test_a_record_is_one_line() -> None:
    assert escaped("a\n\tb\x1b[0m\u2029") == "a\\n\\tb\\x1b[0m\\u2029"
