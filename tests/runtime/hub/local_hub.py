"""A hub on this machine: what `huggingface_hub` asks of the real one to list and download a model.

It answers `/api/models/…/revision/…` with commit, files and sizes, and `…/resolve/…` with `ETag`,
`X-Repo-Commit` and ranges, one request a connection. A test says what goes wrong, and reads in
`asked` what was asked.
"""

import contextlib
import functools
import hashlib
import json
import urllib.parse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import h11
import trio

CHUNK_BYTES = 1024 * 1024


@functools.lru_cache
def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@attrs.define(eq=False)
class LocalHub:
    """Models are {repository: {revision: {file: content}}}; a commit is the hash of the content."""

    models: dict[str, dict[str, dict[str, bytes]]]
    url: str = ""
    # (method, path, the Range header) of each request.
    asked: list[tuple[str, str, str]] = attrs.field(factory=list)
    gated: bool = False
    # Files that are listed, and are not there any more.
    vanished: set[str] = attrs.field(factory=set)
    # {file: bytes of it after which connections break off}.
    break_after: dict[str, int] = attrs.field(factory=dict)
    # So often; then they last.
    breaks: int = 1_000_000
    # Set when one has broken off.
    broke: trio.Event = attrs.field(factory=trio.Event)
    # Where it breaks off it goes silent instead.
    hangs: bool = False
    # Instead of everything else.
    status: int = 0

    def commit(self, repository: str, revision: str) -> str | None:
        """The commit that a branch, or a commit's own name, stands for."""
        revisions = self.models.get(repository, {})
        if revision in map(self._commit, revisions.values()):
            return revision
        return self._commit(revisions[revision]) if revision in revisions else None

    def _commit(self, files: dict[str, bytes]) -> str:
        whole = hashlib.sha1()
        for name in sorted(files):
            whole.update(f"{name} {digest(files[name])}".encode())
        return whole.hexdigest()

    def files(self, repository: str, commit: str) -> dict[str, bytes]:
        found = self.models[repository].values()
        return next(files for files in found if self._commit(files) == commit)

    def names_asked(self, method: str = "GET") -> list[str]:
        """The files that were asked for, in order."""
        resolved = [path for each, path, _ in self.asked if each == method and "/resolve/" in path]
        return [path.rpartition("/")[2] for path in resolved]

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection, one request."""
        connection = h11.Connection(h11.SERVER)
        async with stream:
            request = None
            while not isinstance(event := connection.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    connection.receive_data(await stream.receive_some())
                elif isinstance(event, h11.Request):
                    request = event
                elif isinstance(event, h11.ConnectionClosed):
                    return
            assert request is not None
            # A client that leaves in the middle ends its connection alone.
            with trio.move_on_after(60), contextlib.suppress(trio.BrokenResourceError):
                await self._answer(connection, stream, request)

    async def _answer(
        self, connection: h11.Connection, stream: trio.SocketStream, request: h11.Request
    ) -> None:
        method = request.method.decode()
        path = urllib.parse.unquote(request.target.decode().partition("?")[0])
        ranged = dict(request.headers).get(b"range", b"").decode()
        self.asked.append((method, path, ranged))
        status, headers, body = self._find(path)
        name = path.rpartition("/")[2]
        begin = int(ranged.removeprefix("bytes=").partition("-")[0]) if ranged else 0
        if status == 200 and begin:
            status = 206
            headers["Content-Range"] = f"bytes {begin}-{len(body) - 1}/{len(body)}"
            body = body[begin:]
        headers |= {"Content-Length": str(len(body)), "Connection": "close"}
        response = h11.Response(status_code=status, headers=list(headers.items()))
        await stream.send_all(connection.send(response) or b"")
        if method == "HEAD":
            return
        limit = self.break_after.get(name, len(body))
        for at in range(0, min(len(body), limit), CHUNK_BYTES):
            await stream.send_all(body[at : min(at + CHUNK_BYTES, limit)])
        if limit < len(body) and self.breaks:
            self.breaks -= 1
            self.broke.set()
            if self.hangs:
                await trio.sleep_forever()
        elif limit < len(body):
            await stream.send_all(body[limit:])

    def _find(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        if self.status:
            return self.status, {}, b"busy"
        head, _, tail = path.partition("/resolve/")
        repository = head.removeprefix("/api/models/").partition("/revision/")[0].strip("/")
        if repository not in self.models:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        name = ""
        if tail:
            revision, _, name = tail.partition("/")
        else:
            revision = path.rpartition("/revision/")[2]
        commit = self.commit(repository, revision)
        if commit is None:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        files = self.files(repository, commit)
        if not tail:
            siblings = [{"rfilename": each, "size": len(data)} for each, data in files.items()]
            info = {"id": repository, "sha": commit, "siblings": siblings}
            return 200, {"Content-Type": "application/json"}, json.dumps(info).encode()
        if self.gated:
            return 403, {"X-Error-Code": "GatedRepo"}, b"{}"
        if name not in files or name in self.vanished:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b"{}"
        etag = digest(files[name])
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        return 200, headers, files[name]


@asynccontextmanager
async def open_hub(models: dict[str, dict[str, dict[str, bytes]]]) -> AsyncIterator[LocalHub]:
    """A hub with these models, at `hub.url`."""
    hub = LocalHub(models)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        hub.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, hub.serve, listeners)
        yield hub
        nursery.cancel_scope.cancel("the hub is not needed any more")
