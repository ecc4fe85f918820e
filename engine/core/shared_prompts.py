"""Shared prompts: one of several choices computes the prompt that all of them have.

Sans-IO: which request waits for which. Choices of one request come at once; if each began at once
each would compute the prompt. So the first that is admitted computes it, and its siblings wait
until its blocks can be found (`KVCacheManager`), or until it was preempted or has ended: then the
next one to be admitted is the one that computes. None waits for a request that does not itself run,
so nothing can wait for ever.
"""

import attrs

from .request import Frontend, Request

PromptKey = tuple[Frontend, str]


@attrs.define(eq=False)
class _SharedPrompt:
    """`computing` computes the prompt; `waiting` are its siblings."""

    computing: Request
    waiting: list[Request] = attrs.field(factory=list)


@attrs.define(eq=False)
class SharedPrompts:
    """Shared prompts that are being computed; bounded by the requests that run."""

    _prompts: dict[PromptKey, _SharedPrompt] = attrs.field(factory=dict, init=False)

    def wait_for_sibling(self, request: Request) -> bool:
        """Whether a sibling computes the prompt; the request then waits for it from now on."""
        prompt = self._prompts.get(_key(request))
        if prompt is None:
            return False
        prompt.waiting.append(request)
        request.waits_for_sibling = True
        return True

    def begin(self, request: Request) -> None:
        """It was admitted and computes what its siblings want; none of them does."""
        key = _key(request)
        assert key not in self._prompts
        self._prompts[key] = _SharedPrompt(request)

    def leave(self, request: Request) -> list[Request]:
        """It has computed the prompt, was preempted, or ended: those that need not wait now."""
        prompt = self._prompts.get(_key(request))
        if prompt is None:
            return []
        if prompt.computing is not request:
            if request.waits_for_sibling:
                prompt.waiting.remove(request)
                request.waits_for_sibling = False
            return []
        del self._prompts[_key(request)]
        for sibling in prompt.waiting:
            sibling.waits_for_sibling = False
        return prompt.waiting

    def check_invariants(self, running: list[Request]) -> None:
        """Fails an assertion if one waits for a request that is not in `running`, or in vain."""
        for key, prompt in self._prompts.items():
            assert prompt.computing in running
            assert not prompt.computing.is_finished
            for request in prompt.waiting:
                assert request.waits_for_sibling
                assert _key(request) == key
                assert not request.is_finished
                assert request not in running


def _key(request: Request) -> PromptKey:
    return (request.frontend, request.parent)
