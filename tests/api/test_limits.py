"""The defaults are those that the documents state."""

from triolet.api.limits import ServerLimits


def test_documented_defaults() -> None:
    limits = ServerLimits()
    assert (limits.http.head_s, limits.http.body_s, limits.http.write_s) == (5, 30, 20)
    assert limits.http.body_bytes_max == 16 * 2**20
    assert (limits.socket.ping_s, limits.socket.pong_s, limits.socket.write_s) == (20, 20, 20)
    assert (limits.socket.lanes_active_max, limits.socket.lane_names_max) == (16, 32)
