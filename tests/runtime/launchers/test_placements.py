"""What a placer orders, by what is wanted and what Ray says, and what it reports."""

import random

from triolet.runtime.launchers.messages import HostEnded, PlacementNews, WantedHost
from triolet.runtime.launchers.placements import (
    SHORT_S,
    STOP_S,
    ActorAnswer,
    HostAlive,
    HostOver,
    KillActor,
    OutOfReach,
    Placements,
    StartHost,
    StopHost,
)

FIRST, SECOND = WantedHost("ray-0", 1, "t"), WantedHost("ray-1", 2, "u")
ACTOR, OTHER = "triolet-r-ray-0-1", "triolet-r-ray-1-2"


def wanting(*hosts: WantedHost) -> Placements:
    placements = Placements("r")
    placements.handle_wanted(hosts)
    return placements


def test_what_is_wanted_and_not_there_is_started_once() -> None:
    placements = wanting(FIRST, SECOND)
    assert placements.next_orders(0.0) == [StartHost(ACTOR, FIRST), StartHost(OTHER, SECOND)]
    assert placements.next_orders(1.0) == []


def test_a_placer_goes_on_with_the_actors_of_its_run_and_ends_what_is_not_wanted() -> None:
    placements = wanting(FIRST, SECOND)
    found = ["triolet-r-ray-0-1", "triolet-r-ray-1-1", "triolet-other-ray-0-1", "x"]
    # A host that is started twice is started once: its actor sees to that.
    assert placements.handle_listed(found, 0.0) == [StartHost(ACTOR, FIRST)]
    assert placements.next_orders(0.0) == [StopHost("triolet-r-ray-1-1"), StartHost(OTHER, SECOND)]


def test_what_does_not_end_when_it_is_noted_to_is_killed() -> None:
    placements = wanting(FIRST)
    placements.next_orders(0.0)
    placements.handle_wanted([])
    assert placements.next_orders(1.0) == [StopHost(ACTOR)]
    assert placements.handle_answer(ACTOR, HostAlive(), 1.1) == []
    assert placements.next_orders(1.0 + STOP_S) == [KillActor(ACTOR)]
    assert placements.next_orders(1.1 + STOP_S) == [], "it is killed again only after a while"
    assert placements.handle_answer(ACTOR, HostOver("died", is_certain=False), 7.0) == []
    assert placements.placed == {}


def test_a_life_that_is_over_is_reported_and_never_begins_again() -> None:
    placements = wanting(FIRST)
    placements.next_orders(0.0)
    over = HostOver("ended with code 3", is_certain=True)
    assert placements.handle_answer(ACTOR, over, 1.0) == [
        HostEnded("ray-0", 1, "ended with code 3", is_certain=True)
    ]
    assert placements.handle_answer(ACTOR, over, 1.0) == []
    assert placements.next_orders(2.0) == []
    following = WantedHost("ray-0", 3, "v")
    placements.handle_wanted([following])
    assert placements.next_orders(2.0) == [StartHost("triolet-r-ray-0-3", following)]


def test_who_cannot_be_reached_is_news_and_ends_nothing() -> None:
    placements = wanting(FIRST)
    placements.next_orders(0.0)
    assert placements.handle_answer(ACTOR, HostAlive(), 1.0) == []
    (news,) = placements.handle_answer(ACTOR, OutOfReach("x"), 2.0)
    assert news == PlacementNews("ray-0", "Ray cannot reach its actor: x", is_out_of_reach=True)
    assert placements.handle_answer(ACTOR, OutOfReach("x"), 3.0) == []
    assert placements.next_orders(100.0) == []
    (news,) = placements.handle_answer(ACTOR, HostAlive(), 101.0)
    assert not (isinstance(news, PlacementNews) and news.is_warning)


def test_what_finds_no_room_is_said_once() -> None:
    placements = wanting(FIRST)
    placements.next_orders(0.0)
    assert placements.handle_timeout(SHORT_S - 0.1) == []
    (news,) = placements.handle_timeout(SHORT_S)
    assert news == PlacementNews("ray-0", "has no room in the cluster for 10 s")
    assert placements.handle_timeout(2 * SHORT_S) == []


def test_any_order_of_events_keeps_the_books_and_ends_as_wanted() -> None:
    for seed in range(100):
        chance, placements, now = random.Random(seed), Placements("r"), 0.0
        there: set[str] = set()
        for life in range(1, 30):
            now += chance.random() * 4
            placements.handle_wanted(
                [WantedHost(f"ray-{n}", life - chance.randrange(2), "t") for n in range(2)]
            )
            for order in placements.next_orders(now):
                if isinstance(order, StartHost):
                    there.add(order.actor)
                elif chance.random() < 0.7 or isinstance(order, KillActor):
                    there.discard(order.actor)
            for actor in list(placements.placed):
                gone = actor not in there
                answers: list[ActorAnswer] = [HostAlive(), OutOfReach("x")]
                over = HostOver("x", is_certain=False)
                answer = over if gone else chance.choice(answers)
                placements.handle_answer(actor, answer, now)
            placements.handle_timeout(now)
            placements.check_invariants()
        wanted = set(placements.wanted)
        for _ in range(4):
            now += STOP_S
            for order in placements.next_orders(now):
                if not isinstance(order, StartHost):
                    there.discard(order.actor)
        assert there <= wanted, seed
