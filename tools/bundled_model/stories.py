"""Stories of the bundled model's corpus: plots of interchangeable sentences over one cast.

A plot is a row of beats, a beat a handful of sentences that mean much the same. One sentence is
drawn per beat and filled in from the cast, so the animal, the object and the names carry through:
that is what the bundled model learns to do. Every plot names its hero's animal and its object at
least twice.

Sans-IO: randomness comes in as a `random.Random`.
"""

from __future__ import annotations

from random import Random

import attrs

from .words import (
    ANIMALS,
    FOODS,
    GLAD,
    NAMES,
    PLACES,
    SAD,
    THINGS,
    TIMES,
    Animal,
    Place,
    Thing,
    capitalized,
    with_article,
)

Beat = tuple[str, ...]

MEETING: tuple[Beat, ...] = (
    (
        "{time}, {a_trait} {animal} named {hero} walked to the {place}, where {scene}.",
        "There was once {a_trait} {animal} named {hero} who lived in {a_home} near the {place}.",
        "{hero} was {a_trait} {animal} who loved the {place}, because {scene}.",
        "Once upon a time, {a_trait} {animal} named {hero} lived by the {place}.",
    ),
)
FAREWELL: tuple[Beat, ...] = (
    (
        "From that day on, the {animal} and the {other} were friends.",
        "And every year the {animal} and the {other} met again at the {place}.",
        "That night the {animal} slept well, dreaming of the {thing}.",
        "The {animal} kept the {thing} as a sign of their friendship.",
        "And whenever the {animal} saw the {thing}, it thought of {friend}.",
    ),
)

_WAY_HOME: tuple[Beat, ...] = (
    (
        "{hero} found {a_look} {thing} under a stone.",
        "There, beside the path, lay {a_look} {thing}.",
        "{hero} was carrying {a_look} {thing} that once belonged to a friend.",
    ),
    (
        '"What a fine {thing}!" said {hero}.',
        '"I wonder if this {thing} can {power}," said {hero}.',
        "{hero} looked at the {thing} for a long time.",
    ),
    (
        "Then {a_other_trait} {other} named {friend} came by, looking {sad}.",
        "Soon {hero} met {friend}, {a_other_trait} {other} who felt {sad}.",
        "Not far away, {a_other_trait} {other} named {friend} sat alone, {sad} and quiet.",
    ),
    (
        '"Why are you so {sad}?" asked {hero}. "I cannot find my {other_home}," said {friend}.',
        '"Can you help me?" asked {friend}. "I have lost the way to my {other_home}."',
        '"Please stay with me," said {friend}. "It is a long way to my {other_home}."',
    ),
    (
        '"Do not worry," said {hero}. "My {thing} can {power}."',
        '"Do not worry," said {hero}. "The {thing} will help us."',
        "So {hero} and {friend} took the {thing} and went on together.",
    ),
    (
        "They crossed the {place} side by side until they saw the {other_home}.",
        "Step by step they left the {place} behind and reached the {other_home}.",
        "Before dark, the two friends stood in front of the {other_home}.",
    ),
    (
        '"Thank you, {hero}," said {friend}, who was now {glad}.',
        "{friend} was {glad}, and gave {hero} a warm hug.",
        "{friend} felt {glad} again, and {hero} smiled.",
    ),
)

_LOST_THING: tuple[Beat, ...] = (
    (
        "{hero} had {a_look} {thing} and took it everywhere.",
        "The {animal} owned only one thing, {a_look} {thing}.",
        "What {hero} loved most was {a_look} {thing}, a gift from grandmother.",
    ),
    (
        "But one day the {thing} was gone.",
        "Then, one windy night, the {thing} disappeared.",
        "One morning {hero} woke up, and there was no {thing}.",
    ),
    (
        "{hero} looked in the {home}, under every leaf and behind every stone.",
        "{hero} searched the whole {place} and felt very {sad}.",
        '"Who has seen my {thing}?" called {hero}, {sad} and out of breath.',
    ),
    (
        "{friend}, {a_other_trait} {other}, heard the noise and came to help.",
        "Along came {a_other_trait} {other} named {friend}.",
        "{a_other_trait_capital} {other} named {friend} stopped and listened.",
    ),
    (
        '"I saw it near my {other_home}," said {friend}. "Come with me!"',
        '"Two are better than one," said {friend}. "Let us look together."',
        '"Do not be {sad}," said {friend}. "I have good eyes."',
    ),
    (
        "They looked behind every bush until they saw the {thing} in the grass.",
        "And there, in front of the {other_home}, lay the {thing}.",
        "At the {place} something was shining: it was the {thing}!",
    ),
    (
        '"You found it!" cried {hero}, {glad} at last.',
        "{hero} was so {glad} that {friend} had to laugh.",
        '"Thank you, {friend}," said {hero}. "Now we can share it."',
    ),
)

_BIRTHDAY: tuple[Beat, ...] = (
    (
        "The next day was the birthday of {friend}, {a_other_trait} {other}.",
        "{hero} had a friend named {friend}, {a_other_trait} {other}, whose birthday was near.",
        "That week {friend}, {a_other_trait} {other}, was having a party.",
    ),
    (
        '"What can I give to {friend}?" thought the {animal}.',
        "The {animal} wanted to bring a present, but had no money.",
        "The {animal} thought about a present all day long.",
    ),
    (
        "In an old chest {hero} found {a_look} {thing}.",
        "At the market an old woman gave {hero} {a_look} {thing}.",
        "So {hero} worked all night and made {a_look} {thing}.",
    ),
    (
        '"This {thing} can {power}," said {hero}. "It is just right."',
        '"{a_look_capital} {thing} is a good present," said {hero}.',
        "{hero} put the {thing} in a bag and went to the {other_home}.",
    ),
    (
        "{friend} came out and saw the {thing}.",
        '"Happy birthday!" said {hero}, and held out the {thing}.',
        '"Is that {thing} for me?" asked {friend}.',
    ),
    (
        '"I have never had such a lovely present," said {friend}, {glad} and surprised.',
        "{friend} was {glad} and danced around the {other_home}.",
        '"Thank you, {hero}," said {friend}. "I am so {glad}!"',
    ),
    (
        "Then they ate {food} and sang until the stars came out.",
        "They shared {food} and told each other jokes.",
        "There was plenty of {food} for everyone, and music too.",
    ),
)

_STORM: tuple[Beat, ...] = (
    (
        "In the afternoon dark clouds came over the {place}.",
        "Suddenly the sky turned black, and it began to rain.",
        "Then a great storm came, and the wind shook the trees.",
    ),
    (
        "{hero} had nothing but {a_look} {thing}.",
        "Luckily, {hero} had brought {a_look} {thing}.",
        "{hero} ran under a tree and found {a_look} {thing} there.",
    ),
    (
        '"Help!" called a voice. It was {friend}, {a_other_trait} {other}, wet and {sad}.',
        "Behind a rock sat {friend}, {a_other_trait} {other}, shaking and {sad}.",
        "Near the water {hero} saw {friend}, {a_other_trait} {other} who was {sad}.",
    ),
    (
        '"Come to me," said the {animal}. "I have {a_look} {thing}."',
        '"I am coming!" called the {animal}, holding the {thing}.',
        "The {animal} was not afraid and held out the {thing}.",
    ),
    (
        '"This {thing} can {power}," said {hero}.',
        '"Can your {thing} {power}?" asked {friend}. "Yes, it can," said {hero}.',
        "They held on to the {thing} and waited.",
    ),
    (
        "Together they ran to the {home} and waited there.",
        "They stayed close until the storm was over.",
        "In the {home} they warmed up and ate {food}.",
    ),
    (
        "When the sun came back, {friend} was {glad}.",
        '"You saved me, {hero}," said {friend}, tired but {glad}.',
        "Outside there was a rainbow, and both of them were {glad}.",
    ),
)

_QUARREL: tuple[Beat, ...] = (
    (
        "{hero} and {friend}, {a_other_trait} {other}, played together every day.",
        "The best friend of {hero} was {friend}, {a_other_trait} {other}.",
        "Next door lived {friend}, {a_other_trait} {other}.",
    ),
    (
        "One day they both saw {a_look} {thing} on the road.",
        "At the {place} they found {a_look} {thing}.",
        "Under a bench lay {a_look} {thing}, and both of them wanted it.",
    ),
    (
        '"The {thing} is mine!" said {hero}. "No, it is mine!" said {friend}.',
        '"I saw it first," said {friend}. "But I picked it up," said {hero}.',
        "{hero} pulled on one side of the {thing}, and {friend} pulled on the other.",
    ),
    (
        "They were angry and did not speak for three days.",
        "{friend} went back to the {other_home}, angry and {sad}.",
        "So each of them went home alone, and both were {sad}.",
    ),
    (
        '"What good is {a_look} {thing} without a friend?" thought the {animal}.',
        "Without {friend} the {thing} was no fun, and the {animal} knew it.",
        "The {animal} looked at the {thing} and felt sorry.",
    ),
    (
        "So {hero} went to the {other_home} and called softly.",
        "The next morning {hero} took the {thing} to the {other_home}.",
        '"I am sorry," said {hero}. "Let us share the {thing}."',
    ),
    (
        '"I am sorry too," said {friend}, and they were {glad} again.',
        "{friend} smiled, and soon they were both {glad}.",
        "{friend} brought some {food}, and they were {glad} together.",
    ),
)

PLOTS: tuple[tuple[Beat, ...], ...] = (_WAY_HOME, _LOST_THING, _BIRTHDAY, _STORM, _QUARREL)

_SHORT: tuple[Beat, ...] = (
    (
        "{hero} the {animal} had {a_look} {thing}.",
        "{time}, {hero} the {animal} found {a_look} {thing} at the {place}.",
        "{a_trait_capital} {animal} named {hero} wanted {a_look} {thing}.",
    ),
    (
        "{friend} the {other} had never seen {a_thing} like that.",
        '"What is that?" asked {friend} the {other}. "It is {a_look} {thing}," said {hero}.',
        '"My {thing} can {power}," said {hero} to {friend} the {other}.',
    ),
    (
        "So the {animal} shared the {thing}, and they were both {glad}.",
        "They played with the {thing} all day, and the {animal} was {glad}.",
        "The {animal} gave the {thing} to {friend}, who was very {glad}.",
    ),
)


@attrs.frozen
class Cast:
    """Cast of a story; `animal` and `name` are the hero's, `other` the friend's."""

    name: str
    animal: Animal
    friend: str
    other: Animal
    thing: Thing
    place: Place


def draw_cast(
    random: Random,
    *,
    animal: Animal | None = None,
    thing: Thing | None = None,
    name: str | None = None,
    place: Place | None = None,
) -> Cast:
    """A cast with everything not given drawn from `random`; hero and friend always differ."""
    animal = animal or random.choice(ANIMALS)
    hero = name or random.choice(NAMES)
    return Cast(
        name=hero,
        animal=animal,
        friend=random.choice([other for other in NAMES if other != hero]),
        other=random.choice([other for other in ANIMALS if other.word != animal.word]),
        thing=thing or random.choice(THINGS),
        place=place or random.choice(PLACES),
    )


def tell_story(random: Random, cast: Cast) -> str:
    """A story of nine sentences or so about `cast`, in one paragraph."""
    return _fill(random, cast, MEETING + random.choice(PLOTS) + FAREWELL)


def tell_short_story(random: Random, cast: Cast) -> str:
    """A story of three or four sentences about `cast`."""
    return _fill(random, cast, _SHORT)


def tell_long_story(random: Random, cast: Cast) -> str:
    """Two plots about one cast's hero and place, in two paragraphs; the friend changes between."""
    second = draw_cast(
        random, animal=cast.animal, thing=cast.thing, name=cast.name, place=cast.place
    )
    first_plot, second_plot = random.sample((_WAY_HOME, _BIRTHDAY, _STORM, _QUARREL), 2)
    return (
        _fill(random, cast, MEETING + first_plot)
        + "\n\nA year later "
        + _fill(random, second, (("{hero} the {animal} was back at the {place}.",),))
        + " "
        + _fill(random, second, second_plot + FAREWELL)
    )


def _fill(random: Random, cast: Cast, beats: tuple[Beat, ...]) -> str:
    """Draw a sentence of each beat, with `cast` filled in and one mood and look kept throughout."""
    look = random.choice(cast.thing.looks)
    trait = with_article(random.choice(cast.animal.traits))
    other_trait = with_article(random.choice(cast.other.traits))
    fields = {
        "hero": cast.name,
        "animal": cast.animal.word,
        "home": cast.animal.home,
        "a_home": with_article(cast.animal.home),
        "a_trait": trait,
        "a_trait_capital": capitalized(trait),
        "friend": cast.friend,
        "other": cast.other.word,
        "other_home": cast.other.home,
        "a_other_trait": other_trait,
        "a_other_trait_capital": capitalized(other_trait),
        "thing": cast.thing.word,
        "a_thing": with_article(cast.thing.word),
        "a_look_capital": capitalized(with_article(look)),
        "a_look": with_article(look),
        "power": random.choice(cast.thing.powers),
        "place": cast.place.word,
        "scene": cast.place.scene,
        "time": random.choice(TIMES),
        "glad": random.choice(GLAD),
        "sad": random.choice(SAD),
        "food": random.choice(FOODS),
    }
    return " ".join(random.choice(beat).format_map(fields) for beat in beats)
