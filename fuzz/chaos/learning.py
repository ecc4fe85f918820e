"""The right answers of all scripts, from undisturbed runs.

Learnt from the run itself; where its engines compute with several instruction sets, from one server
for each, which has that one alone: then a script has several right answers, none of them mixed.
"""

import pathlib

import trio

from ...engine.model.bundled import bundled_model_folder
from ...engine.model_config.config import load_model_limits
from ..observers import NotInTime
from .checkers import Expected
from .fault_plan import Transport
from .history import Ending, StreamHistory, Violation
from .load import PROBES, SCRIPTS, check_null_tokens, run_script
from .options import ChaosOptions
from .served_run import ServedRun, open_served_run

# By script, each of its right answers.
Answers = list[tuple[Expected, ...]]


async def learn_apart(options: ChaosOptions, folder: pathlib.Path) -> Answers:
    """From a server for each instruction set. Raises `NotInTime`, also where two answers are equal:
    then nothing would show that they are mixed."""
    found: dict[str, Answers] = {}

    async def learn(isa: str) -> None:
        path = folder / f"alone-{isa}"
        path.mkdir()
        async with open_served_run(path, options.words_of_reference(isa)) as run:
            found[isa] = answers_of(await run_scripts(run, options.keys()[0]))

    async with trio.open_nursery() as nursery:
        for isa in options.isas():
            nursery.start_soon(learn, isa)
    each_isas = [found[isa] for isa in options.isas()]
    answers = [tuple(each for (each,) in every) for every in zip(*each_isas, strict=True)]
    if any(len({each.logprobs for each in every}) == 1 for every in answers):
        raise NotInTime("two instruction sets give different answers", 0.0)
    return answers


async def run_scripts(run: ServedRun, key: str) -> list[StreamHistory]:
    """Run all scripts at once, after the shorter ones, so that what is made lazily is there."""
    histories: dict[int, StreamHistory] = {}

    async def run_one(number: int, transport: Transport) -> None:
        histories[number] = await run_script(
            run.port, SCRIPTS[number], f"script {number}", transport, key=key
        )

    for first in (len(PROBES), 0):
        async with trio.open_nursery() as nursery:
            for number in range(first, len(SCRIPTS)):
                nursery.start_soon(run_one, number, list(Transport)[number % 2])
    return [histories[number] for number in range(len(SCRIPTS))]


def answers_of(histories: list[StreamHistory]) -> Answers:
    """What these undisturbed streams gave. Raises `NotInTime` of one that is not whole."""
    for history, script in zip(histories, SCRIPTS, strict=True):
        if history.ending is not Ending.FINISHED or len(history.token_ids) != script.tokens:
            raise NotInTime(f"{history.name} gives its tokens undisturbed", 0.0)
    return [(Expected(tuple(h.token_ids), h.text, tuple(h.logprobs)),) for h in histories]


def judge_null(histories: list[StreamHistory]) -> list[Violation]:
    """I2: the null executor's tokens are recomputed here."""
    vocab = load_model_limits(str(bundled_model_folder())).vocab_size
    return [
        violation
        for history, script in zip(histories, SCRIPTS, strict=True)
        for violation in check_null_tokens(script, history.token_ids, vocab)
    ]
