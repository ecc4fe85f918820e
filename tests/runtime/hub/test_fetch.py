"""Models are downloaded from a hub on this machine, by the process that does it for a server."""

import hashlib
import json
import os
import pathlib
import signal
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import trio

from triolet.engine.errors import InvalidParameter
from triolet.nurseries.processes.orphans import child_pids
from triolet.runtime.errors import ModelNotFetched
from triolet.runtime.events import ChildGone, ChildProgress, FileDownloaded, ModelFetched, RunEvent
from triolet.runtime.hub.fetch import RESTARTS_MAX, FetchedModel, fetch_model
from triolet.runtime.hub.model_name import HubModel, hub_model
from triolet.runtime.runtime import open_runtime

from ...leaks import check_no_leaks
from .local_hub import LocalHub, open_hub

NAME = "org/tiny"
MODEL = HubModel(NAME)
DEADLINE_S = 120.0
# Large enough to be resumed; the library writes it in pieces of 10 MB.
WEIGHTS = b"w" * (20 * 2**20)
PIECE = 10 * 2**20

pytestmark = [pytest.mark.slow]


@pytest.fixture
def small_files(null_folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in null_folder.iterdir()}


@pytest.fixture
async def hub(
    small_files: dict[str, bytes], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LocalHub]:
    """One model in two revisions, and a cache of its own."""
    files = {**small_files, "model.safetensors": WEIGHTS, "README.md": b"r", "tf_model.h5": b"h"}
    later = {**files, "model.safetensors": WEIGHTS + b"later"}
    async with open_hub({NAME: {"main": files, "later": later}}) as opened:
        monkeypatch.setenv("HF_ENDPOINT", opened.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        yield opened


async def fetch(
    model: HubModel = MODEL, events: list[RunEvent] | None = None, *, any_architecture: bool = True
) -> FetchedModel:
    seen = [] if events is None else events
    with trio.fail_after(DEADLINE_S):
        return await fetch_model(model, seen.append, any_architecture=any_architecture)


async def test_only_what_is_needed_is_downloaded_once_and_progress_is_seen(hub: LocalHub) -> None:
    events: list[RunEvent] = []
    with check_no_leaks():
        fetched = await fetch(events=events)
    folder = pathlib.Path(fetched.folder)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    wanted = {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
    assert set(os.listdir(folder)) == wanted == set(hub.names_asked())
    assert fetched.commit == hub.commit(NAME, "main")
    downloaded = [event for event in events if isinstance(event, FileDownloaded)]
    assert downloaded[-1].file == "model.safetensors"  # behind all others
    assert (downloaded[-1].model, downloaded[-1].size_bytes) == (NAME, len(WEIGHTS))
    assert any(isinstance(event, ChildProgress) for event in events)
    assert events[-1] == ModelFetched(NAME, fetched.commit)
    hub.asked.clear()
    assert await fetch() == fetched
    assert hub.names_asked() == []


async def test_a_revision_is_pinned_and_a_commit_that_is_there_asks_nothing(hub: LocalHub) -> None:
    later = await fetch(HubModel(NAME, "later"))
    assert later.commit == hub.commit(NAME, "later") != hub.commit(NAME, "main")
    hub.asked.clear()
    assert await fetch(HubModel(NAME, later.commit)) == later
    assert hub.asked == []
    with pytest.raises(ModelNotFetched, match=r"^org/tiny: has no revision 'nope'$"):
        await fetch(HubModel(NAME, "nope"))


async def test_shards_are_those_of_the_index(hub: LocalHub) -> None:
    shards = ["model-00001-of-2.safetensors", "model-00002-of-2.safetensors"]
    index = json.dumps({"weight_map": {"a": shards[0], "b": shards[1]}}).encode()
    files = hub.models[NAME]["main"]
    del files["model.safetensors"]
    files |= {"model.safetensors.index.json": index, "other.safetensors": b"o"}
    files |= dict.fromkeys(shards, WEIGHTS)
    folder = pathlib.Path((await fetch()).folder)
    assert [
        name for name in sorted(os.listdir(folder)) if name in [*shards, "other.safetensors"]
    ] == shards


async def test_a_break_is_mended_within_the_download(hub: LocalHub) -> None:
    hub.break_after, hub.breaks = {"model.safetensors": PIECE + 1000}, 1
    folder = pathlib.Path((await fetch()).folder)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    ranges = [each for _, path, each in hub.asked if path.endswith("model.safetensors") and each]
    assert ranges == [f"bytes={PIECE}-"]


async def test_a_download_that_was_cancelled_goes_on_where_it_stood(hub: LocalHub) -> None:
    hub.break_after, hub.breaks, hub.hangs = {"model.safetensors": PIECE + 1000}, 1, True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch)
        with trio.fail_after(DEADLINE_S):
            await hub.broke.wait()
            await partial_file_has(PIECE)
        nursery.cancel_scope.cancel("Ctrl-C")
    hub.asked.clear()
    folder = pathlib.Path((await fetch()).folder)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert [each for _, _, each in hub.asked if each] == [f"bytes={PIECE}-"]
    assert not list(blobs().glob("*.incomplete"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=str)
async def test_a_process_that_is_killed_or_stopped_has_a_successor(
    hub: LocalHub, number: signal.Signals
) -> None:
    hub.break_after, hub.breaks, hub.hangs = {"model.safetensors": PIECE + 1000}, 1, True
    events: list[RunEvent] = []

    async def disturb() -> None:
        await hub.broke.wait()
        await partial_file_has(PIECE)
        hub.asked.clear()
        (pid,) = child_pids(os.getpid())
        os.kill(pid, number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(disturb)
        folder = pathlib.Path((await fetch(events=events)).folder)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert [each for _, _, each in hub.asked if each] == [f"bytes={PIECE}-"]
    assert [event for event in events if isinstance(event, ChildGone)] == [
        ChildGone("download", 1, "was killed by SIGKILL")
    ]


async def test_a_process_that_always_dies_has_few_successors(hub: LocalHub) -> None:
    events: list[RunEvent] = []

    async def kill_all() -> None:
        while True:
            for pid in child_pids(os.getpid()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await trio.lowlevel.checkpoint()

    with check_no_leaks():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_all)
            with pytest.raises(ModelNotFetched, match="the download was killed by SIGKILL"):
                await fetch(events=events)
            nursery.cancel_scope.cancel("seen")
    assert len(events) == RESTARTS_MAX


async def test_what_was_broken_in_the_cache_is_not_served(hub: LocalHub) -> None:
    etag = hashlib.sha256(WEIGHTS).hexdigest()
    blobs().mkdir(parents=True)
    (blobs() / f"{etag}.incomplete").write_bytes(b"x" * 2**20)
    with pytest.raises(ModelNotFetched, match="was broken in the cache"):
        await fetch()
    assert await fetch()


async def test_without_the_hub_the_cache_will_do(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence = r"^org/tiny: HF_HUB_OFFLINE is set, and the cache \(.*\) does not have all files"
    with monkeypatch.context() as offline:
        offline.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(ModelNotFetched, match=sentence):
            await fetch()
    fetched = await fetch()
    hub.asked.clear()
    events: list[RunEvent] = []
    with monkeypatch.context() as offline:
        offline.setenv("HF_HUB_OFFLINE", "1")
        assert await fetch(events=events) == fetched
    assert hub.asked == []
    assert events == [ModelFetched(NAME, fetched.commit, "from the cache: HF_HUB_OFFLINE is set")]
    hub.status = 503
    assert await fetch(events=events) == fetched
    assert "answered 503" in str(events[-1])
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # discard: nothing listens
    assert await fetch(events=events) == fetched
    assert "could not be asked" in str(events[-1])


async def test_a_branch_whose_download_was_cut_leaves_the_one_before(hub: LocalHub) -> None:
    fetched = await fetch()
    hub.models[NAME]["main"] = hub.models[NAME]["later"]
    hub.vanished = {"model.safetensors"}
    with pytest.raises(ModelNotFetched):
        await fetch()
    hub.status = 503
    assert await fetch() == fetched


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"models": {}}, "is neither a folder here nor a model of http.*log in"),
        ({"gated": True}, "is gated: ask for access at http://.*/org/tiny, then log in"),
        ({"vanished": {"model.safetensors"}}, "model.safetensors has vanished from the hub"),
        ({"status": 500}, "answered 500 .*, and the cache .* does not have all files of main"),
    ],
    ids=str,
)
async def test_what_cannot_be_had_is_one_sentence(
    hub: LocalHub, change: dict[str, object], sentence: str
) -> None:
    for name, value in change.items():
        setattr(hub, name, value)
    with check_no_leaks(), pytest.raises(ModelNotFetched, match=sentence) as caught:
        await fetch()
    assert "\n" not in str(caught.value)


async def test_a_file_that_vanishes_in_mid_download_is_named(hub: LocalHub) -> None:
    hub.break_after, hub.breaks = {"model.safetensors": PIECE + 1000}, 1

    async def vanish() -> None:
        await hub.broke.wait()
        hub.vanished = {"model.safetensors"}

    async with trio.open_nursery() as nursery:
        nursery.start_soon(vanish)
        with pytest.raises(ModelNotFetched, match=r"model.safetensors has vanished from the hub"):
            await fetch()


@pytest.mark.parametrize(
    ("gone", "sentence"),
    [
        ("config.json", "has no config.json, so it is no model that can be served"),
        ("tokenizer.json", "has no tokenizer.json"),
        ("model.safetensors", "has no model.safetensors: only safetensors are supported"),
    ],
)
async def test_a_repository_that_is_no_model_is_refused_before_its_weights(
    hub: LocalHub, gone: str, sentence: str
) -> None:
    del hub.models[NAME]["main"][gone]
    with pytest.raises(ModelNotFetched, match=sentence):
        await fetch()
    assert "model.safetensors" not in hub.names_asked()


async def test_an_architecture_that_is_not_served_is_refused_before_the_weights(
    hub: LocalHub,
) -> None:
    with pytest.raises(ModelNotFetched, match=r"org/tiny: config.json: architectures must be a"):
        await fetch(any_architecture=False)
    assert "model.safetensors" not in hub.names_asked()


async def test_a_full_disk_is_one_sentence(hub: LocalHub) -> None:
    """The partial file leads to a device that is always full."""
    etag = hashlib.sha256(WEIGHTS).hexdigest()
    blobs().mkdir(parents=True)
    (blobs() / f"{etag}.incomplete").symlink_to("/dev/full")
    with pytest.raises(
        ModelNotFetched, match=r"model.safetensors cannot be written.* disk is full"
    ):
        await fetch()


async def test_a_runtime_serves_it_under_its_name(hub: LocalHub) -> None:
    with trio.fail_after(DEADLINE_S):
        async with open_runtime(NAME, executor="null", in_process=True) as runtime:
            ids = runtime.client.engines.expected()
        folder = (await fetch()).folder
        async with open_runtime(folder, executor="null", in_process=True) as plain:
            assert ids.isdisjoint(plain.client.engines.expected())
    assert runtime.model_name == NAME
    with pytest.raises(InvalidParameter, match="revision is of models of the hub"):
        async with open_runtime(folder, revision="main"):
            pass


def test_names_of_the_hub_and_folders(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert hub_model("org/name") == HubModel("org/name", "main")
    assert hub_model("org/name@refs/pr/1") == HubModel("org/name", "refs/pr/1")
    assert (
        hub_model("org/name", "v1") == hub_model("org/name@v1", "v1") == HubModel("org/name", "v1")
    )
    for other in (None, "", "name", "./org/name", "/org/name", "a/b/c", "org/na me", "../name"):
        assert hub_model(other) is None
    with pytest.raises(InvalidParameter, match="exclude each other"):
        hub_model("org/name@v1", "v2")
    with pytest.raises(InvalidParameter, match="branch, tag or commit"):
        hub_model("org/name", "../x")
    with pytest.raises(InvalidParameter, match="branch, tag or commit"):
        hub_model("org/name", "a/../../x")
    assert hub_model("org/name@a/../../x") is None
    os.makedirs("org/name")
    assert hub_model("org/name") is None


def blobs() -> pathlib.Path:
    return pathlib.Path(os.environ["HF_HOME"]) / "hub" / "models--org--tiny" / "blobs"


async def partial_file_has(size: int) -> None:
    """Until so much of a download is in the cache; what the kernel has is not there yet."""
    while sum(path.stat().st_size for path in blobs().glob("*.incomplete")) < size:
        await trio.lowlevel.checkpoint()
