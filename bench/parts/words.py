"""Parser of a benchmark's command line, made from its docstring."""

import argparse

from ..steps.shapes import SHAPES


def argument_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the docstring as it stands."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_shapes(parser: argparse.ArgumentParser) -> None:
    """`shapes`: names of models, all by default."""
    names = ", ".join(SHAPES)
    parser.add_argument("shapes", nargs="*", type=_shape, default=list(SHAPES), help=names)


def at_least_one(text: str) -> int:
    """A number of rounds, requests or the like."""
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {count}")
    return count


def _shape(name: str) -> str:
    if name not in SHAPES:
        raise argparse.ArgumentTypeError(f"no shape {name!r}; there are: {', '.join(SHAPES)}")
    return name
