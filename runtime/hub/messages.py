"""Messages between a program and the process that downloads a model for it."""

import attrs


@attrs.frozen
class FetchOrder:
    """Order to fetch a model. `any_architecture`: also if its architecture is not supported."""

    repository: str
    revision: str
    any_architecture: bool


@attrs.frozen
class FileProgress:
    """Share of a file that is there."""

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
    """Folder with all files, and their commit.

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
