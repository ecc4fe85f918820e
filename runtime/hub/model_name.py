"""Names of models on the hub, `ORG/NAME` and `ORG/NAME@REVISION`, as against folders."""

import pathlib
import re

import attrs

from ...engine.errors import InvalidParameter

# The hub's own rule: two parts of letters, digits, `.`, `_` and `-`, 96 characters at most each.
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
# Branches and tags as git takes them, as far as people use that; pull requests are `refs/pr/1`.
# Two dots in a row lead out of a folder, and git takes none.
_REVISION = r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/-]{0,254}"
_NAME = re.compile(rf"(?P<repository>{_PART}/{_PART})(@(?P<revision>{_REVISION}))?")
DEFAULT_REVISION = "main"


@attrs.frozen
class HubModel:
    """A model on the hub; `revision` is a branch, a tag or a commit."""

    repository: str
    revision: str = DEFAULT_REVISION


def hub_model(model: str | None, revision: str = "") -> HubModel | None:
    """The model of the hub that is meant; None for a folder, and for what is no name of either.

    Raises `InvalidParameter` for a revision of something else, or two different ones.
    """
    name = None
    if model and not pathlib.Path(model).exists():
        name = _NAME.fullmatch(model)
    if name is None:
        if revision:
            what = f"{model} is a folder, or nothing" if model else "there is no model"
            raise InvalidParameter("revision", f"is of models of the hub (ORG/NAME); {what}")
        return None
    named = name["revision"] or ""
    if revision and not re.fullmatch(_REVISION, revision):
        raise InvalidParameter("revision", f"must be a branch, tag or commit, not {revision!r:.80}")
    if named and revision and named != revision:
        raise InvalidParameter("revision", f"{revision} and the one of {model} exclude each other")
    return HubModel(name["repository"], named or revision or DEFAULT_REVISION)
