"""Download of a model into the hub's cache: the files that are needed, resumed after any death.

Blocking, for a thread. Small files come first and weights last, so a snapshot that has all its
weights is whole; the reference of a branch is written behind them, so it always names a whole one.
A large file grows in the cache beside its place, under the name of its content: what is there is
there, however the download ended, and the next one asks for the rest. The library itself
(`hf_hub_download`) begins a file anew whenever its process died.
"""

import errno
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Self, cast

import attrs
from httpx2 import TransportError
from huggingface_hub import (
    HfApi,
    get_hf_file_metadata,
    get_token,
    hf_hub_download,
    hf_hub_url,
)
from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import HfFileMetadata, http_get, repo_folder_name

from ...engine.errors import ModelFolderError
from ...engine.model_config.config import load_model_config
from ...engine.model_config.folder import CONFIG_FILE
from .messages import FetchOrder, FileFetched, FileProgress, FolderFetched

TOKENIZER_FILE = "tokenizer.json"
SMALL_FILES = (
    CONFIG_FILE,
    "generation_config.json",
    TOKENIZER_FILE,
    "tokenizer_config.json",
    "chat_template.jinja",
)
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_SHARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ETAG = re.compile(r"[0-9A-Za-z-]{1,128}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# Time for the hub's answers before anything is downloaded; its own library waits as long.
ASK_S = 10.0
# The library writes pieces of 10 MB: of a smaller file there is nothing or all.
RESUMED_BYTES_MIN = 16 * 2**20
# How often a terminal's bars are worth drawing.
PROGRESS_S = 0.1
_FULL = (errno.ENOSPC, errno.EDQUOT)

Report = Callable[[FileProgress | FileFetched], None]


@attrs.frozen
class FetchFailed(Exception):
    """The model is not to be had; `reason` is the end of a sentence that begins with its name."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@attrs.frozen
class CachedSnapshot:
    """Folder of one commit in the cache."""

    folder: pathlib.Path

    def has(self, name: str) -> bool:
        """Whether a file is there, whole."""
        return (self.folder / name).exists()

    def weights(self) -> list[str]:
        """The weight files that its index names, or the single one. Raises `FetchFailed`."""
        if self.has(SINGLE_FILE) or not self.has(INDEX_FILE):
            return [SINGLE_FILE]
        try:
            shards = json.loads((self.folder / INDEX_FILE).read_bytes())["weight_map"].values()
            names = sorted({name for name in shards if _SHARD.fullmatch(name)})
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise FetchFailed(f"{INDEX_FILE} is broken: {error}") from error
        return names

    def is_whole(self) -> bool:
        """Whether a server could start with it."""
        return all(map(self.has, (CONFIG_FILE, *self.weights())))


@attrs.frozen
class HubDownload:
    """Order that `fetch` carries out. `report` is called from the same thread."""

    order: FetchOrder
    report: Report

    @property
    def storage(self) -> pathlib.Path:
        """The repository's folder in the cache."""
        name = repo_folder_name(repo_id=self.order.repository, repo_type="model")
        return pathlib.Path(HF_HUB_CACHE) / name

    def fetch(self) -> FolderFetched:
        """Have all files there. Raises `FetchFailed`."""
        revision = self.order.revision
        if _COMMIT.fullmatch(revision) and self._snapshot(revision).is_whole():
            return self._fetched(revision, "from the cache")
        try:
            with self._errors_as_sentences("the list of its files"):
                info = HfApi().model_info(
                    self.order.repository, revision=revision, files_metadata=True, timeout=ASK_S
                )
        except _Unreachable as unreachable:
            return self._cached(unreachable.reason)
        assert info.sha is not None
        sizes = {each.rfilename: each.size or 0 for each in info.siblings or ()}
        self._download_all(info.sha, sizes)
        if revision != info.sha:
            _write_whole(self.storage / "refs" / revision, info.sha)
        return self._fetched(info.sha)

    def _cached(self, why: str) -> FolderFetched:
        """Find the revision in the cache, without the hub."""
        commit = self.order.revision
        try:
            commit = (self.storage / "refs" / commit).read_text().strip()
        except OSError:
            pass  # of a commit there is no reference
        if not self._snapshot(commit).is_whole():
            at = f"the cache ({HF_HUB_CACHE}) does not have all files of {self.order.revision}"
            raise FetchFailed(f"{why}, and {at}")
        return self._fetched(commit, f"from the cache: {why}")

    def _fetched(self, commit: str, remark: str = "") -> FolderFetched:
        return FolderFetched(str(self._snapshot(commit).folder), commit, remark)

    def _snapshot(self, commit: str) -> CachedSnapshot:
        return CachedSnapshot(self.storage / "snapshots" / commit)

    def _download_all(self, commit: str, sizes: dict[str, int]) -> None:
        snapshot = self._snapshot(commit)
        for name in (CONFIG_FILE, TOKENIZER_FILE):
            if name not in sizes:
                raise FetchFailed(f"has no {name}, so it is no model that can be served")
        if not {SINGLE_FILE, INDEX_FILE} & sizes.keys():
            raise FetchFailed(f"has no {SINGLE_FILE}: only safetensors are supported")
        index = [] if SINGLE_FILE in sizes else [INDEX_FILE]
        for name in (*SMALL_FILES, *index):
            if name in sizes:
                self._download(name, commit)
        if not self.order.any_architecture:
            try:  # before gigabytes of weights that would not be of use
                load_model_config(snapshot.folder)
            except ModelFolderError as error:
                raise FetchFailed(f"{pathlib.Path(error.path).name}: {error.reason}") from error
        weights = snapshot.weights()
        self._check_room(sum(sizes.get(name, 0) for name in weights if not snapshot.has(name)))
        for name in weights:
            self._download(name, commit)

    def _check_room(self, needed: int) -> None:
        # Ours have the name of their content alone; the library's own are never gone on with.
        ours = (each for each in self.storage.glob("blobs/*.incomplete") if "." not in each.stem)
        partial = sum(path.stat().st_size for path in ours)
        free = shutil.disk_usage(self.storage).free
        if needed - partial > free:
            raise FetchFailed(
                f"needs {_size_text(needed - partial)} more of the disk of {HF_HUB_CACHE}, which"
                f" has {_size_text(free)} left. Make room, or set HF_HOME to another disk"
            )

    def _download(self, name: str, commit: str) -> None:
        """Have one file in the cache. Raises `FetchFailed`."""
        if self._snapshot(commit).has(name):
            return
        repository, began_s = self.order.repository, time.monotonic()
        try:
            with self._errors_as_sentences(name):
                url = hf_hub_url(repository, name, revision=commit)
                metadata = get_hf_file_metadata(url)
                if metadata.size is not None and metadata.size >= RESUMED_BYTES_MIN:
                    self._fill_blob(name, url, metadata)
                hf_hub_download(repository, name, revision=commit)
        except _Unreachable as unreachable:
            raise FetchFailed(f"{unreachable.reason}. Start again to go on there") from unreachable
        seconds = time.monotonic() - began_s
        size = (self._snapshot(commit).folder / name).stat().st_size
        self.report(FileFetched(name, size, seconds))

    def _fill_blob(self, name: str, url: str, metadata: HfFileMetadata) -> None:
        """Have the content where the library looks for it, going on behind what is there."""
        etag, size = metadata.etag, metadata.size
        if etag is None or size is None or not _ETAG.fullmatch(etag):
            return  # the library says what is wrong with it
        blob = self.storage / "blobs" / etag
        partial = blob.with_name(f"{etag}.incomplete")
        if blob.exists():
            return
        blob.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("ab") as stream:
            # Another process may download the same; if it is through, the file is in its place.
            fcntl.flock(stream, fcntl.LOCK_EX)
            if blob.exists():
                return
            begin = stream.seek(0, os.SEEK_END)
            if begin > size:
                begin = stream.truncate(0)

            def bar(*, total: int | None, initial: int, **_: object) -> ProgressBar:
                return ProgressBar(name, total or size, initial, self.report)

            http_get(
                url,
                cast(BinaryIO, stream),
                resume_size=begin,
                headers={"Authorization": f"Bearer {token}"} if (token := get_token()) else {},
                expected_size=size,
                tqdm_class=cast(Any, bar),
            )
            stream.flush()
            if begin and _SHA256.fullmatch(etag) and _sha256(partial) != etag:
                partial.unlink()
                raise FetchFailed(f"{name} was broken in the cache. Start again to download it")
            partial.replace(blob)

    @contextmanager
    def _errors_as_sentences(self, what: str) -> Iterator[None]:
        """Raises `FetchFailed`, or `_Unreachable` where the hub did not answer."""
        log_in = "log in (`hf auth login`, or HF_TOKEN)"
        try:
            yield
        except OfflineModeIsEnabled as error:
            raise _Unreachable("HF_HUB_OFFLINE is set") from error
        except GatedRepoError as error:
            where = f"{ENDPOINT}/{self.order.repository}"
            raise FetchFailed(f"is gated: ask for access at {where}, then {log_in}") from error
        except RepositoryNotFoundError as error:
            reason = f"is neither a folder here nor a model of {ENDPOINT}, or it is private"
            raise FetchFailed(f"{reason}: check the name, or {log_in}") from error
        except RevisionNotFoundError as error:
            raise FetchFailed(f"has no revision {self.order.revision!r}") from error
        except EntryNotFoundError as error:
            raise FetchFailed(f"{what} has vanished from the hub. Start again") from error
        except HfHubHTTPError as error:
            status = error.response.status_code
            raise _Unreachable(f"{ENDPOINT} answered {status} for {what}") from error
        except TransportError as error:
            why = str(error) or type(error).__name__
            raise _Unreachable(f"{ENDPOINT} could not be asked for {what}: {why}") from error
        except OSError as error:
            full = error.errno in _FULL
            why = "the disk is full; what was downloaded is kept" if full else str(error)
            raise FetchFailed(f"{what} cannot be written to {HF_HUB_CACHE}: {why}") from error


class _Unreachable(FetchFailed):
    """The hub did not answer, or not now: the cache may do."""


class ProgressBar:
    """Reports a file's progress, in the place of the library's own bar."""

    def __init__(self, file: str, total: int, initial: int, report: Report) -> None:
        self._file, self._total, self._report = file, total, report
        self._done = initial
        self._next_s = 0.0

    def update(self, count: int) -> None:
        """Count so many bytes more, or fewer."""
        self._done += count
        if (now := time.monotonic()) >= self._next_s:
            self._next_s = now + PROGRESS_S
            self._report(FileProgress(self._file, min(1.0, self._done / self._total)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _write_whole(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)


def _sha256(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size_text(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
