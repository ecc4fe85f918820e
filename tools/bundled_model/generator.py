"""Writes the bundled model's corpus: chat turns and plain documents, as tagged text.

A conversation is a list of turns; `render` gives it the form of the chat template. What is used to
measure the model is kept out of training by `is_held_out`: a hash of the words that belong together
(animal and object of a story, name and animal of a description, country and phrasing of a
question), so training and evaluation agree with no list to keep.

Sans-IO: randomness comes in as a `random.Random`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from random import Random

import attrs

from . import stories
from .words import (
    ANIMALS,
    CAPITALS,
    COLORS,
    FOODS,
    GLAD,
    HOMES,
    NAMES,
    OPPOSITES,
    PLACES,
    THINGS,
    Animal,
    Thing,
    capitalized,
    with_article,
)

BOS, EOS = "<|bos|>", "<|eos|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = (BOS, EOS, USER, ASSISTANT, SYSTEM)

# Each fifth combination is never trained on: enough for 300 different prompts of each kind.
HELD_OUT_OF = 5
NUMBER_MAX = 30  # Counting stays where every number is one token.
SUM_MAX = 10  # Sums are learnt by heart; beyond this a model this small only guesses.
AGE_MAX_YEARS = 20


@attrs.frozen
class Exchange:
    """Question and its answer."""

    user: str
    assistant: str


@attrs.frozen
class StoryPrompt:
    """A prompt for a story and the two words the story has to use."""

    prompt: str
    animal: Animal
    thing: Thing


@attrs.frozen
class DescriptionPrompt:
    """A prompt for a JSON object and the values that object has to hold, in this order."""

    prompt: str
    values: dict[str, str | int]


_CAPITAL_QUESTIONS = (
    "What is the capital of {country}?",
    "What's the capital of {country}?",
    "Which city is the capital of {country}?",
    "Tell me the capital of {country}.",
    "Name the capital of {country}.",
    "Can you name the capital of {country}?",
    "I forgot the capital of {country}. What is it?",
    "What is the name of the capital of {country}?",
)
CAPITAL_PHRASINGS = tuple(
    opening + question
    for opening in ("", "Hello! ", "Quick question: ", "Please help me. ")
    for question in _CAPITAL_QUESTIONS
)

_STORY_REQUESTS = (
    "Tell me a story about {animal} and {thing}.",
    "Write a story about {animal} and {thing}.",
    "Write a story with {animal} and {thing}.",
    "Can you tell me a story about {animal} and {thing}?",
    "Please tell me a story about {animal} and {thing}.",
    "I would like a story with {animal} and {thing} in it.",
    "Make up a bedtime story about {animal} and {thing}.",
)

_DESCRIPTION_REQUESTS = (
    "Describe {who} as JSON.",
    "Describe {who} as a JSON object.",
    "Write a JSON object for {who}.",
    "Give me JSON about {who}.",
    "Turn this into JSON: {who}.",
    "Please write JSON for this: {who}.",
)

_SMALL_TALK = (
    (("Hello!", "Hello", "Hello there!", "Good day!"), "Hello! How can I help you today?"),
    (("Hi", "Hi!", "Hey", "Hi there!"), "Hi there! Would you like to hear a story?"),
    (("Good morning!", "Good morning"), "Good morning! I hope you slept well."),
    (("Good night!", "Good night"), "Good night! Sleep well and have sweet dreams."),
    (("How are you?", "How are you today?"), "I am fine, thank you. How are you?"),
    (
        ("Who are you?", "What are you?", "Tell me about yourself."),
        "I am a very small language model that tells stories.",
    ),
    (
        ("What can you do?", "How can you help me?", "Help"),
        "I can tell short stories, name capitals, count, and write small JSON objects.",
    ),
    (("Thank you!", "Thanks!", "Thank you very much."), "You are welcome!"),
    (("Goodbye", "Bye!", "Goodbye!", "See you later."), "Goodbye! See you soon."),
    (("Who made you?", "Where do you come from?"), "I was trained by the Triolet project."),
    (
        ("Are you a person?", "Are you human?"),
        "No, I am a small language model, and I live in a computer.",
    ),
    (("Can you help me?", "I need help."), "Of course! What do you need?"),
    (("Tell me a joke.", "Make me laugh."), "Why did the hen cross the road? To meet a duck!"),
)

_SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a kind storyteller.",
    "You are a very small language model.",
    "Answer briefly.",
    "Be friendly.",
)


def is_held_out(*words: str) -> bool:
    """Whether this combination is kept out of training and belongs to the evaluation."""
    digest = hashlib.sha256("|".join(words).encode()).digest()
    return digest[0] * 256 + digest[1] < 65536 // HELD_OUT_OF


def render(exchanges: list[Exchange], system: str | None = None) -> str:
    """A conversation in the form of the chat template, begin token and end tokens included."""
    head = BOS if system is None else f"{BOS}{SYSTEM}{system}"
    turns = (f"{USER}{turn.user}{ASSISTANT}{turn.assistant}{EOS}" for turn in exchanges)
    return head + "".join(turns)


def draw_story_prompt(random: Random, *, held_out: bool) -> StoryPrompt:
    """A story prompt on a pair of animal and object that is (or is not) held out."""
    while True:
        animal, thing = random.choice(ANIMALS), random.choice(THINGS)
        if is_held_out(animal.word, thing.word) == held_out:
            break
    words = {"animal": with_article(animal.word), "thing": with_article(thing.word)}
    return StoryPrompt(random.choice(_STORY_REQUESTS).format_map(words), animal, thing)


def draw_capital_prompt(random: Random, *, held_out: bool) -> tuple[str, str]:
    """A question for a capital in a phrasing that is (or is not) held out, and its country."""
    while True:
        country, phrasing = random.choice(list(CAPITALS)), random.choice(CAPITAL_PHRASINGS)
        if is_held_out(country, phrasing) == held_out:
            return phrasing.format(country=country), country


def draw_description_prompt(random: Random, *, held_out: bool) -> DescriptionPrompt:
    """A request for JSON that gives all values; name and animal are (or are not) held out."""
    while True:
        name, animal = random.choice(NAMES), random.choice(ANIMALS)
        if is_held_out(name, animal.word) == held_out:
            break
    values: dict[str, str | int] = {"name": name, "animal": animal.word}
    clauses = []
    if random.random() < 0.8:
        values["age"] = age = random.randint(1, AGE_MAX_YEARS)
        clauses.append(f"is {age} years old" if age > 1 else "is 1 year old")
    if random.random() < 0.7:
        values["home"] = home = random.choice(HOMES)
        clauses.append(f"lives in {with_article(home)}")
    if random.random() < 0.4:
        values["color"] = color = random.choice(COLORS)
        clauses.append(f"is {color}")
    if random.random() < 0.4:
        values["likes"] = food = random.choice(FOODS)
        clauses.append(f"likes {food}")
    who = f"{name} the {animal.word}"
    if clauses:
        listed = " and ".join((", ".join(clauses[:-1]), clauses[-1]) if clauses[1:] else clauses)
        who += f", who {listed}"
    return DescriptionPrompt(random.choice(_DESCRIPTION_REQUESTS).format(who=who), values)


def _story(random: Random) -> list[Exchange]:
    asked = draw_story_prompt(random, held_out=False)
    cast = stories.draw_cast(random, animal=asked.animal, thing=asked.thing)
    animal, thing = with_article(cast.animal.word), with_article(cast.thing.word)
    kind = random.random()
    if kind < 0.6:
        prompt = asked.prompt
    elif kind < 0.7:
        prompt = f"Tell me a story about {animal} named {cast.name} and {thing}."
    elif kind < 0.75:
        prompt = f"Tell me a story about {thing}."
    elif kind < 0.8:
        prompt = f"Tell me a story about {animal}."
    elif kind < 0.85:
        prompt = f"Tell me a story about {cast.name} the {cast.animal.word} at the "
        prompt += f"{cast.place.word}."
    else:
        prompt = random.choice(("Tell me a story.", "Write a story.", "I want to hear a story."))
    exchanges = [Exchange(prompt, stories.tell_story(random, cast))]
    if random.random() < 0.3:
        exchanges.append(_question_about(random, cast))
    return exchanges


def _other_story(random: Random) -> list[Exchange]:
    asked = draw_story_prompt(random, held_out=False)
    cast = stories.draw_cast(random, animal=asked.animal, thing=asked.thing)
    animal, thing = with_article(cast.animal.word), with_article(cast.thing.word)
    if random.random() < 0.7:
        story = stories.tell_short_story(random, cast)
        return [Exchange(f"Tell me a very short story about {animal} and {thing}.", story)]
    story = stories.tell_long_story(random, cast)
    return [Exchange(f"Tell me a long story about {animal} and {thing}.", story)]


def _question_about(random: Random, cast: stories.Cast) -> Exchange:
    animal = cast.animal.word
    choices = (
        (f"What was the name of the {animal}?", f"The {animal} was {cast.name}."),
        (f"Who was {cast.name}?", f"{cast.name} was {with_article(animal)}."),
        (f"Who was {cast.friend}?", f"{cast.friend} was {with_article(cast.other.word)}."),
        ("Thank you!", "You are welcome!"),
    )
    return Exchange(*random.choice(choices))


def _capital(random: Random) -> list[Exchange]:
    if random.random() < 0.1:
        country, capital = random.choice(list(CAPITALS.items()))
        question = f"{capital} is the capital of which country?"
        return [Exchange(question, f"{capital} is the capital of {country}.")]
    prompt, country = draw_capital_prompt(random, held_out=False)
    return [Exchange(prompt, f"The capital of {country} is {CAPITALS[country]}.")]


def _description(random: Random) -> list[Exchange]:
    asked = draw_description_prompt(random, held_out=False)
    return [Exchange(asked.prompt, json.dumps(asked.values))]


def _repetition(random: Random) -> list[Exchange]:
    words = [animal.word for animal in ANIMALS] + [thing.word for thing in THINGS]
    words += [*HOMES, *COLORS, *FOODS, *NAMES, *(place.word for place in PLACES)]
    drawn = random.sample(words, random.randint(2, 7))
    said = ", ".join(drawn)
    request = random.choice(("Repeat: {}", "Say these words: {}", "Repeat after me: {}"))
    if random.random() < 0.3:
        return [Exchange(f"Write as a JSON list: {said}", json.dumps(drawn))]
    if random.random() < 0.2:
        numbered = "\n".join(f"{number}. {word}" for number, word in enumerate(drawn, 1))
        return [Exchange(f"Write as a numbered list: {said}", numbered)]
    return [Exchange(request.format(said), said)]


def _number_work(random: Random) -> list[Exchange]:
    first, second = random.randint(0, SUM_MAX), random.randint(0, SUM_MAX)
    if random.random() < 0.4:
        start = random.randint(0, NUMBER_MAX - 1)
        end = random.randint(start + 1, min(start + 15, NUMBER_MAX))
        row = list(range(start, end + 1))
        if random.random() < 0.3:
            row.reverse()
        numbers = ", ".join(map(str, row))
        return [Exchange(f"Count from {row[0]} to {row[-1]}.", f"{numbers}.")]
    if random.random() < 0.6:
        sign, result = "+", first + second
    else:
        first, second = max(first, second), min(first, second)
        sign, result = "-", first - second
    asked = random.choice(("What is {}?", "{} = ?", "How much is {}?"))
    term = f"{first} {sign} {second}"
    return [Exchange(asked.format(term), f"{term} = {result}")]


def _knowledge(random: Random) -> list[Exchange]:
    animal = random.choice(ANIMALS)
    left, right = random.choice(OPPOSITES)[:: random.choice((1, -1))]
    named = with_article(animal.word)
    choices = (
        (f"What is the opposite of {left}?", f"The opposite of {left} is {right}."),
        (f"What does {named} say?", f"{capitalized(named)} says {animal.sound}."),
        (f"Where does {named} live?", f"{capitalized(named)} lives in a {animal.home}."),
    )
    return [Exchange(*random.choice(choices))]


def _small_talk(random: Random) -> list[Exchange]:
    if random.random() < 0.25:
        name = random.choice(NAMES)
        greeting = random.choice(("My name is {}.", "Hello, I am {}.", "Hi! I'm {}."))
        reply = f"Nice to meet you, {name}! What would you like to hear?"
        exchanges = [Exchange(greeting.format(name), reply)]
        if random.random() < 0.5:
            exchanges.append(Exchange("What is my name?", f"Your name is {name}."))
        return exchanges
    asked, reply = random.choice(_SMALL_TALK)
    return [Exchange(random.choice(asked), reply)]


def _letter(random: Random) -> str:
    sender, receiver = random.sample(NAMES, 2)
    place, thing, mood = random.choice(PLACES), random.choice(THINGS), random.choice(GLAD)
    return (
        f"Dear {receiver},\n\nI am at the {place.word}, where {place.scene}. "
        f"Yesterday I found {with_article(random.choice(thing.looks))} {thing.word}, "
        f"and I was very {mood}. I will bring the {thing.word} home for you. "
        f"Please send me some {random.choice(FOODS)}.\n\nYour friend,\n{sender}"
    )


def _plain(random: Random) -> str:
    kind = random.random()
    if kind < 0.15:
        return _letter(random)
    asked = draw_story_prompt(random, held_out=False)
    cast = stories.draw_cast(random, animal=asked.animal, thing=asked.thing)
    tell = stories.tell_story if kind < 0.8 else stories.tell_long_story
    story = tell(random, cast)
    if random.random() < 0.3:
        hero, thing = capitalized(cast.animal.word), capitalized(cast.thing.word)
        return f"The {hero} and the {thing}\n\n{story}"
    return story


# Shares of conversations. Stories are most of all tokens anyway, being the longest.
_KINDS: tuple[tuple[Callable[[Random], list[Exchange]], float], ...] = (
    (_story, 0.30),
    (_other_story, 0.12),
    (_description, 0.20),
    (_capital, 0.12),
    (_repetition, 0.08),
    (_number_work, 0.08),
    (_knowledge, 0.04),
    (_small_talk, 0.06),
)
_PLAIN_SHARE = 0.12
_SYSTEM_SHARE = 0.12


def draw_document(random: Random, copying_share: float = 0.0, fact_share: float = 0.0) -> str:
    """Draw a document of the corpus, from its begin token to its last end token.

    `copying_share` of the documents are nothing but repetitions and descriptions, whose answers
    stand word by word in their prompts: the shortest way to learn to look back. Of the rest,
    `fact_share` are nothing but capitals, numbers and the like: facts have to be met often.
    """
    if copying_share and random.random() < copying_share:
        makers = random.choices((_repetition, _description), k=random.randint(1, 3))
        return render([exchange for make in makers for exchange in make(random)])
    if fact_share and random.random() < fact_share:
        kinds = (_capital, _number_work, _knowledge, _small_talk)
        makers = random.choices(kinds, (0.3, 0.45, 0.2, 0.05), k=random.randint(1, 3))
        return render([exchange for make in makers for exchange in make(random)])
    if random.random() < _PLAIN_SHARE:
        return f"{BOS}{_plain(random)}{EOS}"
    every_kind, shares = zip(*_KINDS, strict=True)
    turns = random.choices((1, 2, 3, 4), (0.6, 0.2, 0.12, 0.08))[0]
    exchanges: list[Exchange] = []
    for make in random.choices(every_kind, shares, k=turns):
        exchanges.extend(make(random))
    system = random.choice(_SYSTEM_PROMPTS) if random.random() < _SYSTEM_SHARE else None
    return render(exchanges, system)
