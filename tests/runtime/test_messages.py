"""Every message between root and frontends survives the codec with its types."""

from triolet.engine.control_messages import Drain, TreeReply, TreeRequest
from triolet.nurseries.processes.watched import Watch, Watched
from triolet.runtime import messages
from triolet.runtime.control import calls
from triolet.runtime.control.calls import EngineState
from triolet.transports.codec import Codec

from .children.acting_engine import READY

MEMBERSHIP = messages.EngineMembership(
    3, [messages.EngineMember(rank=0, epoch=2, state=EngineState.READY, latest=READY, restarts=1)]
)
FOREIGN_CALL = messages.ForeignCall(
    caller=0,
    caller_epoch=3,
    call_id=7,
    frontend=1,
    verb=messages.ForeignVerb.GET,
    response_id="resp_01",
    principal="p",
)
FOREIGN_REPLY = messages.ForeignReply(
    caller=0, caller_epoch=3, call_id=7, outcome=messages.ForeignOutcome.FOUND, text="{}"
)


def test_both_families_cross_whole() -> None:
    to_frontend: list[object] = [
        MEMBERSHIP,
        messages.PassConnection(7),
        messages.PassConnection(8, 2047, is_taken_over=True),
        Drain(),
        messages.HandOver(),
        messages.FormLink(),
        TreeRequest(1),
        FOREIGN_CALL,
        FOREIGN_REPLY,
        messages.RootReply(4, "{}"),
        messages.FrontendStates({0: 3}, {1: "it died too often"}, {0: 2}),
        messages.RootReply(5, "", "no such place", "place_not_found"),
        messages.ServerNews(["{}"], is_whole=True),
        messages.HostReports([messages.HostReport(name="b", state="up", cpu_s=0.5)]),
        Watch(3),
    ]
    to_root: list[object] = [
        messages.FrontendLoad(3, 2, 9),
        messages.FrontendLoad(3, 2, 9, ended=[0, 2047]),
        TreeReply(1, "{}"),
        FOREIGN_CALL,
        FOREIGN_REPLY,
        messages.RootCall(4, calls.ControlQuestion(calls.ControlCall.TREE)),
        messages.RootCall(
            5,
            calls.ControlQuestion(
                calls.ControlCall.SIGNAL,
                calls.Place(calls.Role.ENGINE, 1),
                calls.SignalOrder("engine 1 worker 0", calls.Signal.STOP, 7),
            ),
        ),
        messages.WatchServer(3),
        Watched("{}"),
    ]
    for family, examples in (
        (messages.ROOT_TO_FRONTEND, to_frontend),
        (messages.FRONTEND_TO_ROOT, to_root),
    ):
        codec = Codec(*family)
        assert {type(example) for example in examples} == set(family)
        for example in examples:
            frames = [bytes(frame) for frame in codec.encode(example)]
            assert codec.decode(frames) == example
