"""Figures of the source: counted of this checkout, and of what is planted for each."""

import ast
import pathlib

from . import figures
from .house import Module

PLANTED = '''
"""Where it is."""
class Wide:
    """A wide class."""
    on_end: Callable[[], None]

def wire(wide):
    # For whom.
    wide.on_end = print
'''


def test_each_figure_counts_what_is_planted() -> None:
    module = Module("triolet.x", pathlib.Path("x.py"), PLANTED, ast.parse(PLANTED))
    assert figures.openings([module], "docstrings").value == "50 % (1 of 2)"
    assert figures.openings([module], "comments").value == "100 % (1 of 1)"
    assert figures.assigned_callables([module]).value == "1"


def test_the_table_is_whole() -> None:
    assert all(figure.value for figure in figures.figures())
