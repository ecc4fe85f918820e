"""When a host that a cluster places gets its next life, and when it keeps the one that it has."""

from random import Random

from triolet.nurseries.tasks.supervision_policy import SupervisionPolicy
from triolet.runtime.launchers.lives import ABSENT_S, Begin, HostGivenUp, HostLives, LifeOver

NAME = "ray-0"


def lives_of(count: int = 1) -> HostLives:
    policy = SupervisionPolicy(Random(1), restart_limit=2, gives_up_served=False)
    lives = HostLives(policy, "ray")
    assert lives.handle_wanted(count) == []
    return lives


def joined() -> HostLives:
    lives = lives_of()
    assert lives.handle_look(set(), 0.0) == [Begin(NAME, 1)]
    assert lives.handle_look({NAME}, 5.0) == []
    return lives


def test_every_host_has_a_number_of_its_own_for_each_life() -> None:
    lives = lives_of(2)
    assert lives.handle_look(set(), 0.0) == [Begin("ray-0", 1), Begin("ray-1", 2)]
    assert lives.present() == {"ray-0": 1, "ray-1": 2}
    assert lives.handle_wanted(1) == [LifeOver("ray-1", "is not wanted any more")]
    assert lives.present() == {"ray-0": 1}


def test_a_dead_actor_gets_another_life_at_once_when_its_host_is_silent() -> None:
    lives = joined()
    lives.handle_ended(NAME, 1, "its actor died", is_certain=False)
    assert lives.handle_look(set(), 6.0) == [LifeOver(NAME, "its actor died"), Begin(NAME, 2)]


def test_no_word_of_a_cluster_ends_a_host_that_is_heard() -> None:
    lives = joined()
    lives.handle_ended(NAME, 1, "its actor died", is_certain=False)
    assert lives.handle_look({NAME}, 6.0) == []
    assert lives.handle_look({NAME}, 100.0) == []
    assert lives.handle_look(set(), 101.0) == [LifeOver(NAME, "its actor died"), Begin(NAME, 2)]


def test_a_host_that_has_ended_is_over_whatever_is_on_its_links() -> None:
    lives = joined()
    lives.handle_ended(NAME, 1, "ended with code 0", is_certain=True)
    assert lives.handle_look({NAME}, 6.0) == [LifeOver(NAME, "ended with code 0")]
    assert lives.present() == {}
    assert lives.handle_look(set(), 60.0) == [Begin(NAME, 2)]


def test_a_host_that_is_not_heard_for_long_is_replaced_though_its_actor_may_live() -> None:
    lives = joined()
    assert lives.handle_look(set(), 5.0 + ABSENT_S) == []
    assert lives.handle_look(set(), 5.1 + ABSENT_S) == [
        LifeOver(NAME, "is not heard for 8 s"),
        Begin(NAME, 2),
    ]


def test_neither_heard_nor_reached_it_is_replaced_soon() -> None:
    lives = joined()
    lives.handle_reach(NAME, is_out_of_reach=True)
    assert lives.handle_look({NAME}, 50.0) == []
    assert lives.handle_look(set(), 51.0) == []
    over = LifeOver(NAME, "is not heard for 1 s")
    assert lives.handle_look(set(), 51.1) == [over, Begin(NAME, 2)]
    lives.handle_look({NAME}, 52.0)
    assert lives.handle_look(set(), 55.0) == [], "the next one has another node"


def test_one_that_waits_for_room_waits() -> None:
    lives = lives_of()
    lives.handle_look(set(), 0.0)
    assert lives.handle_look(set(), 1000.0) == []


def test_news_of_another_life_changes_nothing() -> None:
    lives = joined()
    lives.handle_ended(NAME, 7, "died", is_certain=True)
    lives.handle_ended("ray-9", 1, "died", is_certain=True)
    assert lives.handle_look(set(), 6.0) == []


def test_a_host_that_never_joins_is_given_up() -> None:
    lives, now, seen = lives_of(), 0.0, list[object]()
    while not any(isinstance(each, HostGivenUp) for each in seen):
        now += 10.0
        for decision in lives.handle_look(set(), now):
            seen.append(decision)
            if isinstance(decision, Begin):
                lives.handle_ended(NAME, decision.life, "ended with code 78", is_certain=True)
        lives.check_invariants()
    assert seen[-1] == HostGivenUp(NAME, "ended with code 78")
    assert lives.handle_look(set(), now + 1000.0) == []
