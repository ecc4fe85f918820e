"""Measures the bundled model on prompts it was not trained on, and fails if it is not good enough.

    python -m triolet.tools.bundled_model.evaluation [--model DIR]

What is asked: stories about held-out pairs of animal and object (greedy and sampled), capitals in
held-out phrasings, JSON descriptions of held-out pairs of name and animal. What counts: see the
`*_is_right` functions.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

import attrs
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from ...engine.model.bundled import bundled_model_folder
from .artefacts import POSITIONS_MAX, read_safetensors, read_shape
from .generator import (
    EOS,
    SPECIAL_TOKENS,
    DescriptionPrompt,
    Exchange,
    StoryPrompt,
    draw_capital_prompt,
    draw_description_prompt,
    draw_document,
    draw_story_prompt,
    render,
)
from .training_model import Cache, TrainingModel
from .words import CAPITALS

PROMPTS = 300
SEED = "evaluation"
# A mention can be an accident of the plot; twice, and the story is about it.
MENTIONS_MIN = 2
STORY_TEMPERATURE = 0.7
ANSWER_TOKENS_MAX = 400
# Sequences generated side by side: the fastest of a few sizes tried on two CPU cores.
BATCH_SEQUENCES = 100
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


def story_is_right(asked: StoryPrompt, answer: Answer) -> bool:
    """A story ends by itself and names animal and object, as whole words, twice or more each."""
    words = re.findall(r"\w+", answer.text.lower())
    counts = (words.count(asked.animal.word), words.count(asked.thing.word))
    return answer.ended and min(counts) >= MENTIONS_MIN


def capital_is_right(country: str, answer: Answer) -> bool:
    """An answer names the country's capital and no other capital."""
    named = {city for city in CAPITALS.values() if re.search(rf"\b{city}\b", answer.text)}
    return answer.ended and named == {CAPITALS[country]}


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


def load_model(folder: Path) -> tuple[TrainingModel, Tokenizer]:
    """The model in `folder`, its bfloat16 weights widened to float32, and its tokenizer."""
    model = TrainingModel(read_shape(folder))
    weights, _ = read_safetensors(folder / "model.safetensors")
    model.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


class Generator:
    """Answers many prompts at once: left-padded batches over one growing cache."""

    def __init__(
        self,
        model: TrainingModel,
        tokenizer: Tokenizer,
        answer_tokens_max: int = ANSWER_TOKENS_MAX,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.answer_tokens_max = answer_tokens_max
        self.eos_id = SPECIAL_TOKENS.index(EOS)

    def answer(self, prompts: list[str], *, temperature: float, seed: int = 0) -> list[Answer]:
        """Answer each prompt, in order; temperature 0 is greedy, else drawn from `seed`."""
        return self.complete(
            [open_turn(prompt) for prompt in prompts], temperature=temperature, seed=seed
        )

    def complete(self, texts: list[str], *, temperature: float, seed: int = 0) -> list[Answer]:
        """Continue each tagged text (begin token included), in order."""
        generator = torch.Generator().manual_seed(seed)
        encoded = [self.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        by_length = sorted(range(len(encoded)), key=lambda index: len(encoded[index]))
        answers: dict[int, Answer] = {}
        for first in range(0, len(by_length), BATCH_SEQUENCES):
            members = by_length[first : first + BATCH_SEQUENCES]
            batch = self._generate([encoded[index] for index in members], temperature, generator)
            answers.update(zip(members, batch, strict=True))
        return [answers[index] for index in range(len(texts))]

    @torch.inference_mode()
    def _generate(
        self, prompts: list[list[int]], temperature: float, generator: torch.Generator
    ) -> list[Answer]:
        longest = max(map(len, prompts))
        padding_B = torch.tensor([longest - len(prompt) for prompt in prompts])
        tokens_BT = torch.tensor([[self.eos_id] * (longest - len(row)) + row for row in prompts])
        cache, past = Cache(), 0
        ended_B = torch.zeros(len(prompts), dtype=torch.bool)
        drawn: list[Tensor] = []
        for _ in range(min(self.answer_tokens_max, POSITIONS_MAX - longest)):
            positions_T = torch.arange(past, past + tokens_BT.shape[1])
            logits_BV = self.model(
                tokens_BT,
                cache,
                positions_BT=(positions_T[None] - padding_B[:, None]).clamp(min=0),
                mask=_mask(padding_B, positions_T),
            )[:, -1]
            past += tokens_BT.shape[1]
            chosen_B = _choose(logits_BV, temperature, generator)
            chosen_B[ended_B] = self.eos_id
            drawn.append(chosen_B)
            ended_B |= chosen_B == self.eos_id
            if bool(ended_B.all()):
                break
            tokens_BT = chosen_B[:, None]
        texts = self.tokenizer.decode_batch(torch.stack(drawn, dim=1).tolist())
        return [Answer(text, bool(end)) for text, end in zip(texts, ended_B, strict=True)]


def open_turn(prompt: str) -> str:
    """`prompt` as a user's turn, up to and including the tag that opens the model's answer."""
    return render([Exchange(prompt, "")]).removesuffix(EOS)


def measure_loss(model: TrainingModel, tokenizer: Tokenizer, documents: int) -> float:
    """Nats per token over fresh documents of the corpus, each read alone from its begin token."""
    random, total, tokens = Random(f"{SEED}/loss"), 0.0, 0
    with torch.inference_mode():
        for _ in range(documents):
            ids = tokenizer.encode(draw_document(random), add_special_tokens=False).ids
            row = torch.tensor([ids[: POSITIONS_MAX + 1]])
            loss = functional.cross_entropy(model(row[:, :-1])[0], row[0, 1:], reduction="sum")
            total, tokens = total + loss.item(), tokens + row.shape[1] - 1
    return total / tokens


def evaluate(generator: Generator, prompts: int = PROMPTS) -> list[Score]:
    """Take all four measures, over `prompts` different held-out prompts each."""
    stories = _draw_different(
        prompts, lambda random: draw_story_prompt(random, held_out=True), lambda one: one.prompt
    )
    capitals = _draw_different(
        prompts, lambda random: draw_capital_prompt(random, held_out=True), lambda one: one[0]
    )
    descriptions = _draw_different(
        prompts,
        lambda random: draw_description_prompt(random, held_out=True),
        lambda one: one.prompt,
    )
    asked_stories = [(one.prompt, one) for one in stories]
    asked_descriptions = [(one.prompt, one) for one in descriptions]
    warm = f"stories, temperature {STORY_TEMPERATURE}"
    score = partial(_score, generator, is_right=story_is_right, share_min=STORIES_MIN)
    return [
        score("stories, greedy", asked_stories),
        score(warm, asked_stories, temperature=STORY_TEMPERATURE),
        _score(generator, "capitals", capitals, is_right=capital_is_right, share_min=CAPITALS_MIN),
        _score(
            generator,
            "JSON objects",
            asked_descriptions,
            is_right=description_is_right,
            share_min=DESCRIPTIONS_MIN,
        ),
    ]


def _score(
    generator: Generator,
    measure: str,
    asked: list[tuple[str, Asked]],
    *,
    is_right: Callable[[Asked, Answer], bool],
    share_min: float,
    temperature: float = 0.0,
) -> Score:
    answers = generator.answer([prompt for prompt, _ in asked], temperature=temperature)
    wrong = [
        f"{prompt} -> {answer.text}"
        for (prompt, subject), answer in zip(asked, answers, strict=True)
        if not is_right(subject, answer)
    ]
    return Score(measure, len(asked) - len(wrong), len(asked), share_min, tuple(wrong))


def _draw_different(
    count: int, draw: Callable[[Random], Asked], key: Callable[[Asked], str]
) -> list[Asked]:
    random = Random(SEED)
    drawn: dict[str, Asked] = {}
    while len(drawn) < count:
        one = draw(random)
        drawn.setdefault(key(one), one)
    return list(drawn.values())


def _mask(padding_B: Tensor, positions_T: Tensor) -> Tensor:
    """Causal and not on padding, `(B, 1, T, S)`; padding sees itself, so that no row is empty."""
    keys_S = torch.arange(int(positions_T[-1]) + 1)
    causal_TS = keys_S[None] <= positions_T[:, None]
    real_BS = keys_S[None] >= padding_B[:, None]
    itself_TS = keys_S[None] == positions_T[:, None]
    return ((causal_TS[None] & real_BS[:, None]) | itself_TS[None])[:, None]


def _choose(logits_BV: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    if temperature == 0:
        return logits_BV.argmax(-1)
    shares_BV = (logits_BV / temperature).softmax(-1)
    return torch.multinomial(shares_BV, 1, generator=generator)[:, 0]


def main() -> None:
    """The command line: print every measure, exit with 1 if one is below its minimum."""
    parser = argparse.ArgumentParser(description="Measure the bundled model.")
    parser.add_argument("--model", type=Path, default=bundled_model_folder())
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--show-wrong", action="store_true", help="print the wrong answers")
    parser.add_argument("--ask", help="answer this one prompt instead")
    parser.add_argument("--temperature", type=float, default=STORY_TEMPERATURE)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    generator = Generator(*load_model(arguments.model))
    if arguments.ask is not None:
        print(generator.answer([arguments.ask], temperature=arguments.temperature)[0].text)
        return
    loss = measure_loss(generator.model, generator.tokenizer, LOSS_DOCUMENTS)
    print(f"loss on fresh documents: {loss:.4f} nats per token", flush=True)
    scores = evaluate(generator)
    for score in scores:
        verdict = "ok" if score.passed else "BELOW THE MINIMUM"
        print(
            f"{score.measure}: {score.right} of {score.asked} "
            f"({score.right / score.asked:.1%}, at least {score.share_min:.0%}): {verdict}"
        )
        if arguments.show_wrong:
            print(*score.wrong, sep="\n")
    sys.exit(0 if all(score.passed for score in scores) else 1)


if __name__ == "__main__":
    main()
