"""Style as a test: the limits of STYLE by the number, held from the first commit."""

import ast
import functools
import io
import pathlib
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

import pytest

from triolet.command_line import app

from .house import ROOT, Module, house_modules, house_target, modules_of_tests, statements_of

FILE_LINES_MAX = 400
# A file that one class fills: nothing is squeezed or moved out to fit.
CLASS_FILE_LINES_MAX = 500
CLASS_SHARE_MIN = 0.6
TEST_FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
LINE_CHARACTERS_MAX = 100
POSITIONAL_MAX = 4
NESTING_MAX = 4
FOLDER_MODULES_MAX = 20
CRUMB_LINES = 60
PRODUCT = ("api", "runtime", "engine", "transports", "nurseries")

PRIVATE = {"told", "teller", "whoever", "nobody", "somebody"}
PRIVATE_WORDS = re.compile(rf"\b({'|'.join(sorted(PRIVATE))})\b", re.IGNORECASE)
# Small modules with one importer, and why each is a module all the same.
CRUMBS = {
    f"triolet.engine.model.{family}": "a file for each family, read top to bottom"
    for family in ("gemma3", "llama", "mistral", "qwen2", "qwen3", "qwen3_moe")
} | {
    "triolet.runtime.frontend.utility_calls": "the one part of the core client that waits",
    "triolet.runtime.text.tokenizer_threads": "waits for what `fair_turns` decides",
    "triolet.runtime.hosts.epoch_blocks": "pure, beside a shell that is long",
    "triolet.runtime.fleet.doubted_contents": "judges deaths for the fleet, which is long",
    "triolet.runtime.launch.hang_watcher": "the shell of `HangWatch`, for a child",
    "triolet.runtime.launch.tree_calls": "what `child_control` asks a child, and waits for",
    "triolet.engine.grammar.times": "the patterns of `text`, to read beside the standard",
    "triolet.engine.worker.torch.tile_plan": "what a tile has, as lists, without a device",
}

# A file for each model family; a benchmark for each part; a process for each kind of poison.
WIDE = {"engine/model", "fuzz/chaos", "fuzz/fuzzers", "bench/parts", "nurseries/processes"}
# Folders whose modules no test imports one by one.
COVERED = {
    "api/openai/fields": "bodies that have them, in `api/openai`",
    "fuzz/fuzzers": "one test runs all that are listed, and their canaries",
    "fuzz/fuzzers/parsers": "the same test",
    "fuzz/doubles": "the contract suites, and the canaries of the fuzzers that use them",
    "fuzz/chaos/surroundings": "a campaign with one fault of each kind, in `chaos`",
    "fuzz/chaos/report": "the same campaign shows one",
    "bench/parts": "benchmarks measure, and assert nothing",
}
# Modules that the tests of their folder reach through a running server, process or command line.
RUN_BY_TESTS = {
    "triolet.api.commands.config_show",
    "triolet.api.commands.entry_points",
    "triolet.api.commands.host",
    "triolet.api.completions.service",
    "triolet.api.responses.service",
    "triolet.api.streams.service",
    "triolet.api.websocket.session",
    "triolet.bench.entry_points",
    "triolet.bench.serving.transformers_process",
    "triolet.bench.steps.timeline",
    "triolet.bench.steps.timeline_picture",
    "triolet.engine.control_messages",
    "triolet.engine.worker.native_process",
    "triolet.engine.worker.torch_process",
    "triolet.fuzz.chaos.chaos_server",
    "triolet.fuzz.chaos.network.host_campaign",
    "triolet.fuzz.chaos.poisoned_engine",
    "triolet.runtime.frontend.frontend",
    "triolet.runtime.frontend.inproc",
    "triolet.runtime.hub.download",
    "triolet.runtime.hub.download_process",
    "triolet.fuzz.drawing",
    "triolet.fuzz.other_process",
    "triolet.fuzz.server_process",
    "triolet.nurseries.processes.boot",
    "triolet.nurseries.processes.forked_call",
    "triolet.fuzz.chaos.poisoned_forms",
    "triolet.fuzz.chaos.poisoned_frontend",
    "triolet.runtime.forms.form_process",
    "triolet.runtime.launchers.local_process",
}

# The firewalls: the only places that may catch any Exception, each for the reason given.
FIREWALLS = {
    "triolet.runtime.launchers.ray_process": "Ray has no error of its own for where no cluster is",
    "triolet.runtime.launch.local_child": "each failure of a child is judged",
    "triolet.runtime.fleet.process_supervisor": "a supervisor's work is failures",
    "triolet.nurseries.processes.boot": "last words of a child that cannot begin",
    "triolet.nurseries.processes.child": "last words of a child that fails",
    "triolet.nurseries.logs": "a mistaken log call must not end who logs",
    "triolet.runtime.llm": "an error crosses to the thread that asked, and is raised there",
    "triolet.api.serving.connection": "a bad connection fails alone",
    "triolet.api.websocket.session": "a bad socket fails alone",
    "triolet.api.websocket.turns": "a bad lane fails alone",
    "triolet.api.streams.served_stream": "a bad stream fails alone",
    "triolet.api.streams.foreign": "a bad answer to another frontend fails alone",
    "triolet.runtime.frontend.core_client": "one request's text must not end everybody's",
    "triolet.engine.grammar.text": "the converter of grammars raises Exception itself",
    "triolet.engine.worker.process": "a step's failure is reported with its traceback",
    "triolet.engine.worker.step_loop": "a step's failure is reported with its traceback",
    "triolet.fuzz.fuzzer": "whatever is raised is the finding",
    "triolet.fuzz.doubles.scripted_child": "whatever a script raises is its end",
    "triolet.fuzz.simulator.kernel": "whatever a simulated process raises is its exit",
}
# Starts of a task that has no name, handle and cancel scope of its own, by module and function: it
# ends with the call that starts it, or is one half of a background task. All others are started by
# `start_background_task` and its kin, in `nurseries.tasks`, the one room that is not looked at.
PARTS_OF_A_CALL = {
    "triolet.api.commands.batch.run": "requests in flight; over with the last answer",
    "triolet.runtime.llm._generate_all": "prompts in flight; over with the last answer",
    "triolet.runtime.fleet.connection_dispatcher.drain": "one message each, with a deadline",
    "triolet.engine.process.executor.trees": "one question each, with a deadline",
    "triolet.engine.process.step_rings._take_answers": "answers of one step, with a deadline",
    "triolet.nurseries.processes.kept_process.keep_while": "watches deaths as long as one wait",
    "triolet.nurseries.processes.death_watch._wait_any": "the first witness ends the others",
    "triolet.nurseries.processes.process._ready_or_dead": "watches a death until one is ready",
    "triolet.nurseries.processes.process_pool._start_all": "over when the ranks have started",
    "triolet.nurseries.processes.child._run_death_monitor": "the death monitor's own eyes",
    # This floor does not know `nurseries`.
    "triolet.transports.links.zmq_thread.run": "the wait for the thread that this very task owns",
}
BANNED = {
    "time.sleep", "weakref.finalize", "trio.run_process", "torch.load",
    "trio.lowlevel.open_process", "threading.Thread", "atexit.register",
    "time.time", "time.time_ns", "datetime.datetime.now",  # clocks that others set
}  # fmt: skip
BANNED_ENDS = {spelled.rpartition(".")[2] for spelled in BANNED}
# The blocking face has the loop in a thread.
ALLOWED = {
    ("triolet.runtime.llm", "threading.Thread"),
    # What clients and models are shown.
    ("triolet.api.completions.service", "time.time"),
    ("triolet.api.http.connection", "time.time"),
    ("triolet.engine.process.kv_publisher", "time.time"),
    ("triolet.api.responses.response", "time.time"),
    ("triolet.nurseries.tasks.task_rows", "time.time"),
    ("triolet.api.span_export", "time.time_ns"),
    ("triolet.api.responses.service", "time.time"),
    ("triolet.runtime.text.chat_template", "datetime.datetime.now"),
    ("triolet.tools.bundled_model.training", "torch.load"),  # the run's own checkpoint
}
NOTE = r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))"
NESTERS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.AsyncFor, ast.AsyncWith, ast.Match)
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

# What is wrong with one module.
Rule = Callable[[Module], Iterable[str]]


def broken_in_house(rule: Rule) -> dict[str, list[str]]:
    """{module: what is wrong}. All in one test: a test for each takes longer than the look."""
    return {module.name: found for module in house_modules() if (found := list(rule(module)))}


def broken_anywhere(rule: Rule) -> dict[str, list[str]]:
    """The same, tests included."""
    tests = {module.name: found for module in modules_of_tests() if (found := list(rule(module)))}
    return {**broken_in_house(rule), **tests}


def _functions(module: Module) -> Iterator[FunctionNode]:
    for node in module.nodes:
        if isinstance(node, FunctionNode):
            yield node


def _length(node: FunctionNode | ast.ClassDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def _nesting(node: ast.AST, depth: int = 0) -> int:
    deepest = depth
    for child in statements_of(node):
        is_elif = isinstance(node, ast.If) and node.orelse == [child]
        step = 1 if isinstance(child, NESTERS) and not is_elif else 0
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        deepest = max(deepest, _nesting(child, depth + step))
    return deepest


def lines_max(module: Module) -> int:
    """Lines that the file of a module may have."""
    if module.name.startswith("tests."):
        return TEST_FILE_LINES_MAX
    largest = max(
        (_length(node) for node in module.nodes if isinstance(node, ast.ClassDef)), default=0
    )
    is_one_class = largest >= CLASS_SHARE_MIN * len(module.source.splitlines())
    return CLASS_FILE_LINES_MAX if is_one_class else FILE_LINES_MAX


def over_limits(module: Module) -> Iterator[str]:
    """Of lines, functions, parameters, nesting."""
    is_test = module.name.startswith("tests.")
    lines = module.source.splitlines()
    limit = lines_max(module)
    if len(lines) > limit:
        yield f"{len(lines)} lines, limit {limit}"
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_CHARACTERS_MAX:
            yield f"line {number} has {len(line)} characters"
    for function in _functions(module):
        if _length(function) > FUNCTION_LINES_MAX:
            yield f"{function.name} has {_length(function)} lines"
        arguments = [*function.args.posonlyargs, *function.args.args]
        count = len([a for a in arguments if a.arg not in ("self", "cls")])
        # A kernel is handed memory alone, one address after another.
        is_kernel = "triton.jit" in map(ast.unparse, function.decorator_list)
        if count > POSITIONAL_MAX and not is_test and not is_kernel:
            yield f"{function.name} takes {count} positional parameters"
        if _nesting(function) > NESTING_MAX:
            yield f"{function.name} nests {_nesting(function)} deep"


def test_limits() -> None:
    assert broken_anywhere(over_limits) == {}


def bad_openings(module: Module) -> Iterator[str]:
    """A module says why it exists, in a sentence."""
    first = module.docstring.split("\n\n")[0].strip()
    if not first:
        yield "no module docstring"
    elif not (first[0].isupper() or first.startswith("`")):
        yield "the first paragraph does not begin as a sentence"
    elif not first.endswith((".", ":")):
        yield "the first paragraph is not a sentence"


def test_openings_say_why_modules_exist() -> None:
    assert broken_in_house(bad_openings) == {}


def private_words(module: Module) -> Iterator[str]:
    """In identifiers and first lines stand the field's words (STYLE 7)."""
    first = module.docstring.splitlines()[0] if module.docstring else ""
    if match := PRIVATE_WORDS.search(first):
        yield f"line 1: {match[0]}"
    for node in module.nodes:
        for name in _names_defined(node):
            if set(re.split("_+", re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower())) & PRIVATE:
                yield f"line {getattr(node, 'lineno', 0)}: {name}"


def _names_defined(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return (name,)
        case ast.arg(arg=name) | ast.keyword(arg=str(name)):
            return (name,)
    return ()


def test_names_and_first_lines_use_the_words_of_the_field() -> None:
    assert broken_in_house(private_words) == {}


def test_no_class_name_occurs_twice() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for module in house_modules():
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and module.room in PRODUCT:
                homes[node.name].append(module.name)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_crumbs_have_a_reason() -> None:
    importers = Counter(
        target
        for module in house_modules()
        for target in {house_target(item.target) for item in module.imports}
        if target != module.name
    )
    crumbs = {
        module.name
        for module in house_modules()
        if module.room in PRODUCT and not module.is_package and importers[module.name] == 1
        if len(module.source.splitlines()) < CRUMB_LINES
    }
    assert crumbs == set(CRUMBS)


def missing_docstrings(module: Module) -> Iterator[str]:
    """Of public names."""
    for node in module.tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not node.name.startswith("_") and ast.get_docstring(node) is None:
            yield node.name


def test_public_names_have_docstrings() -> None:
    assert broken_in_house(missing_docstrings) == {}


def banned_constructs(module: Module) -> Iterator[str]:
    """What has a better way here, or a place of its own."""
    for node in module.nodes:
        if isinstance(node, ast.ExceptHandler):
            names = [] if node.type is None else ast.unparse(node.type).strip("()").split(", ")
            broad = node.type is None or {"Exception", "BaseException"} & set(names)
            if broad and module.name not in FIREWALLS and not _reraises(node):
                yield f"line {node.lineno}: catches everything outside a firewall"
        elif isinstance(node, FunctionNode) and node.name == "__del__":
            yield f"line {node.lineno}: __del__ is no owner"
        elif isinstance(node, ast.Attribute) and node.attr in BANNED_ENDS:
            spelled = _spelling(node)
            if spelled in BANNED and (module.name, spelled) not in ALLOWED:
                yield f"line {node.lineno}: {spelled}"


def test_banned_constructs() -> None:
    assert broken_in_house(banned_constructs) == {}


def _bare_starts(nodes: Iterable[ast.AST], function: str) -> Iterator[str]:
    """Innermost functions with `nursery.start_soon(…)` or `await nursery.start(…)` in them."""
    for node in nodes:
        inner = node.name if isinstance(node, FunctionNode) else function
        match node:
            case ast.Call(func=ast.Attribute(value=nursery, attr="start_soon" | "start" as attr)):
                if attr == "start_soon" or "nursery" in ast.unparse(nursery):
                    yield inner
        yield from _bare_starts(ast.iter_child_nodes(node), inner)


def test_tasks_that_outlive_a_call_have_a_name_a_handle_and_a_scope() -> None:
    bare = {
        f"{module.name}.{function}"
        for module in house_modules()
        if module.room in PRODUCT and not module.name.startswith("triolet.nurseries.tasks.")
        for function in _bare_starts([module.tree], "")
    }
    assert bare == set(PARTS_OF_A_CALL)


def bad_habits(module: Module) -> Iterator[str]:
    """Of tests, and of the house."""
    yield from notes_without_issue(module)
    if module.name.startswith("tests."):
        yield from sleeps_by_the_wall_clock(module)
        yield from mocks(module)
    else:
        yield from unbounded_queues(module)
        yield from names_from_elsewhere(module)


def test_habits() -> None:
    assert broken_anywhere(bad_habits) == {}


def _calls(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.Call]]:
    """Every call, with the spelling of what is called."""
    for node in nodes:
        if isinstance(node, ast.Call):
            yield _spelling(node.func), node


def _spelling(node: ast.AST) -> str:
    """As `ast.unparse`, which takes fifty times as long for a plain name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
        return f"{_spelling(node.value)}.{node.attr}"
    return ast.unparse(node)


def unbounded_queues(module: Module) -> Iterator[str]:
    """A queue without a bound of its own needs a comment within two lines that names the bound."""
    lines = module.source.splitlines()
    for name, call in _calls(module.nodes):
        if name.split(".")[-1] not in ("deque", "field") and "open_memory_channel" not in name:
            continue
        made = [*call.args, *(word.value for word in call.keywords if word.arg == "factory")]
        texts = [ast.unparse(each) for each in made]
        bounded = len(call.args) > 1 or any(word.arg == "maxlen" for word in call.keywords)
        is_deque = name in ("deque", "collections.deque") and not bounded
        is_factory = name == "attrs.field" and "deque" in texts
        is_channel = "open_memory_channel" in name and "math.inf" in texts
        near = lines[max(0, call.lineno - 3) : call.lineno + 2]
        if (is_deque or is_factory or is_channel) and not any(
            "bound" in line.partition("#")[2].lower() for line in near
        ):
            yield f"line {call.lineno}: a queue whose bound no comment names"


def notes_without_issue(module: Module) -> Iterator[str]:
    """What is left to do is written in an issue: `TODO(#12)`."""
    if not re.search(NOTE, module.source):
        return
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        if token.type == tokenize.COMMENT and re.search(NOTE, token.string):
            yield f"line {token.start[0]}: a note without its issue"


def names_from_elsewhere(module: Module) -> Iterator[str]:
    """`getattr` with a name that is not written here may be any name that somebody sends."""
    for name, call in _calls(module.nodes):
        if name == "getattr" and not isinstance(call.args[1], ast.Constant):
            yield f"line {call.lineno}: getattr of {ast.unparse(call.args[1])}"


def sleeps_by_the_wall_clock(module: Module) -> Iterator[str]:
    """A test sleeps under a clock that jumps, or waits for the thing itself."""
    for function in _functions(module):
        clocks = {"autojump_clock", "mock_clock"} & {a.arg for a in function.args.args}
        if not function.name.startswith("test_") or clocks:
            continue
        for name, call in _calls(ast.walk(function)):
            if name in ("trio.sleep", "trio.sleep_until", "time.sleep"):
                yield f"line {call.lineno}: {function.name} sleeps"


def mocks(module: Module) -> Iterator[str]:
    """Fakes, never mocks."""
    for item in module.imports:
        if item.target.startswith("unittest"):
            yield f"line {item.line}: {item.target}"


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("a = deque()", unbounded_queues),
        ("a = deque(old)", unbounded_queues),
        ("a = attrs.field(factory=deque, init=False)", unbounded_queues),
        ("a, b = trio.open_memory_channel[int](math.inf)", unbounded_queues),
        ("# bounded by its peers\n\n\na = deque()", unbounded_queues),
        ("a = 1  # TODO: more", notes_without_issue),
        ("a = getattr(b, name)", names_from_elsewhere),
        ("async def test_a():\n    await trio.sleep(1)", sleeps_by_the_wall_clock),
        ("from unittest.mock import patch", mocks),
        ("a" * 101, over_limits),
        ("def f():\n" + "    a\n" * 60, over_limits),
        ("a = 1", bad_openings),
        ('"""why"""', bad_openings),
        ("def f(): pass", missing_docstrings),
        ("try:\n    a\nexcept Exception:\n    pass", banned_constructs),
        ("try:\n    a\nexcept (b, BaseException):\n    pass", banned_constructs),
        ("class A:\n    def __del__(self): pass", banned_constructs),
        ("a = threading.Thread()", banned_constructs),
        ("deadline = time.time() + 1", banned_constructs),
        ("async def f():\n    await trio.lowlevel.open_process(a)", banned_constructs),
    ],
)
def test_a_rule_finds_what_breaks_it(source: str, rule: Callable[[Module], Iterator[str]]) -> None:
    assert list(rule(Module("tests.x", pathlib.Path("x.py"), source, ast.parse(source))))


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("a = deque((), 4)", unbounded_queues),
        ("a = deque(maxlen=4)", unbounded_queues),
        ("# Bounded by its peers.\n\na = deque()", unbounded_queues),
        ("a, b = trio.open_memory_channel(4)", unbounded_queues),
        ("a = 1  # TODO(#12): more", notes_without_issue),
        ("a = getattr(b, 'name')", names_from_elsewhere),
        ("async def test_a(autojump_clock):\n    await trio.sleep(1)", sleeps_by_the_wall_clock),
        ("def f():\n" + "    a\n" * 59, over_limits),
        ('"""Why."""', bad_openings),
        ("def _f(): pass", missing_docstrings),
        ("try:\n    a\nexcept Exception:\n    raise", banned_constructs),
        ("a = threading.Event()", banned_constructs),
        ("deadline = time.monotonic() + 1", banned_constructs),
    ],
)
def test_a_rule_lets_pass_what_keeps_it(
    source: str, rule: Callable[[Module], Iterator[str]]
) -> None:
    assert not list(rule(Module("tests.x", pathlib.Path("x.py"), source, ast.parse(source))))


def test_environment_variables_that_are_named_exist() -> None:
    modules = [*house_modules(), *modules_of_tests()]
    told = [ROOT / "Makefile", *ROOT.glob("*.md"), *ROOT.glob("*/*.md")]
    texts = [*(module.source for module in modules), *(path.read_text() for path in told)]
    named = {name for text in texts for name in re.findall(r"\bTRIOLET_[A-Z_]*[A-Z]\b", text)}
    used = {
        node.value
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    options = {option for name in ("serve", "run", "bench") for option in _option_variables(name)}
    assert named - used - options == set()


def test_files_that_documents_name_exist() -> None:
    """`tests/README.md` and its kind name files from their own folder or from the root."""
    missing = []
    for document in [*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/**/*.md")]:
        for name in re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)+\.[a-z]+)`", document.read_text()):
            if not any((folder / name).exists() for folder in (document.parent, ROOT)):
                missing.append(f"{document.relative_to(ROOT)}: {name}")
        for name in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", document.read_text()):
            if not (document.parent / name).exists():
                missing.append(f"{document.relative_to(ROOT)}: a link to {name}")
    assert not missing


def _option_variables(command: str) -> Iterator[str]:
    """Every option of a command is a variable as well."""
    for argument in app[command].assemble_argument_collection():
        yield "TRIOLET_" + re.sub(r"[-.]", "_", argument.name.removeprefix("--")).upper()


def _reraises(handler: ast.ExceptHandler) -> bool:
    """A handler that ends in a bare `raise` only looks; it hides nothing."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise)


def uncovered(module: Module) -> Iterator[str]:
    """A test file of its folder imports a module, or another one of the folder that needs it."""
    folder = module.path.relative_to(ROOT).parent
    is_exempt = module.is_package or module.path.name == "__main__.py" or str(folder) in COVERED
    is_exempt = is_exempt or module.name in RUN_BY_TESTS
    if not is_exempt and module.name not in _reached_by_tests_of(folder):
        yield f"no test of tests/{folder} reaches it"


@functools.cache
def _reached_by_tests_of(folder: pathlib.Path) -> frozenset[str]:
    modules = {m.name: m for m in house_modules() if m.path.parent == ROOT / folder}
    tests = [m for m in modules_of_tests() if m.path.parent == ROOT / "tests" / folder]
    reached: set[str] = set()
    waiting = [test for test in tests if test.path.name.startswith("test_")]
    while waiting:
        targets = {house_target(item.target) for item in waiting.pop().imports}
        newly = {target for target in targets if target in modules} - reached
        reached |= newly
        waiting += [modules[name] for name in newly]
    return frozenset(reached)


def test_every_module_is_covered_by_a_test_file_of_its_folder() -> None:
    assert broken_in_house(uncovered) == {}


def test_folders_hold_what_one_can_look_over() -> None:
    counts = Counter(
        str(module.path.relative_to(ROOT).parent)
        for module in house_modules()
        if not module.is_package
    )
    wide = {folder: count for folder, count in counts.items() if count > FOLDER_MODULES_MAX}
    assert set(wide) <= WIDE


def test_every_module_is_imported_or_a_declared_main() -> None:
    used = {
        target
        for module in (*house_modules(), *modules_of_tests())
        for item in module.imports
        if (target := house_target(item.target)) is not None and target != module.name
    }
    text = "\n".join(m.source for m in (*house_modules(), *modules_of_tests()))
    dead = [
        module.name
        for module in house_modules()
        if not module.is_package
        and module.name not in used
        and '__name__ == "__main__"' not in module.source
        and f'"{module.name}"' not in text
        and f'".{module.name.rsplit(".", 1)[1]}"' not in text
    ]
    assert not dead
