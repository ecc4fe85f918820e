"""Parser of a benchmark's command line, made from its docstring."""

import argparse


def argument_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the docstring as it stands."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def at_least_one(text: str) -> int:
    """A number of rounds, requests or the like."""
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {count}")
    return count
