"""Queue of news for one viewer of a server: bounded, and complete or begun anew.

News are changes, each to be merged into what the viewer knows; so one that takes them too slowly
cannot be given a part. It loses all that wait, and asks for everything when it comes again.
"""

from collections.abc import Callable

import attrs
import trio

from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.parking import Doorbell
from ..control.calls import News

# Limit of one viewer. A busy server with a thousand tasks says some ten kilobytes a second.
WAITING_CHARACTERS_MAX = 2**20


@attrs.define(eq=False)
class NewsQueue:
    """`want_all` is called when a snapshot is needed, which is to be put some time afterwards."""

    want_all: Callable[[], None]
    characters_max: int = WAITING_CHARACTERS_MAX
    # Whether it was begun by a snapshot, so that changes are of use.
    is_begun: bool = attrs.field(default=False, init=False)
    # Texts that were lost, as they were taken too slowly.
    dropped: int = attrs.field(default=0, init=False)
    _texts: list[str] = attrs.field(factory=list, init=False)
    _characters: int = attrs.field(default=0, init=False)
    _is_whole: bool = attrs.field(default=False, init=False)
    _put: Doorbell = attrs.field(factory=Doorbell, init=False)

    def put(self, text: str, *, is_whole: bool = False) -> None:
        """A snapshot or a change. A snapshot makes void what waits."""
        if is_whole:
            self._clear()
            self.is_begun = self._is_whole = True
        if not self.is_begun:
            return
        self._texts.append(text)
        self._characters += len(text)
        self._put.ring()
        if self._characters > self.characters_max:
            self.dropped += len(self._texts)
            self._clear()
            self.is_begun = False

    async def take(self) -> News:
        """Take all that waits; waits for some. One task may take."""
        while not self._texts:
            self._put.clear()
            if not self.is_begun:
                self.want_all()
            with waiting_for("news"):
                await self._put.wait()
        await trio.lowlevel.checkpoint_if_cancelled()
        news = News(self._texts, self._is_whole)
        self._clear()
        return news

    def begin_anew(self) -> None:
        """Ask for a snapshot, as what was taken was lost."""
        self._clear()
        self.is_begun = False
        self.want_all()

    def _clear(self) -> None:
        self._texts, self._characters, self._is_whole = [], 0, False
