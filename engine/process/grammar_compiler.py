"""Grammar compiler: one grammar after another in a thread, off the step loop.

    core --request--> thread: text, matcher, first mask, replayed tokens --> the request runs

Compiled ones are kept, and each request gets a copy: tools and schemas come again and again. The
tokenizer is the model folder's `tokenizer.json` in llguidance's own form; a folder without one, or
with one that it cannot read, serves all requests but those that ask for a form.
"""

import logging
import pathlib
from collections.abc import Awaitable, Callable, Sequence, Set
from functools import partial

import attrs
import trio
from llguidance import LLMatcher, LLTokenizer

from ...nurseries.tasks.background import waiting_for
from ..batch_table import BatchTable, GrammarThread
from ..errors import InvalidParameter, ModelFolderError
from ..grammar.matcher import MatchedGrammar, ShowWork, show_nothing
from ..grammar.text import LIMITS, grammar_text, refused
from ..model_config.config import load_model_limits
from ..model_config.folder import read_bytes
from ..structured_outputs import StructuredOutputs
from .server import EngineServer

logger = logging.getLogger(__name__)
TOKENIZER_FILE = "tokenizer.json"
# The largest known, of 260 k tokens, has 33 MB.
TOKENIZER_BYTES_MAX = 256 * 2**20
# Grammars have some megabytes at most (`grammar.text.LIMITS`); tool users send the same few.
KEPT_MAX = 32
# An opening brace, a quotation mark, the first letter of a name.
TRIED_TOKENS = 3


@attrs.define(eq=False)
class GrammarCompiler:
    """The grammars of one model. One thread at a time calls `load` and `compile`."""

    folder: pathlib.Path
    vocab_size: int
    _tokenizer: LLTokenizer | None = attrs.field(default=None, init=False)
    # Why there is none.
    _reason: str = attrs.field(default="", init=False)
    # Compiled, nothing accepted; the least recently used first.
    _kept: dict[StructuredOutputs, LLMatcher] = attrs.field(factory=dict, init=False)

    def load(self) -> None:
        """Read the tokenizer. Blocks for 10 ms to 0.4 s, by the vocabulary; never raises."""
        try:
            ends = load_model_limits(self.folder).eos_token_ids
            text = read_bytes(self.folder / TOKENIZER_FILE, TOKENIZER_BYTES_MAX).decode()
            self._tokenizer = LLTokenizer(
                text, n_vocab=self.vocab_size, eos_token=list(ends) or None
            )
        except (ModelFolderError, ValueError) as error:
            self._reason = f"this model has no tokenizer for it: {error}"
            logger.info("structured outputs are not served: %s", error)

    def compile(
        self,
        wanted: StructuredOutputs,
        eos_token_ids: Set[int],
        output_token_ids: Sequence[int],
        show_work: ShowWork = show_nothing,
    ) -> MatchedGrammar:
        """A grammar of one request's own, which has accepted its output so far.

        `eos_token_ids` end the output, where it may end; empty if the request ignores them. The
        grammar calls `show_work` from then on.

        Blocks for milliseconds, of the largest for some hundred. Raises `InvalidParameter`.
        """
        if self._tokenizer is None:
            raise refused(self._reason)
        matcher = self._kept.pop(wanted, None)
        if matcher is None:
            matcher = self._compile(wanted, self._tokenizer)
        self._kept[wanted] = matcher
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        ends = frozenset(self._tokenizer.eos_tokens)
        grammar = MatchedGrammar(matcher.deep_copy(), ends - eos_token_ids, show_work)
        if (index := grammar.replay(output_token_ids)) is not None:
            raise refused(f"output token {index} does not match it: {grammar.failure}")
        return grammar

    def _compile(self, wanted: StructuredOutputs, tokenizer: LLTokenizer) -> LLMatcher:
        matcher = LLMatcher(tokenizer, grammar_text(wanted), log_level=0, limits=LIMITS)
        first = b"" if matcher.is_error() else matcher.compute_bitmask()
        if matcher.is_error():
            raise refused(matcher.get_error())
        if matcher.is_stopped() and not matcher.is_accepting():
            raise refused("nothing can match it")
        _try_some(matcher.deep_copy(), first)
        return matcher


def _try_some(matcher: LLMatcher, mask: bytes) -> None:
    """Go some tokens on: what is too wide, an object of a thousand properties, shows there."""
    for _ in range(TRIED_TOKENS):
        byte = next((place for place, bits in enumerate(mask) if bits), None)
        if byte is None:
            raise refused("nothing can match it")
        lowest = mask[byte] & -mask[byte]
        matcher.consume_token(byte * 8 + lowest.bit_length() - 1)
        if matcher.is_error():
            raise refused(matcher.get_error())
        if matcher.is_stopped():
            return
        mask = matcher.compute_bitmask()


async def run_grammar_compiler(
    server: EngineServer,
    batches: BatchTable | None = None,
    make: Callable[[pathlib.Path, int], GrammarCompiler] = GrammarCompiler,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Background task `grammar-compiler`; never returns unless cancelled.

    Reads the tokenizer first; the engine need not wait for that, requests that want a form do.
    Error handling: what cannot be compiled ends its request, alone; a form that ends this process
    is named in `batches` before it is touched. Cancellation: waits for the
    tokenizer or for the grammar in hand, whose size bounds it.
    """
    core, batches = server.core, batches or BatchTable(None, 0)
    compiler = make(pathlib.Path(core.settings.model), core.limits.vocab_size)
    limiter = trio.CapacityLimiter(1)
    task_status.started()
    await trio.to_thread.run_sync(compiler.load, limiter=limiter)
    while True:
        with waiting_for("grammars to compile"):
            await server.wait_grammar_orders()
        for request in core.take_grammar_orders():
            if request.is_finished:
                continue  # meanwhile
            wanted = request.sampling.structured_outputs
            assert wanted is not None, "it waits for a grammar"
            output = request.token_ids[request.prompt_tokens :]
            form, position = request.form_content, len(request.token_ids)
            # The partial is without the request, which has the grammar: a circle is freed late.
            show_work = partial(_show_work, batches, form, request.prompt_tokens)
            asked = wanted, request.eos_token_ids, output, show_work
            compile_it = partial(compiler.compile, *asked)
            batches.begin_grammar(GrammarThread.COMPILER, form, position)
            try:
                grammar = await trio.to_thread.run_sync(compile_it, limiter=limiter)
            except InvalidParameter as error:
                core.grammar_refused(request, error)
            else:
                core.grammar_compiled(request, grammar)
            batches.end_grammar(GrammarThread.COMPILER)
            server.notify()


# `run_grammar_compiler`, or what is in its place where no request has a grammar.
RunCompiler = Callable[..., Awaitable[None]]


def _show_work(batches: BatchTable, form: bytes, prompt_tokens: int, accepted: int | None) -> None:
    """Name the form of a request while its matcher works, in the loop's thread."""
    if accepted is None:
        batches.end_grammar(GrammarThread.LOOP)
    else:
        batches.begin_grammar(GrammarThread.LOOP, form, prompt_tokens + accepted)
