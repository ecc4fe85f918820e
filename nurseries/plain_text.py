"""Control characters taken out of texts that people read, in a log or in a terminal.

A terminal obeys what stands behind an escape: titles, colours, the clipboard. A line break within a
record of the log looks like the next record. Texts of clients and models hold any of these.
Sans-IO: texts in, texts out.
"""

import re

# C0, DEL, C1, and the line and paragraph separators that some readers break lines at.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# A terminal may break lines and go to the next stop; separators do nothing there.
_TERMINAL_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
REPLACEMENT = "\ufffd"


def escaped(text: str) -> str:
    """The text on one line, each control character spelled as Python spells it: `\\x1b`."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def for_terminal(text: str) -> str:
    """The text with U+FFFD in place of each control character but line breaks and tabs."""
    return _TERMINAL_CONTROL.sub(REPLACEMENT, text)
