"""Static files of the page on which people see the server: open, the same for everyone.

The files lie in `api/page` and are read once, when this module is imported. The page knows nothing:
what it shows it asks for with its reader's key.
"""

import hashlib
import importlib.resources
from typing import Self

import attrs

from ..application import Call
from ..errors import ApiError
from ..http.answers import NO_SNIFFING

INDEX = "index.html"
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "woff2": "font/woff2",
}
HEADERS = (
    # Nothing from elsewhere is loaded, framed or sent to, and no text of a model can be a script.
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        " font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'",
    ),
    NO_SNIFFING,
    ("referrer-policy", "no-referrer"),
    # A browser asks each time whether its copy is still ours, so an upgrade is seen at once.
    ("cache-control", "no-cache"),
)


@attrs.frozen
class StaticFile:
    """File with its kind, and the tag by which a browser knows its copy."""

    content: bytes
    content_type: str
    etag: str

    @classmethod
    def of(cls, name: str, content: bytes) -> Self:
        """A file by this name. Raises `KeyError` for a kind that is not served."""
        digest = hashlib.sha256(content).hexdigest()[:32]
        return cls(content, TYPES[name.rpartition(".")[2]], f'"{digest}"')


def _read_files() -> dict[str, StaticFile]:
    folder = importlib.resources.files("triolet.api").joinpath("page")
    names = [each.name for each in folder.iterdir() if each.name.rpartition(".")[2] in TYPES]
    return {name: StaticFile.of(name, folder.joinpath(name).read_bytes()) for name in names}


FILES = _read_files()
RUNNING = b"Triolet is running. GET /docs lists the API, GET /health says how it is.\n"


async def get_page(call: Call) -> None:
    """`GET /`: the page for browsers, and a line for health checkers and curl."""
    if "text/html" in (call.header("accept") or ""):
        await _answer(call, FILES[INDEX])
    else:
        await call.connection.answer(200, RUNNING, content_type="text/plain; charset=utf-8")


async def get_page_file(call: Call) -> None:
    """`GET /page/{id}`: a file of the page.

    Raises `ApiError` 404.
    """
    file = FILES.get(call.resource_id)
    if file is None:
        raise ApiError(404, "The page has no such file", "route_not_found")
    await _answer(call, file)


async def _answer(call: Call, file: StaticFile) -> None:
    headers = [*HEADERS, ("etag", file.etag), ("vary", "accept")]
    if file.etag in [tag.strip() for tag in (call.header("if-none-match") or "").split(",")]:
        await call.connection.answer(304, b"", headers=headers)
        return
    await call.connection.answer(200, file.content, content_type=file.content_type, headers=headers)
