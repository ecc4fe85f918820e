"""Fetching a model of the hub: a process downloads it, and its progress becomes events of the run.

A process of its own, since the hub's library brings an HTTP client and blocks: what it imports and
what it leaves open is gone with it, and a download is cancelled by its end. What was downloaded by
then is kept, and the next one goes on behind it. So does another process where one is killed; one
that is stopped is killed.
"""

import itertools
import os

import attrs
import trio

from ...nurseries.processes.death_watch import is_stopped
from ...nurseries.processes.process import LadderTimes, Process, ProcessSpec, open_process
from ...nurseries.processes.process_exit import ProcessDied
from ...nurseries.processes.spawned import selected
from ...nurseries.tasks.background import waiting_for
from ...transports.control.channel import ControlChannel
from ..errors import ModelNotFetched
from ..events import ChildGone, ChildProgress, FileDownloaded, ModelFetched, OnEvent
from .messages import (
    FROM_DOWNLOAD,
    TO_DOWNLOAD,
    FetchOrder,
    FetchRefused,
    FileFetched,
    FileProgress,
    FolderFetched,
)
from .model_name import HubModel

MODULE = "triolet.runtime.hub.download_process"
# Variables of the hub's library and its HTTP client: tokens, caches, proxies, certificates.
VARIABLES = (
    *("HF_", "HUGGING", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("SSL_CERT_", "REQUESTS_CA_", "CURL_CA_"),
)
# Deaths that are made good. One that always dies has said why by then.
RESTARTS_MAX = 3
# How long to wait for a message before a look whether the process is stopped; two looks in turn.
LOOK_S = 0.5
# Nothing has to be put in order: what is in the partial file is there.
LADDER = LadderTimes(ask_s=0.5, terminate_s=0.0)


@attrs.frozen
class FetchedModel:
    """A model of the hub in the cache: its folder, and the commit that the folder is of."""

    folder: str
    commit: str


async def fetch_model(
    model: HubModel, on_event: OnEvent, *, any_architecture: bool = False
) -> FetchedModel:
    """Have all files of the model in the hub's cache; those that are missing are downloaded.

    Raises `ModelNotFetched`. Cancellation: the download ends, and what it has so far is kept.
    """
    order = FetchOrder(model.repository, model.revision, any_architecture)
    for life in itertools.count(1):
        try:
            return await _fetch(order, on_event)
        except ProcessDied as error:
            cause = f"the download {error.exit.cause}"
            if life > RESTARTS_MAX:
                raise ModelNotFetched(order.repository, cause) from error
            on_event(ChildGone("download", life, error.exit.cause))
    raise AssertionError("a count has no end")


async def _fetch(order: FetchOrder, on_event: OnEvent) -> FetchedModel:
    """Fetch in one process. Raises `ProcessDied`, also if it was stopped and therefore killed."""
    name = order.repository
    spec = ProcessSpec("download", MODULE, environment=selected(os.environ, VARIABLES))
    async with open_process(spec, ladder=LADDER) as process:
        channel = ControlChannel(process.control, sends=TO_DOWNLOAD, receives=FROM_DOWNLOAD)
        try:
            await channel.send(order)
        except trio.BrokenResourceError as error:
            raise ProcessDied(await process.wait_exited()) from error
        while True:
            try:
                message = await _receive(process, channel, name)
            except trio.EndOfChannel as error:
                raise ProcessDied(await process.wait_exited()) from error
            match message:
                case FileProgress(file=file, fraction=fraction):
                    on_event(ChildProgress(name, file, fraction))
                case FileFetched(file=file, size_bytes=size_bytes, seconds=seconds):
                    on_event(FileDownloaded(name, file, size_bytes, seconds))
                case FolderFetched(folder=folder, commit=commit, remark=remark):
                    on_event(ModelFetched(name, commit, remark))
                    return FetchedModel(folder, commit)
                case FetchRefused(reason=reason):
                    raise ModelNotFetched(name, reason)


async def _receive(process: Process, channel: ControlChannel, name: str) -> object:
    """The next message; a process that is stopped is killed, which ends the channel."""
    was_stopped = False
    while True:
        with trio.move_on_after(LOOK_S), waiting_for(f"the download of {name}"):
            message, _ = await channel.receive()
            return message
        is_now_stopped = is_stopped(process.pid)
        if is_now_stopped and was_stopped:
            process.kill_group()
        was_stopped = is_now_stopped
