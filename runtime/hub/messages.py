"""Messages between a program and the process that downloads a model for it."""

import attrs


@attrs.frozen
class FetchOrder:
    """What to fetch. `any_architecture`: also of a model whose architecture is not supported."""

    repository: str
    revision: str
    any_architecture: bool


@attrs.frozen
class FileProgress:
    """So much of a file is there."""

    file: str
    fraction: float


@attrs.frozen
class FileFetched:
    """A file has been downloaded."""

    file: str
    size_bytes: int
    seconds: float


@attrs.frozen
class FolderFetched:
    """All files are there: in which folder, of which commit.

    `remark` says why the hub was not asked, if it was not.
    """

    folder: str
    commit: str
    remark: str


@attrs.frozen
class FetchRefused:
    """The model is not to be had; `reason` is the end of a sentence that begins with its name."""

    reason: str


TO_DOWNLOAD = (FetchOrder,)
FROM_DOWNLOAD = (FileProgress, FileFetched, FolderFetched, FetchRefused)
