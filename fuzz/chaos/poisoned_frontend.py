"""A frontend as any other, but for words in what clients send, which end it where it reads them."""

import enum
import os
from functools import partial

from ...api.frontend_process import main, prepare
from ...nurseries.processes.child import run_child
from ...runtime.hands import ContentKind, Hands, Hold


class FrontendPoison(enum.StrEnum):
    """Where a content ends its process: the word in its text."""

    HEAD = "poisons-the-head"
    CHUNKS = "poisons-the-chunks"
    PARSE = "poisons-the-parser"
    FRAME = "poisons-the-frame"
    RENDER = "poisons-the-template"
    TOKENISE = "poisons-the-tokenizer"


_POISONS = {
    ContentKind.HEAD: FrontendPoison.HEAD,
    ContentKind.CHUNKS: FrontendPoison.CHUNKS,
    ContentKind.BODY: FrontendPoison.PARSE,
    ContentKind.FRAME: FrontendPoison.FRAME,
    ContentKind.MESSAGE: FrontendPoison.PARSE,
    ContentKind.CHAT: FrontendPoison.RENDER,
    ContentKind.TEXT: FrontendPoison.TOKENISE,
}


class PoisonedHold(Hold):
    """A content that is about to end its process."""

    def __enter__(self) -> None:
        """As ever, then abort."""
        super().__enter__()
        os.abort()


class PoisonedHands(Hands):
    """Aborts where the library would be called that reads a poison."""

    async def take(self, kind: ContentKind, principal: str, data: bytes) -> Hold:
        """As ever, or a hold that aborts."""
        hold = await super().take(kind, principal, data)
        poison = _POISONS.get(kind)
        if poison is not None and poison.encode() in data:
            return PoisonedHold(hold.hands, hold.content)
        return hold


if __name__ == "__main__":
    run_child(partial(main, make_hands=PoisonedHands), prepare=prepare)
