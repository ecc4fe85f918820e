"""Lets one of several choices compute the prompt that all of them have, while the others wait.

Sans-IO: who waits for whom. Choices of one request come at once; if each began at once each would
compute the prompt. So the first that is admitted computes it, and its siblings stand aside until
its blocks can be found (`KVCacheManager`), or until it has lost its place: then they may go on, and
the next one to be admitted is the one that computes. Nobody waits for a request that does not
itself run, so nothing can wait for ever. Must not know blocks, rows or order.
"""

import attrs

from .request import Frontend, Request

GroupKey = tuple[Frontend, str]


@attrs.define(eq=False)
class _Group:
    """Those that stand aside while `computing` computes the prompt."""

    computing: Request
    waiting: list[Request] = attrs.field(factory=list)


@attrs.define(eq=False)
class SiblingGroups:
    """Groups in which somebody computes a shared prompt; bounded by who runs."""

    _groups: dict[GroupKey, _Group] = attrs.field(factory=dict, init=False)

    def stand_aside(self, request: Request) -> bool:
        """Whether a sibling computes the prompt; the request then waits for it from now on."""
        group = self._groups.get(_key(request))
        if group is None:
            return False
        group.waiting.append(request)
        request.waits_for_sibling = True
        return True

    def begin(self, request: Request) -> None:
        """It was admitted and computes what its siblings want; none of them does."""
        key = _key(request)
        assert key not in self._groups
        self._groups[key] = _Group(request)

    def leave(self, request: Request) -> list[Request]:
        """It has computed the prompt, lost its place, or ended: who need not wait any more."""
        group = self._groups.get(_key(request))
        if group is None:
            return []
        if group.computing is not request:
            if request.waits_for_sibling:
                group.waiting.remove(request)
                request.waits_for_sibling = False
            return []
        del self._groups[_key(request)]
        for sibling in group.waiting:
            sibling.waits_for_sibling = False
        return group.waiting

    def is_computing(self, request: Request) -> bool:
        """Whether siblings would wait for this one."""
        group = self._groups.get(_key(request))
        return group is not None and group.computing is request

    def check_invariants(self, running: list[Request]) -> None:
        """Fails an assertion if anybody waits for one that is not in `running`, or in vain."""
        for key, group in self._groups.items():
            assert group.computing in running
            assert not group.computing.is_finished
            for request in group.waiting:
                assert request.waits_for_sibling
                assert _key(request) == key
                assert not request.is_finished
                assert request not in running


def _key(request: Request) -> GroupKey:
    return (request.frontend, request.parent)
