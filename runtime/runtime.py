"""The runtime embedded in a trio program: `async with open_runtime("MODEL") as runtime`.

The caller's process is root and frontend at once; engines and workers are processes of their own,
or, with `in_process=True`, in the caller's as well. Nothing survives the block: not a process, a
thread, a socket or a descriptor. Takes no signals: those are the program's.
"""

import difflib
import functools
import itertools
import pathlib
import random
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, NoReturn, TypeVar, Unpack, cast

import attrs
import msgspec
import trio

from ..engine.config import EngineSettings, check_torch
from ..engine.control_messages import FrontendAddress
from ..engine.host import has_torch
from ..engine.messages import ENGINE_TO_FRONTEND, FRONTEND_TO_ENGINE, EngineStatistics, Utility
from ..engine.model.bundled import BUNDLED_MODEL_NAME, bundled_model_folder
from ..engine.request_options import RequestOptions
from ..engine.sampling_params import SamplingParams
from ..nurseries.tasks.background import waiting_for
from ..nurseries.tasks.service import open_service, single_errors_unwrapped
from ..transports.codec import Codec
from ..transports.endpoint import abstract_endpoint
from ..transports.links.channel import HubEnd, Peer
from ..transports.links.zmq_channel import HubChannel, HubSide, open_hub
from .arguments import RuntimeArguments
from .config import HostSettings, RuntimeSettings
from .control.calls import EngineState
from .errors import RuntimeClosed
from .events import OnEvent, ignore_event
from .fleet.elsewhere import HeadParts, MakeElsewhere
from .fleet.engine_fleet import EngineFleet
from .fleet.fleet_parts import FleetParts
from .fleet.form_fleet import FormFleet
from .fleet.membership import FrontendDirectory
from .fleet.platform import check_platform
from .forms.form_client import FormClient
from .frontend.admission import Admission, Ticket, ignore_load
from .frontend.client_tasks import run_output_handler, run_replay_deadlines, wait_taking
from .frontend.core_client import CoreClient
from .frontend.frontend import Frontend
from .frontend.generation import GenerationStream
from .frontend.inproc import check_inproc, make_mesh, open_inproc_engines
from .frontend.ledger import Ledger
from .frontend.load_balancer import LeastLoaded
from .frontend.replay_policy import ReplayPolicy
from .hub.fetch import fetch_model
from .hub.model_name import hub_model
from .text.input_processor import InputProcessor
from .text.prompts import Prompt

AnyFrontend = TypeVar("AnyFrontend", bound=Frontend)
# Drawn for the names of a process's sockets, so that no other user can bind them before it does.
ENDPOINT_RANDOM_BYTES = 8
_ENGINE_FIELDS = {field.name for field in attrs.fields(EngineSettings)}
_RUNTIME_FIELDS = {field.name for field in attrs.fields(RuntimeSettings)} - {"engine"}
# {option: its field of `HostSettings`}.
_HOST_FIELDS = {
    field.metadata["option"].replace("-", "_") or field.name: field.name
    for field in attrs.fields(HostSettings)
}


# The rest of `Frontend` is for those who build on it.
_FACE = (
    "generate", "tokenize", "detokenize", "tokenizer_info", "token_strings", "model_name",
    "max_model_len", "health", "statistics", "engine_statistics", "drain",
)  # fmt: skip


@attrs.define(eq=False)
class StreamOpening(AbstractAsyncContextManager[GenerationStream]):
    """The block of `generate`. To iterate it, or to await it, is an error that shows the block."""

    _block: AbstractAsyncContextManager[GenerationStream]

    async def __aenter__(self) -> GenerationStream:
        return await self._block.__aenter__()

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._block.__aexit__(*error)

    def __aiter__(self) -> NoReturn:
        raise TypeError(_BLOCK)

    def __await__(self) -> NoReturn:
        raise TypeError(_BLOCK)


_BLOCK = (
    "generate opens a block: `async with runtime.generate(...) as stream:`, and in it"
    " `async for output in stream:` or `await stream.collect()`"
)


class Runtime(Frontend):
    """A model that is being served to this program. Made by `open_runtime` alone.

    After its block `generate` and `engine_statistics` raise `RuntimeClosed`.
    """

    _is_closed = False

    def __repr__(self) -> str:
        ready = sum(engine.state is EngineState.READY for engine in self.health().engines)
        engines = max(self.settings.engines, len(self.health().engines))  # with those of hosts
        state = "closed" if self._is_closed else f"{ready} of {engines} engines ready"
        return f"<Runtime of {self.model_name}: {state}>"

    def __dir__(self) -> list[str]:
        """Names that a program has use for; completion in a shell shows this."""
        return list(_FACE)

    def close(self) -> None:
        """Take nothing more: the engines are about to end."""
        self._is_closed = True

    def generate(  # type: ignore[override]
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        **more: Any,
    ) -> StreamOpening:
        return StreamOpening(super().generate(prompt, params, options, **more))

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeClosed

    def _open_ticket(self, prompt: Prompt, choices: int, principal: str) -> Ticket:
        self._check_open()
        return super()._open_ticket(prompt, choices, principal)

    async def engine_statistics(self) -> list[EngineStatistics]:
        """Each ready engine's own counts, asked for now. Raises `UtilityFailed`."""
        self._check_open()
        counts = []
        for peer in self.client.balancer.engines:
            text = await self.client.call_utility(peer, Utility.STATISTICS)
            counts.append(msgspec.json.decode(text, type=EngineStatistics))
        return counts


functools.update_wrapper(Runtime.generate, Frontend.generate)  # its signature, for completion


def make_settings(
    model: str | None = None, *, settings: RuntimeSettings | None = None, **options: Any
) -> RuntimeSettings:
    """Settings from a few words: engine fields, `engines`, hosts'; the bundled model by default.

    Raises `InvalidParameter` for a value out of range, `TypeError` for an unknown option.
    """
    if settings is not None:
        if model is not None or options:
            raise TypeError("give `settings` alone, or a model and options")
        return settings
    engine = {name: options.pop(name) for name in list(options) if name in _ENGINE_FIELDS}
    hosts = {
        own: options.pop(name)
        for name, own in _HOST_FIELDS.items()
        if name in options and not isinstance(options[name], HostSettings)
    }
    if hosts:
        options["hosts"] = attrs.evolve(options.get("hosts", HostSettings()), **hosts)
    for name in options:
        if name not in _RUNTIME_FIELDS:
            known = sorted(_RUNTIME_FIELDS | _ENGINE_FIELDS | _HOST_FIELDS.keys())
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise TypeError(
                f"there is no option {name}{hint} (options are the fields of EngineSettings,"
                " RuntimeSettings and HostSettings)"
            )
    if not model:
        options = {"model_name": BUNDLED_MODEL_NAME, **options}
    folder = str(model or bundled_model_folder())
    return RuntimeSettings(engine=EngineSettings(model=folder, **engine), **options)


async def fetched_settings(
    model: str | None, on_event: OnEvent, options: dict[str, Any]
) -> RuntimeSettings:
    """Make settings; a model of the hub is in its cache afterwards, pinned to a commit.

    Raises `ModelNotFetched`, and what `make_settings` raises. Cancellation: the download ends.
    """
    found = hub_model(model, options.get("revision", ""))
    if found is None:
        return make_settings(model, **options)
    any_architecture = options.get("executor") == "null"
    fetched = await fetch_model(found, on_event, any_architecture=any_architecture)
    pinned = {"model_name": found.repository, **options, "revision": fetched.commit}
    return make_settings(fetched.folder, **pinned)


@asynccontextmanager
async def open_runtime(
    model: str | None = None,
    *,
    settings: RuntimeSettings | None = None,
    in_process: bool = False,
    on_event: OnEvent = ignore_event,
    **options: Unpack[RuntimeArguments],
) -> AsyncIterator[Runtime]:
    """Start engines for `model` and serve them to this task.

    `model` is a folder, or `ORG/NAME` (`ORG/NAME@REVISION`) of the hub, which is downloaded unless
    it is in the cache; without one it is the bundled one.
    `options` are fields of `EngineSettings` and of `RuntimeSettings` (`engines=2`). Entering waits
    until every engine can take work; with several it is enough that one can and none still boots.
    With `join_port`, `advertise` and `key` the program is a head: hosts (`triolet engine --join`)
    serve under it while the block is open. With `engines=0` too, entering waits for the first one.
    `in_process` starts no process: see `inproc` for what it cannot do. `on_event` hears of
    processes and downloads alone.

    Raises `ModelFolderError`, `ModelNotFetched`, `InvalidParameter`, `UnsupportedPlatform`;
    `NoEngineLeft`, also in the body, when every engine was given up; `NoEngine` if no host comes;
    `EndpointInUse`. Cancellation: all processes are stopped and reaped.
    """
    if not trio.lowlevel.in_trio_run():
        raise RuntimeError(
            "open_runtime needs trio: call it in trio.run(...). In asyncio or a notebook use"
            " triolet.LLM instead, in a thread (await asyncio.to_thread(llm.generate, prompts))"
        )
    check_platform()
    if settings is not None:
        chosen = make_settings(model, settings=settings, **options)
    else:
        chosen = await fetched_settings(model, on_event, cast(dict[str, Any], options))
    check_torch(chosen.engine, has_torch=has_torch())
    if in_process:
        check_inproc(chosen)
    inputs = InputProcessor.load(chosen)
    opened = _open_inproc(chosen, inputs) if in_process else _open(chosen, inputs, on_event)
    async with opened as runtime:
        await wait_taking(runtime.client, chosen, on_event)
        try:
            yield runtime
        finally:
            runtime.close()


def _door(chosen: RuntimeSettings) -> tuple[MakeElsewhere | None, HubSide | None]:
    """What makes the hosts of this head, and where they reach it; nothing is loaded without."""
    if not chosen.hosts.are_wanted:
        return None, None
    from .hosts.remote_side import remote_side
    from .launchers.door import make_join_plan

    return make_join_plan(chosen).make, remote_side(chosen.hosts)


@asynccontextmanager
async def _open(
    chosen: RuntimeSettings, inputs: InputProcessor, on_event: OnEvent
) -> AsyncIterator[Runtime]:
    run_id, directory = secrets.token_hex(8), FrontendDirectory()
    me = Peer("frontend", 0, 1)  # this process has the first epoch
    make_elsewhere, remote = _door(chosen)
    async with open_frontend_hub(run_id, me, remote) as channel:
        runtime = make_frontend(Runtime, chosen, channel, inputs, term=me.epoch)
        parts = FleetParts(chosen, on_event, run_id=run_id, epochs=itertools.count(2))
        on_membership = runtime.client.apply_membership
        fleet = EngineFleet(parts=parts, frontends=directory, on_membership=on_membership)
        run_hosts: AbstractAsyncContextManager[object] = nullcontext()
        if make_elsewhere is not None:
            hosts = make_elsewhere(HeadParts(fleet, directory, on_membership, on_event))
            fleet.on_explained = hosts.excuse
            run_hosts = open_service(hosts.run, name="hosts")
        forms = FormClient()
        inputs.forms = forms
        form_fleet = FormFleet(
            count=1,
            parts=parts,
            on_link=lambda _, link: forms.handle_link(link),
        )
        async with open_frontend_services(channel, runtime.client):
            where = *channel.endpoints, *channel.remote_endpoints  # bound by now
            key = b"" if remote is None or remote.keys is None else remote.keys.public
            directory.handle_ready(FrontendAddress(me.rank, me.epoch, *where, key))
            async with (
                run_hosts,  # first: its port is bound before anything is spawned
                open_service(fleet.processes.run, name="engines"),
                open_service(forms.run, name="form-checks"),
                open_service(partial(_run_forms, form_fleet, forms), name="forms"),
            ):
                fleet.processes.start_spares()
                yield runtime


async def _run_forms(
    fleet: FormFleet,
    forms: FormClient,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Background task `forms`: most programs want none, and get no process for it."""
    task_status.started()
    with waiting_for("a form to check"):
        await forms.wanted.wait()
    await fleet.processes.run()


@asynccontextmanager
async def _open_inproc(chosen: RuntimeSettings, inputs: InputProcessor) -> AsyncIterator[Runtime]:
    me, mesh = Peer("frontend", 0, 1), make_mesh()
    channel = mesh.open_hub(me)
    runtime = make_frontend(Runtime, chosen, channel, inputs, term=me.epoch)
    async with (
        open_frontend_services(channel, runtime.client),
        open_inproc_engines(chosen, mesh, channel, runtime.client, frontend=me),
    ):
        yield runtime


def open_frontend_hub(
    run_id: str, me: Peer, remote: HubSide | None = None
) -> AbstractAsyncContextManager[HubChannel]:
    """The channel of one frontend to all engines, at addresses that no other process can foresee.

    Engines learn them by membership. The sockets are bound by `open_frontend_services`.
    """
    drawn = f"{run_id}-{secrets.token_hex(ENDPOINT_RANDOM_BYTES)}"
    input_endpoint, output_endpoint = (
        abstract_endpoint(drawn, me.role, me.rank, me.epoch, socket=name)
        for name in ("input", "output")
    )
    return open_hub(
        me,
        Codec(*ENGINE_TO_FRONTEND),
        Codec(*FRONTEND_TO_ENGINE),
        input_endpoint=input_endpoint,
        output_endpoint=output_endpoint,
        remote=remote,
    )


def make_frontend(
    kind: type[AnyFrontend],
    settings: RuntimeSettings,
    channel: HubEnd,
    inputs: InputProcessor,
    *,
    term: int,
    rank: int = 0,
    chance: random.Random | None = None,
    on_load: Callable[[], None] = ignore_load,
) -> AnyFrontend:
    """The machines of one frontend, put together; nothing runs yet.

    `term` is that of its home. `chance` draws seeds and delays, which are no secrets. `on_load` is
    called whenever a request came or went.
    """
    chance = chance or random.Random()
    client = CoreClient(
        channel,
        Ledger(term=term, replays=ReplayPolicy(settings.replay)),
        LeastLoaded(frontends=max(1, settings.frontends), rank=rank, chance=chance),
    )
    name = settings.model_name or pathlib.Path(settings.engine.model).name
    target_s = settings.wait_target_s
    admission = Admission(settings.admission, chance, trio.current_time, target_s, on_load)
    return kind(settings, client, inputs, admission, name)


@asynccontextmanager
async def open_frontend_services(channel: HubEnd, client: CoreClient) -> AsyncIterator[None]:
    """The background tasks of one frontend, for the body; the sockets outlive the handlers."""
    with single_errors_unwrapped():
        async with (
            open_service(
                channel.run_deadlines, name="link-deadlines", waits_for="links' deadlines"
            ),
            open_service(channel.run_output, name="output-socket-thread", waits_for="frames"),
            open_service(channel.run_input, name="input-socket-thread", waits_for="frames"),
            open_service(partial(run_output_handler, client, channel), name="output-handler"),
            open_service(partial(run_replay_deadlines, client), name="replay-deadlines"),
        ):
            yield
