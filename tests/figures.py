"""Figures of the source: totals of lines, files at their limit, large classes, words, patches.

    python -m tests.figures [FOLDER …]            of this checkout
    python -m tests.figures --root CHECKOUT       of another, an older one say
    python -m tests.figures -v                    and what each figure is made of

FOLDERs are those whose classes are counted by their attributes. Text is read, nothing is imported.
"""

import argparse
import ast
import io
import pathlib
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from .house import ROOT, Module, modules_below
from .test_patches import PATCHES, patched_attributes
from .test_tidy import lines_max
from .test_totals import PARTS, lines_of

ATTRIBUTES_MIN: Final = 15
NEAR_LINES: Final = 20
# Rooms of children, places, estates and streams; those that exist are looked at.
FOLDERS: Final = (
    *("runtime/launch", "runtime/fleet", "runtime/continuity"),
    *("runtime/journal", "api/streams", "api/responses", "api/completions"),
)
# Pronouns and prepositions: a sentence that begins with one has its subject elsewhere.
WORDS: Final = """It Its One Those They That These Such What Where Who So All None Some Of As For
From With Without Behind Beside Below Until"""
OPENINGS: Final = frozenset(WORDS.split())
DIRECTIVES: Final = ("type:", "noqa", "ruff", "fmt:")
# To break a product is what this one is for.
BREAKS_ON_PURPOSE: Final = "triolet.fuzz.simulator.bugs.replaced"


@attrs.define
class Figure:
    """A line of the table, and the places that it counts."""

    name: str
    value: str
    places: list[str] = attrs.field(factory=list)


def first_word(text: str) -> str:
    found = re.match(r"[^A-Za-z]*([A-Za-z']+)", text)
    return found[1] if found else ""


def docstrings(module: Module) -> Iterator[tuple[int, str]]:
    """Each with its line."""
    for node in module.nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def comments(module: Module) -> Iterator[tuple[int, str]]:
    """First line of each block of comments that has lines of its own."""
    lines, last = module.source.splitlines(), 0
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        number = token.start[0]
        if token.type == tokenize.COMMENT and lines[number - 1].lstrip().startswith("#"):
            if number != last + 1:
                yield number, token.string.lstrip("#").strip()
            last = number


def openings(modules: Sequence[Module], kind: str) -> Figure:
    """How many docstrings, or comments, begin without a subject."""
    read = docstrings if kind == "docstrings" else comments
    places, count = [], 0
    for module in modules:
        for line, text in read(module):
            count += 1
            if first_word(text) in OPENINGS and not text.startswith(DIRECTIVES):
                places.append(f"{module.name}:{line}: {text.splitlines()[0]}")
    share = 100 * len(places) / max(count, 1)
    name = f"{kind} that open with a pronoun or preposition"
    return Figure(name, f"{share:.0f} % ({len(places)} of {count})", places)


def attributes_of(node: ast.ClassDef) -> set[str]:
    """Fields, and what its methods set of `self`."""
    fields = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        if not re.search(r"\b(ClassVar|Final)\b", ast.unparse(each.annotation))
    }
    for each in ast.walk(node):
        match each:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                fields.add(name)
    return fields


def large_classes(modules: Sequence[Module], folders: Sequence[str]) -> Figure:
    places = [
        f"{module.name}.{node.name}: {count}"
        for module in modules
        if module.name.removeprefix("triolet.").startswith(
            tuple(f.replace("/", ".") for f in folders)
        )
        for node in module.nodes
        if isinstance(node, ast.ClassDef) and (count := len(attributes_of(node))) >= ATTRIBUTES_MIN
    ]
    return Figure(f"classes of {ATTRIBUTES_MIN} attributes and more", str(len(places)), places)


def assigned_callables(modules: Sequence[Module]) -> Figure:
    """Fields that are `Callable`, of an attribute that others than its object assign."""
    kinds = defaultdict(set)  # of a name that fields of several classes have
    for module in modules:
        for node in module.nodes:
            for each in node.body if isinstance(node, ast.ClassDef) else ():
                match each:
                    case ast.AnnAssign(target=ast.Name(id=name), annotation=kind):
                        kinds[name].add(ast.unparse(kind).startswith("Callable["))
    fields = {name for name, found in kinds.items() if found == {True}}
    places = []
    for module in modules:
        for node in module.nodes:
            match node:
                case ast.Attribute(ctx=ast.Store(), attr=name, value=owner) if name in fields:
                    if ast.unparse(owner) not in ("self", "cls"):
                        places.append(f"{module.name}:{node.lineno}: {ast.unparse(node)}")
    distinct = {place.rpartition(".")[2] for place in places}
    return Figure("Callable fields assigned from outside", str(len(distinct)), places)


def near_their_limit(modules: Sequence[Module]) -> Figure:
    counts = [(each, len(each.source.splitlines())) for each in modules]
    near = [f"{each.name}: {n}" for each, n in counts if n >= lines_max(each) - NEAR_LINES]
    return Figure(f"product files within {NEAR_LINES} lines of their limit", str(len(near)), near)


def patched(modules: Sequence[Module]) -> Figure:
    """Attributes of modules and classes that the simulator sets in order to run."""
    places = [
        f"{module.name}.{function}: {attribute}"
        for module in modules
        for function, attribute in patched_attributes(module)
        if f"{module.name}.{function}" != BREAKS_ON_PURPOSE
    ]
    ours = [place for place in places if place.rpartition(": ")[0] not in PATCHES]
    said = f"{len(ours)} ({len(places) - len(ours)} with a reason)"
    return Figure("attributes that the simulator patches", said, places)


def figures(root: pathlib.Path = ROOT, folders: Sequence[str] = FOLDERS) -> list[Figure]:
    """The whole table, of a checkout."""
    product = [module for floor in PARTS["product"] for module in modules_below(root, floor)]
    totals = {part: lines_of(part, root) for part in PARTS}
    return [
        *(Figure(f"lines of {part}", f"{lines:,}") for part, lines in totals.items()),
        near_their_limit(product),
        large_classes(product, folders),
        assigned_callables(product),
        openings(product, "docstrings"),
        openings(product, "comments"),
        patched(modules_below(root, "fuzz")),
    ]


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="*", metavar="FOLDER", default=FOLDERS)
    parser.add_argument("--root", type=pathlib.Path, default=ROOT)
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    for figure in figures(options.root.resolve(), options.folders):
        print(f"{figure.name:56} {figure.value}")
        for place in figure.places if options.verbose else ():
            print(f"    {place}")


if __name__ == "__main__":
    main()
