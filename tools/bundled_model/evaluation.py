"""Measures the bundled model on prompts it was not trained on, and fails if it is not good enough.

    python -m triolet.tools.bundled_model.evaluation [--model DIR]

What is asked: stories about held-out pairs of animal and object (greedy and sampled), capitals in
held-out phrasings, JSON descriptions of held-out pairs of name and animal. What counts: see the
`*_is_right` functions. The runtime itself answers, so the model is measured as it is served.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

import attrs

from ...engine.messages import FinishReason
from ...engine.model.bundled import bundled_model_folder
from ...engine.sampling_params import SamplingParams
from ...runtime.llm import LLM, Completion
from .generator import (
    BOS,
    DescriptionPrompt,
    StoryPrompt,
    draw_capital_prompt,
    draw_description_prompt,
    draw_document,
    draw_story_prompt,
)
from .words import CAPITALS

PROMPTS = 300
SEED = "evaluation"
# A mention can be an accident of the plot; twice, and the story is about it.
MENTIONS_MIN = 2
STORY_TEMPERATURE = 0.7
ANSWER_TOKENS_MAX = 400
LOSS_DOCUMENTS = 400

STORIES_MIN = 0.95
CAPITALS_MIN = 0.99
DESCRIPTIONS_MIN = 0.99

Asked = TypeVar("Asked")


@attrs.frozen
class Answer:
    """Answer of the model; `ended` is False where it was cut off before its end token."""

    text: str
    ended: bool


# Answers prompts, in order, at a temperature.
Answerer = Callable[[list[str], float], list[Answer]]


@attrs.frozen
class Score:
    """Measure: `right` of `asked` answers, and the share below which the model is refused."""

    measure: str
    right: int
    asked: int
    share_min: float
    wrong: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the share of right answers reaches the minimum."""
        return self.right >= self.asked * self.share_min

    def __str__(self) -> str:
        return (
            f"{self.measure}: {self.right} of {self.asked} ({self.right / self.asked:.1%},"
            f" at least {self.share_min:.0%}): {'ok' if self.passed else 'BELOW THE MINIMUM'}"
        )


def story_is_right(asked: StoryPrompt, answer: Answer) -> bool:
    """A story ends by itself and names animal and object, as whole words, twice or more each."""
    words = re.findall(r"\w+", answer.text.lower())
    counts = (words.count(asked.animal.word), words.count(asked.thing.word))
    return answer.ended and min(counts) >= MENTIONS_MIN


def capital_is_right(asked: tuple[str, str], answer: Answer) -> bool:
    """An answer names the country's capital and no other capital."""
    named = {city for city in CAPITALS.values() if re.search(rf"\b{city}\b", answer.text)}
    return answer.ended and named == {CAPITALS[asked[1]]}


def description_is_right(asked: DescriptionPrompt, answer: Answer) -> bool:
    """The whole answer is one JSON object with exactly the given keys, values and types."""
    try:
        found = json.loads(answer.text)
    except (ValueError, RecursionError):
        return False
    # Through JSON once more, because True == 1 in Python.
    return answer.ended and json.dumps(found, sort_keys=True) == json.dumps(
        asked.values, sort_keys=True
    )


def evaluate(answer: Answerer, prompts: int = PROMPTS) -> list[Score]:
    """Take all four measures, over `prompts` different held-out prompts each."""
    stories = _draw_different(prompts, draw_story_prompt, lambda one: one.prompt)
    capitals = _draw_different(prompts, draw_capital_prompt, lambda one: one[0])
    descriptions = _draw_different(prompts, draw_description_prompt, lambda one: one.prompt)

    def score(
        measure: str,
        asked: dict[str, Asked],
        is_right: Callable[[Asked, Answer], bool],
        share_min: float,
        *,
        temperature: float = 0.0,
    ) -> Score:
        answers = answer(list(asked), temperature)
        wrong = [
            f"{prompt} -> {said.text}"
            for (prompt, subject), said in zip(asked.items(), answers, strict=True)
            if not is_right(subject, said)
        ]
        return Score(measure, len(asked) - len(wrong), len(asked), share_min, tuple(wrong))

    warm = f"stories, temperature {STORY_TEMPERATURE}"
    return [
        score("stories, greedy", stories, story_is_right, STORIES_MIN),
        score(warm, stories, story_is_right, STORIES_MIN, temperature=STORY_TEMPERATURE),
        score("capitals", capitals, capital_is_right, CAPITALS_MIN),
        score("JSON objects", descriptions, description_is_right, DESCRIPTIONS_MIN),
    ]


def _draw_different(
    count: int, draw: Callable[..., Asked], prompt_of: Callable[[Asked], str]
) -> dict[str, Asked]:
    """{prompt: what is asked in it}, so many held-out ones."""
    random = Random(SEED)
    drawn: dict[str, Asked] = {}
    while len(drawn) < count:
        one = draw(random, held_out=True)
        drawn.setdefault(prompt_of(one), one)
    return drawn


def answers_of(llm: LLM) -> Answerer:
    """Answers of a model as the runtime serves it; each prompt is drawn for by the same seed."""

    def answer(prompts: list[str], temperature: float) -> list[Answer]:
        params = SamplingParams(max_tokens=ANSWER_TOKENS_MAX, temperature=temperature, seed=0)
        asked = [[{"role": "user", "content": prompt}] for prompt in prompts]
        return [
            Answer(each.text, each.finish_reason is FinishReason.STOP)
            for each in llm.chat(asked, params)
        ]

    return answer


def measure_loss(llm: LLM, documents: int) -> float:
    """Nats per token over fresh documents of the corpus, each read alone from its begin token."""
    random = Random(f"{SEED}/loss")
    drawn = [draw_document(random).removeprefix(BOS) for _ in range(documents)]
    read = llm.generate(drawn, SamplingParams(max_tokens=1, prompt_logprobs=0))
    losses = [-logprob for each in read for logprob in _prompt_logprobs(each)]
    return sum(losses) / len(losses)


def _prompt_logprobs(read: Completion) -> list[float]:
    """Logprob of each token of a prompt but the first; the token itself is in the first column."""
    found = read.prompt_logprobs
    assert found is not None
    return list(found.logprobs[:: found.width])


def main() -> None:
    """The command line: print every measure, exit with 1 if one is below its minimum."""
    parser = argparse.ArgumentParser(description="Measure the bundled model.")
    parser.add_argument("--model", type=Path, default=bundled_model_folder())
    parser.add_argument("--show-wrong", action="store_true", help="print the wrong answers")
    arguments = parser.parse_args()
    with LLM(str(arguments.model)) as llm:
        loss = measure_loss(llm, LOSS_DOCUMENTS)
        print(f"loss on fresh documents: {loss:.4f} nats per token", flush=True)
        scores = evaluate(answers_of(llm))
    for score in scores:
        print(score)
        if arguments.show_wrong:
            print(*score.wrong, sep="\n")
    sys.exit(0 if all(score.passed for score in scores) else 1)


if __name__ == "__main__":
    main()
