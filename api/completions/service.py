"""Service of chat completions, completions and Messages: orders, and completions built again."""

import time
from functools import partial
from typing import Any, ClassVar

import attrs

from ...runtime.frontend.adoption import AdoptedStream
from ...runtime.messages import ForeignVerb
from ..errors import completion_not_found, frontends_died
from ..openai.chat_requests import ChatRequest
from ..openai.completion_requests import CompletionsRequest
from ..schema.fields import JsonObject
from ..streams.adoption import Adoption, KeptRequest, is_long, kept_request
from ..streams.foreign import ForeignReader
from ..streams.service import Claim, StreamService, unclaimed
from ..streams.store import StreamStore
from ..streams.stream_reader import StreamReader
from .completion import ServedCompletion
from .order import CompletionOrder, request_again

Reader = StreamReader[Any, bytes] | ForeignReader[bytes]


@attrs.define(eq=False)
class CompletionService(StreamService[CompletionOrder, ServedCompletion, bytes]):
    """Service of a frontend."""

    verb: ClassVar[ForeignVerb] = ForeignVerb.CHUNKS

    def __attrs_post_init__(self) -> None:
        self.store = StreamStore(self.streams.books, completion_not_found)

    def join(self, parts: list[Any]) -> bytes:
        """Frames of a batch, whose parts are texts."""
        return "".join(parts).encode()

    def order(
        self,
        request: ChatRequest | CompletionsRequest,
        principal: str,
        values: JsonObject,
        claim: Claim = unclaimed,
        *,
        is_keyed: bool = False,
    ) -> CompletionOrder:
        """Order a request, whose body this is; its id is what `claim` makes of a new one."""
        streams, is_streamed = self.streams, request.options.stream
        if isinstance(request, ChatRequest):
            streams.ignored_tools.note(request.tools.given.ignored)
        order = CompletionOrder(
            stream_id=claim(partial(streams.ids.draw, request.kind)),
            created=int(time.time()),
            principal=principal,
            request=request,
            generator=streams.generator,
            values=values,
            options=streams.settings.with_merging(request.options.runtime, streaming=is_streamed),
            is_keyed=is_keyed,
        )
        is_wanted = is_streamed or is_keyed or is_long(request.sampling, order.choice_count)
        order.is_noted = is_wanted and streams.books.journal is not None
        return order

    async def make(self, order: CompletionOrder) -> ServedCompletion:
        """A completion that was not admitted yet."""
        return ServedCompletion(order)

    def rebuild(self, stream_id: str, parts: list[AdoptedStream]) -> ServedCompletion:
        """The completion of a life before."""
        parts.sort(key=lambda part: int(part.name.partition("-")[2] or 0))
        admission, *_ = [part.admission for part in parts]  # all are loaded here, or it fails here
        kept, streams = kept_request(admission, KeptRequest), self.streams
        order = CompletionOrder(
            stream_id=stream_id,
            created=admission.created_at,
            principal=admission.requests[0].principal,
            request=request_again(
                stream_id,
                kept.values,
                model=streams.generator.model_name,
                answer_format=streams.answer_format,
            ),
            generator=streams.generator,
            values=kept.values,
            is_keyed=kept.is_keyed,
            is_noted=True,
        )
        if [part.name for part in parts] != order.names:
            # The completion was cut within its admission, of which its client does not know.
            raise frontends_died("completion", "completion_lost")
        completion = ServedCompletion(order)
        completion.adoption = Adoption.of(*parts)
        return completion
