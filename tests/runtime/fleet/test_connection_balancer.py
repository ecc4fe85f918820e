"""The frontend with fewest streams gets the connection; what is under way counts."""

from triolet.runtime.fleet.connection_balancer import ConnectionBalancer
from triolet.runtime.messages import FrontendLoad


def make(count: int = 2) -> ConnectionBalancer:
    balancer = ConnectionBalancer()
    for rank in range(count):
        balancer.handle_up(rank)
    return balancer


def test_a_server_is_linked_when_every_frontend_has_every_engine() -> None:
    balancer = make()
    assert balancer.is_linked(0)
    balancer.handle_load(0, FrontendLoad(0, 0, 0, engines_ready=2))
    balancer.handle_load(1, FrontendLoad(0, 0, 0, engines_ready=1))
    assert [balancer.is_linked(engines) for engines in (1, 2)] == [True, False]


def test_no_frontend_no_choice() -> None:
    assert ConnectionBalancer().choose() is None


def test_connections_spread_before_any_report() -> None:
    balancer = make(3)
    assert sorted(balancer.choose() or 0 for _ in range(6)) == [0, 0, 1, 1, 2, 2]
    assert balancer.open_streams() == 6


def test_fewest_open_streams_win_over_fewest_connections() -> None:
    balancer = make()
    balancer.handle_load(0, FrontendLoad(1, 9, 0))
    balancer.handle_load(1, FrontendLoad(8, 2, 0))
    assert balancer.choose() == 1


def test_a_dead_frontend_gets_nothing_and_its_streams_are_forgotten() -> None:
    balancer = make()
    balancer.handle_load(0, FrontendLoad(5, 5, 0))
    balancer.handle_gone(0)
    balancer.handle_load(0, FrontendLoad(5, 5, 0))
    assert balancer.choose() == 1
    assert balancer.open_streams() == 1


def test_one_that_did_not_take_its_connection_comes_last_until_it_reports() -> None:
    balancer = make()
    assert balancer.choose() == 0
    balancer.handle_not_taken(0)
    assert balancer.open_streams() == 0
    assert [balancer.choose() for _ in range(3)] == [1, 1, 1]
    balancer.handle_load(0, FrontendLoad(0, 0, 0))
    assert balancer.choose() == 0


def test_one_that_is_gone_by_the_time_that_it_has_not_taken_is_gone() -> None:
    balancer = make()
    assert balancer.choose() == 0
    balancer.handle_gone(0)  # found to hang while the connection was passed to it
    balancer.handle_not_taken(0)
    assert [balancer.choose() for _ in range(2)] == [1, 1]


def test_a_silent_one_is_better_than_none() -> None:
    balancer = make(1)
    balancer.choose()
    balancer.handle_not_taken(0)
    assert balancer.choose() == 0


def test_one_without_an_engine_gets_nothing_while_another_has_one() -> None:
    balancer = make()
    balancer.handle_load(1, FrontendLoad(9, 9, 0, engines_ready=1))
    assert [balancer.choose() for _ in range(3)] == [1, 1, 1]
    balancer.handle_load(0, FrontendLoad(0, 0, 0, engines_ready=1))
    assert balancer.choose() == 0


def test_idle_is_without_streams_connections_or_any_under_way() -> None:
    balancer = ConnectionBalancer()
    assert balancer.is_idle()
    balancer.handle_up(0)
    balancer.choose()
    assert not balancer.is_idle()
    balancer.handle_load(0, FrontendLoad(1, 0, 1))
    assert not balancer.is_idle()
    balancer.handle_load(0, FrontendLoad(0, 0, 1))
    assert balancer.is_idle()


def test_it_can_serve_when_a_frontend_has_an_engine() -> None:
    balancer = make(1)
    balancer.handle_load(0, FrontendLoad(0, 0, 0))
    assert not balancer.can_serve()
    balancer.handle_load(0, FrontendLoad(0, 0, 0, engines_ready=1))
    assert balancer.can_serve()
    balancer.handle_gone(0)
    assert not balancer.can_serve()
