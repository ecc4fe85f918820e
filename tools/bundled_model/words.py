"""The words of the bundled model's corpus: who can appear in its texts, and the facts it is taught.

All of it is the project's own, so the model carries no foreign licence. What is not in these lists
the bundled model has never read.

Sans-IO: constants only.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class Animal:
    """Animal: `home` is where it sleeps, `traits` fit before it, `sound` is its cry."""

    word: str
    home: str
    traits: tuple[str, ...]
    sound: str


@attrs.frozen
class Thing:
    """An object a story can turn on: `looks` fit before it, `powers` complete "it can …"."""

    word: str
    looks: tuple[str, ...]
    powers: tuple[str, ...]


@attrs.frozen
class Place:
    """Place of a story; `scene` completes "…, where …"."""

    word: str
    scene: str


def _animals() -> tuple[Animal, ...]:
    rows = """
    fox den quick,clever,red yip; owl tree wise,sleepy,old hoot; bear cave big,gentle,brown growl
    rabbit burrow small,shy,white squeak; mouse hole tiny,brave,grey squeak
    turtle pond slow,patient,green hiss; cat house curious,soft,black meow
    dog yard loyal,happy,spotted bark; frog pond cheerful,noisy,green croak
    crow nest proud,sharp,black caw; hedgehog hedge careful,round,brown snuffle
    otter river playful,sleek,young whistle; wolf den strong,lonely,grey howl
    deer forest quiet,graceful,young bleat; squirrel tree busy,nimble,red chatter
    duck pond funny,yellow,small quack; goose nest loud,proud,white honk
    horse stable fast,noble,brown neigh; cow barn calm,kind,spotted moo
    pig shed pink,merry,round oink; sheep stall woolly,calm,white baa
    goat shed stubborn,bold,white bleat; donkey stable patient,grey,kind bray
    hen coop busy,brown,kind cluck; swan nest graceful,white,quiet trumpet
    badger tunnel strong,old,shy grunt; beaver dam clever,busy,wet grunt
    mole tunnel blind,gentle,soft squeak; bat cave quick,dark,sleepy squeak
    bee hive busy,golden,tiny buzz; seal bay sleek,merry,grey bark
    whale bay huge,wise,blue sing; lion den brave,golden,proud roar
    tiger cave striped,strong,quiet roar; elephant hut huge,gentle,grey trumpet
    monkey tree funny,nimble,cheeky chatter; penguin hut funny,brave,small squawk
    parrot tree noisy,colorful,clever squawk; camel tent patient,tall,calm grumble
    snail hedge slow,shy,tiny whisper
    """
    return tuple(
        Animal(word, home, tuple(traits.split(",")), sound)
        for word, home, traits, sound in (
            row.split() for row in rows.replace("\n", ";").split(";") if row.strip()
        )
    )


def _things() -> tuple[Thing, ...]:
    rows = """
    lantern/bright,old/glow in the dark,light the path; kite/colorful,red/fly,dance in the wind
    map/old,torn/show the way,guide us; bell/silver,little/ring,sing
    boat/wooden,small/float,carry us; key/golden,rusty/open any door,turn by itself
    book/thick,old/tell stories,teach us; drum/loud,round/boom like thunder,keep time
    apple/sweet,red/roll,shine; blanket/warm,soft/keep us warm,cover us both
    umbrella/blue,big/keep us dry,open by itself; compass/brass,old/point north,guide us
    mirror/round,silver/show the truth,shine; rope/long,strong/hold us,reach the top
    candle/white,small/burn all night,light the room; flute/wooden,thin/play a song,call the birds
    hat/tall,green/keep the rain off,hide a secret; scarf/long,woolly/keep us warm,flutter
    basket/large,woven/hold everything,carry bread; feather/white,light/float,tickle
    ladder/tall,wooden/reach the roof,lean on the wall; wagon/red,heavy/roll downhill,carry us
    clock/old,loud/tell the time,wake us up; coin/shiny,golden/bring luck,spin
    crown/golden,heavy/shine like the sun,make a king; ring/silver,tiny/sparkle,grant a wish
    pearl/white,smooth/shine like the moon,roll; shell/pink,curved/sound like the sea,hold water
    spoon/wooden,big/stir the soup,dig a hole; teapot/blue,round/pour tea,whistle
    violin/brown,fine/play a song,make us cry; whistle/loud,tiny/call for help,sing
    pillow/soft,big/bring sweet dreams,rest on the floor; ball/red,round/bounce,roll
    letter/long,secret/tell the news,explain it all; painting/large,lovely/show the sea,hang there
    cup/small,chipped/hold water,warm our hands; box/strange,locked/keep a secret,open by itself
    sled/fast,wooden/slide downhill,carry us; telescope/long,brass/find the stars,see far away
    """
    return tuple(
        Thing(word, tuple(looks.split(",")), tuple(powers.split(",")))
        for word, looks, powers in (
            row.strip().split("/") for row in rows.replace("\n", ";").split(";") if row.strip()
        )
    )


def _words(listed: str) -> tuple[str, ...]:
    return tuple(listed.split())


ANIMALS = _animals()
THINGS = _things()

PLACES = tuple(
    Place(word, scene)
    for word, scene in (
        ("forest", "the trees were tall"),
        ("village", "the windows were yellow with light"),
        ("river", "the water was clear"),
        ("hill", "the grass was soft"),
        ("beach", "the waves were gentle"),
        ("garden", "the roses were red"),
        ("mountain", "the snow was deep"),
        ("meadow", "the flowers were open"),
        ("harbor", "the ships were quiet"),
        ("valley", "the wind was calm"),
        ("lake", "the water was like glass"),
        ("market", "the tables were full of fruit"),
        ("bridge", "the stones were warm in the sun"),
        ("island", "the birds sang all day"),
        ("farm", "the hay smelled sweet"),
        ("castle", "the towers touched the clouds"),
        ("mill", "the great wheel turned slowly"),
        ("orchard", "the branches were heavy with pears"),
        ("desert", "the sand was golden"),
        ("library", "the shelves were very high"),
    )
)

NAMES = _words(
    """
    Mia Tom Nora Finn Lily Oscar Ruby Max Ella Hugo Ivy Leo Anna Ben Clara Theo Emma Noah Zoe Sam
    Alice Jack Rosa Otto Maya Felix Lucy Henry Daisy Arthur Jane Paul Greta Milo Sara Victor Nina
    Jonas Eva Carl Tilda Simon Olive Peter Flora Martin Hazel David Iris Walter Julia Robin
    Agnes Stella Emil Louis Marta Toby Vera Kim
    """
)

TIMES = (
    *("One morning", "One evening", "Early in the spring", "On a rainy day", "On a sunny day"),
    *("On a cold winter night", "Late in the summer", "One quiet afternoon", "Long ago"),
    *("The day after the storm", "At the end of autumn", "Just before sunrise"),
)
GLAD = ("happy", "proud", "calm", "glad", "excited", "grateful", "cheerful", "delighted")
SAD = ("worried", "sad", "afraid", "lonely", "tired", "upset", "unhappy")
COLORS = (
    *("red", "blue", "green", "yellow", "brown", "black", "white", "grey", "orange", "purple"),
    *("golden", "silver"),
)
HOMES = (
    *("barn", "den", "tree", "cave", "burrow", "house", "nest", "hedge", "river", "forest"),
    *("pond", "lake", "stable", "farm", "meadow", "garden", "castle", "tunnel", "tower", "mill"),
)
FOODS = (
    *("bread", "soup", "honey", "cheese", "berries", "cake", "nuts", "pears", "carrots", "corn"),
    *("pie", "plums"),
)
OPPOSITES = (
    *(("hot", "cold"), ("big", "small"), ("fast", "slow"), ("day", "night"), ("old", "new")),
    *(("happy", "sad"), ("light", "dark"), ("high", "low"), ("open", "closed"), ("wet", "dry")),
    *(("loud", "quiet"), ("soft", "hard"), ("early", "late"), ("full", "empty")),
    *(("up", "down"), ("left", "right"), ("long", "short"), ("warm", "cool")),
)

# {country: its capital}. "the" belongs to the country's name where English wants it.
CAPITALS: dict[str, str] = dict(
    row.strip().split("=")
    for row in """
        France=Paris; Italy=Rome; Spain=Madrid; Japan=Tokyo; Egypt=Cairo; Norway=Oslo; Peru=Lima
        Kenya=Nairobi; Canada=Ottawa; Greece=Athens; Portugal=Lisbon; Austria=Vienna; Poland=Warsaw
        Cuba=Havana; India=New Delhi; China=Beijing; Germany=Berlin; Sweden=Stockholm
        Finland=Helsinki; Denmark=Copenhagen; Iceland=Reykjavik; Ireland=Dublin; Belgium=Brussels
        the Netherlands=Amsterdam; Hungary=Budapest; Romania=Bucharest; Bulgaria=Sofia
        Turkey=Ankara; Russia=Moscow; Ukraine=Kyiv; the United Kingdom=London; Mexico=Mexico City
        the United States=Washington; Brazil=Brasilia; Argentina=Buenos Aires; Chile=Santiago
        Colombia=Bogota; Venezuela=Caracas; Ecuador=Quito; Uruguay=Montevideo; Morocco=Rabat
        Ghana=Accra; Nigeria=Abuja; Ethiopia=Addis Ababa; Senegal=Dakar; Thailand=Bangkok
        Vietnam=Hanoi; South Korea=Seoul; Indonesia=Jakarta; Australia=Canberra
        New Zealand=Wellington; Iran=Tehran; Iraq=Baghdad; Nepal=Kathmandu; Mongolia=Ulaanbaatar
        """.replace("\n", ";").split(";")
    if row.strip()
)


def with_article(words: str) -> str:
    """`words` after "a" or "an", by the first letter (the lists have no silent h)."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def capitalized(text: str) -> str:
    """`text` with its first letter upper case, the rest as it was (unlike `str.capitalize`)."""
    return text[0].upper() + text[1:]
