"""Requests with an idempotency key: who executes them, and the answer of the one that did.

Calls go to the key's home and to the executor, which may be this frontend; see `claims`. Waits for
another's execution are as long as it takes, each call within is bounded.
"""

from typing import TypeVar

import attrs
import msgspec

from ...runtime.messages import ForeignVerb
from ..errors import ApiError
from ..openai.response_id import frontend_of
from ..schema.fields import JsonObject
from .claims import Claim, ClaimCall, KeyedRequest, NextStep, Standing, home_of, judge
from .executions import Execution, ExecutionCall
from .foreign import ForeignStreams

Answer = TypeVar("Answer")
GIVEN_UP = "the frontend that executed it was given up"


@attrs.define(eq=False)
class KeyedRequests:
    """Requests with keys of a frontend."""

    foreign: ForeignStreams

    async def choose(self, keyed: KeyedRequest, principal: str, response_id: str) -> Claim:
        """The claim that holds: with this id, which is pending, it is the caller's to execute;
        another response is read.

        Raises `ApiError` 409, 410, 422, or 503 when the home or the executor does not answer.
        """
        own = Claim(
            name=keyed.name,
            digest=keyed.digest,
            response_id=response_id,
            epoch=self.foreign.epoch,
        )
        unknown = ""
        while True:
            claim = await self._claim(ClaimCall(own, unknown))
            if claim.response_id == response_id:
                return claim
            execution = await self._execution(claim, principal)
            match judge(claim, keyed.digest, execution.standing, execution.reason):
                case NextStep.READ:
                    return claim
                case NextStep.CLAIM_INSTEAD:
                    unknown = claim.response_id
                case NextStep.ASK_AGAIN:
                    pass

    async def find_answer(
        self, keyed: KeyedRequest, principal: str, response_id: str
    ) -> JsonObject | None:
        """The answer of another's execution, at its end; None: it is the caller's to execute.

        Raises `ApiError` as `choose` does, and the failure that it ended with.
        """
        while True:
            claim = await self.choose(keyed, principal, response_id)
            if claim.response_id == response_id:
                return None
            execution = Execution(standing=Standing.RUNNING)
            while execution.standing is Standing.RUNNING:
                execution = await self._execution(claim, principal, until_end=True)
            if execution.error is not None:
                raise execution.error
            if execution.response is not None:
                return execution.response

    async def _claim(self, call: ClaimCall) -> Claim:
        home = home_of(call.claim.name, self.foreign.frontends)
        return await self._ask(ForeignVerb.CLAIM, home, call.claim, call, kind=Claim)

    async def _execution(
        self, claim: Claim, principal: str, *, until_end: bool = False
    ) -> Execution:
        executor = frontend_of(claim.response_id)
        assert executor is not None
        call = ExecutionCall(claim.epoch, until_end)
        try:
            return await self._ask(
                ForeignVerb.EXECUTION, executor, claim, call, principal=principal, kind=Execution
            )
        except ApiError:
            if self.foreign.is_given_up(executor):
                return Execution(standing=Standing.LOST, reason=GIVEN_UP)
            raise

    async def _ask(
        self,
        verb: ForeignVerb,
        frontend: int,
        claim: Claim,
        call: object,
        *,
        principal: str = "",
        kind: type[Answer],
    ) -> Answer:
        text = msgspec.json.encode(call).decode()
        return await self.foreign.call(
            verb, claim.response_id, principal, text=text, frontend=frontend, kind=kind
        )
