"""Input processor: prompts of any form to token ids that this model can take.

Short texts are tokenised on the spot, which costs less than handing them to a thread. Long ones go
to a thread slice by slice, a few at a time for the whole process and in turn for its principals, so
that neither the loop waits nor a cancelled request keeps a thread for longer than one slice. One
that cannot fit the model is refused as soon as that is sure: by its characters, or by its tokens so
far. A conversation is rendered on the spot, too, unless that takes much: then in a thread. What
cannot be served is refused here with the field's name, before an engine sees it.
"""

import contextlib
import logging
import pathlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from functools import partial
from typing import Self

import attrs
import trio

from ...engine.embeddings import PLACEHOLDER_ID, EmbeddingLimits
from ...engine.errors import InvalidParameter, PromptTooLong
from ...engine.model_config.config import GENERATION_CONFIG_FILE, load_model_limits
from ...engine.model_config.folder import CONFIG_FILE
from ...engine.model_config.generation import GenerationConfig, load_generation_config
from ...engine.sampling_params import MAX_LOGPROBS_DEFAULT, TRUNCATE_TO_MODEL, SamplingParams
from ...transports.array import Array
from ..config import GENERATION_CONFIG_AUTO, InputLimits, RuntimeSettings
from ..errors import ChatTemplateMissing, ChatTemplateTooCostly
from ..forms.form_client import FormChecker, LocalForms
from ..hands import ContentKind, Hands, Hold
from .chat_template import ChatTemplate
from .prompts import ChatPrompt, Prompt, PromptEmbeds
from .template_sandbox import INLINE
from .tokenizer import Tokenizer
from .tokenizer_threads import TokenizerThreads

logger = logging.getLogger(__name__)
UNSERVED = "%s advises what is not served and therefore not done: %s"
# English has about so many in most vocabularies; only an estimate until the text is tokenised.
CHARACTERS_PER_TOKEN = 4
_NO_PROMPT = "must be text, whole numbers or a conversation"


@attrs.frozen
class PreparedPrompt:
    """A prompt that the model can take, and its parameters with the model's where none were."""

    prompt_token_ids: list[int]
    params: SamplingParams
    # Embeddings to use instead of looking the ids up, which are placeholders then.
    embeds: Array | None = None
    # `params.bad_words`, as tokens.
    bad_words: list[list[int]] = attrs.field(factory=list)


@attrs.define(eq=False)
class InputProcessor:
    """The way of all prompts of one process. Lengths and ids are those of the model's folder."""

    tokenizer: Tokenizer
    # The chat template; None if the model has none: conversations are then refused.
    chat_template: ChatTemplate | None
    # The model's, which may be more than its tokenizer has.
    vocab_size: int
    max_model_len: int
    # Whatever ends a generation: the model's end tokens and its tokenizer's.
    eos_token_ids: tuple[int, ...] = ()
    # The makers' advice, for parameters that a client leaves out.
    defaults: SamplingParams = attrs.field(factory=SamplingParams)
    limits: InputLimits = attrs.field(factory=InputLimits)
    # The most alternatives that logprobs may ask for.
    max_logprobs: int = MAX_LOGPROBS_DEFAULT
    # When the folder's configuration was written, in Unix seconds.
    created_at: int = 0
    # Limits of prompts of embeddings.
    embeddings: EmbeddingLimits = attrs.field(factory=EmbeddingLimits)
    # Checks forms of answers, in another process wherever there is one.
    forms: FormChecker = attrs.field(factory=LocalForms)
    # Names contents while they are parsed or tokenised, here and in the API.
    hands: Hands = attrs.field(factory=Hands)
    _threads: TokenizerThreads = attrs.field(init=False)
    # A single thread to render conversations: two would only take each other's time.
    _template_thread: TokenizerThreads = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._threads = TokenizerThreads.make(self.limits.threads, self.limits.waiting_max)
        self._template_thread = TokenizerThreads.make(1, self.limits.waiting_max)

    @classmethod
    def load(cls, settings: RuntimeSettings) -> Self:
        """Read what is needed from the model's folder. Blocks for up to a second.

        Raises `ModelFolderError` and its kinds, and `InvalidParameter` if the model is shorter than
        the settings ask for; a missing chat template is no error here.
        """
        folder = pathlib.Path(settings.engine.model)
        model = load_model_limits(folder)
        tokenizer = Tokenizer.load(folder)
        try:
            file = settings.chat_template
            chat_template = ChatTemplate.load(folder, tokenizer.special_tokens, file=file)
        except ChatTemplateMissing:
            chat_template = None
        generation = GenerationConfig()
        if settings.generation_config == GENERATION_CONFIG_AUTO:
            generation = load_generation_config(folder)
        if generation.unserved:
            logger.warning(UNSERVED, GENERATION_CONFIG_FILE, ", ".join(generation.unserved))
        ends = (*model.eos_token_ids, *tokenizer.eos_token_ids)
        return cls(
            tokenizer,
            chat_template,
            vocab_size=model.vocab_size,
            eos_token_ids=tuple(i for i in dict.fromkeys(ends) if i < model.vocab_size),
            defaults=generation.defaults,
            max_model_len=settings.engine.model_len_of(model.max_model_len),
            limits=settings.input,
            max_logprobs=settings.engine.max_logprobs,
            created_at=int((folder / CONFIG_FILE).stat().st_mtime),
            embeddings=EmbeddingLimits(model.hidden_size, settings.engine.max_num_batched_tokens),
        )

    def estimate_tokens(self, prompt: Prompt) -> int:
        """About how many tokens a prompt has, without looking into it; at least 1.

        Raises `InvalidParameter` for what is no prompt.
        """
        match prompt:
            case str():
                return len(prompt) // CHARACTERS_PER_TOKEN + 1
            case ChatPrompt():
                contents = [_content_of(message) for message in prompt.messages]
                characters = sum(len(text) for text in contents if isinstance(text, str))
                return characters // CHARACTERS_PER_TOKEN + 1
            case PromptEmbeds():
                return prompt.tokens
            case Sized():
                return max(1, len(prompt))
            case _:
                raise InvalidParameter("prompt", _NO_PROMPT)

    async def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        max_model_len: int | None = None,
        principal: str = "",
    ) -> PreparedPrompt:
        """Token ids of a prompt, checked; `max_model_len` may be less than the model's.

        How many tokens may follow is settled here, in the parameters' `max_tokens`.

        Raises `InvalidParameter`, `PromptTooLong`, `TextRefused`, `ChatTemplateMissing`,
        `ChatTemplateRefused`, `FormsUnavailable`, `RequestQuarantined`; `Overloaded` if too many
        prompts of this principal wait. Cancellation waits for the end of one slice. No checkpoint
        if the prompt is short, its form is known, and no content is suspected (`hands`).
        """
        params = params.with_defaults(self.defaults)
        length_max = min(max_model_len or self.max_model_len, self.max_model_len)
        embeds: Array | None = None
        # A prompt that is cut to its end may be as long as it likes.
        fitting = length_max if params.truncate_prompt_tokens is None else None
        match prompt:
            case str():
                token_ids = await self._encode(prompt, principal, special=True, fitting=fitting)
            case ChatPrompt():
                text = await self.render(prompt, principal)
                token_ids = await self._encode(text, principal, special=False, fitting=fitting)
            case PromptEmbeds():
                embeds = self._embeds(prompt, params, length_max)
                token_ids = [PLACEHOLDER_ID] * embeds.shape[0]
            case _:
                token_ids = _ids(prompt, params, length_max)
        token_ids = token_ids[-_tokens_wanted(len(token_ids), params, length_max) :]
        self._check_ids(token_ids, length_max)
        params.check_model(
            vocab_size=self.vocab_size,
            max_logprobs=self.max_logprobs,
            prompt_tokens=len(token_ids),
            max_model_len=length_max,
        )
        if params.structured_outputs is not None:
            await self.forms.check(params.structured_outputs, principal)
        encode = partial(self.tokenizer.encode, add_special_tokens=False)
        words = "\0".join(params.bad_words)
        with await self._take(words, principal):
            bad_words = spell_bad_words(params.bad_words, encode)
        params = params.within(length_max - len(token_ids))
        return PreparedPrompt(token_ids, params, embeds, bad_words)

    async def tokenize(
        self, prompt: str | ChatPrompt, *, add_special_tokens: bool, principal: str = ""
    ) -> list[int]:
        """Token ids of a text or conversation, whatever its length.

        Raises and is cancelled as `prepare`.
        """
        text = await self.render(prompt, principal) if isinstance(prompt, ChatPrompt) else prompt
        return await self._encode(text, principal, special=add_special_tokens, fitting=None)

    async def detokenize(self, token_ids: Sequence[int], *, principal: str = "") -> str:
        """The text of token ids, special tokens included.

        Raises `InvalidParameter` for an id that the model lacks. Cancellation waits for the end.
        """
        try:
            data = array("q", token_ids).tobytes()
        except OverflowError:
            data = b""  # no ids, as is found below
        hold = partial(self.hands.take, ContentKind.TOKENS, principal, data)
        if len(token_ids) * CHARACTERS_PER_TOKEN <= self.limits.inline_characters_max:
            self._check_range(token_ids)
            with await hold():
                return self.tokenizer.decode(list(token_ids), skip_special_tokens=False)

        def decode() -> str:
            self._check_range(token_ids)
            return self.tokenizer.decode_in_thread(list(token_ids))

        return await self._threads.run(decode, principal, len(token_ids), hold=hold)

    def info(self) -> dict[str, object]:
        """Special tokens of `tokenizer_config.json`, the chat template, and sizes."""
        template = self.chat_template
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **self.tokenizer.special_tokens,
            "chat_template": template.source if template is not None else None,
            "model_max_length": self.max_model_len,
            "vocab_size": self.vocab_size,
            "added_tokens_decoder": self.tokenizer.added_tokens,
            "eos_token_ids": list(self.eos_token_ids),
        }

    async def render(self, prompt: ChatPrompt, principal: str = "") -> str:
        """The text of a conversation.

        Raises `ChatTemplateMissing`, `ChatTemplateRefused`, `RequestQuarantined`; `Overloaded` if
        too many of this principal wait; `InvalidParameter` if it is too long. Cancellation waits
        for a thread, at most two seconds. No checkpoint if it costs little.
        """
        if self.chat_template is None:
            raise ChatTemplateMissing
        characters = self.estimate_tokens(prompt) * CHARACTERS_PER_TOKEN
        if characters > self.limits.prompt_characters_max + CHARACTERS_PER_TOKEN:
            raise self._too_many_characters(characters)
        render = partial(
            self.chat_template.render,
            prompt.messages,
            add_generation_prompt=prompt.add_generation_prompt,
            tools=prompt.tools,
            arguments=prompt.arguments,
        )
        named = prompt.known_by() if self.hands.are_named else b""
        hold = partial(self.hands.take, ContentKind.CHAT, principal, named)
        if characters <= INLINE.characters:
            with contextlib.suppress(ChatTemplateTooCostly), await hold():
                return render(limits=INLINE)
        text = await self._template_thread.run(render, principal, characters, hold=hold)
        await trio.lowlevel.checkpoint_if_cancelled()
        return text

    async def _encode(
        self, text: str, principal: str, *, special: bool, fitting: int | None
    ) -> list[int]:
        """Token ids of a text: at once if it is short, else slice by slice in threads.

        Raises `PromptTooLong` as soon as it is sure that there are `fitting` or more of them.
        """
        if len(text) > self.limits.prompt_characters_max:
            raise self._too_many_characters(len(text))
        self._check_length(0, len(text), fitting)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidParameter("prompt", f"is not Unicode: {error.reason}") from error
        if len(text) <= self.limits.inline_characters_max:
            with await self._take(text, principal):
                return self.tokenizer.encode(text, add_special_tokens=special)
        before, behind = self.tokenizer.affixes if special else ([], [])
        token_ids, characters_left = list(before), len(text)
        for part in self.tokenizer.slices(text):
            encode = partial(self.tokenizer.encode_slice, part)
            hold = partial(self._take, part, principal)
            encoding = await self._threads.run(encode, principal, len(part), hold=hold)
            characters_left -= len(part)
            self._check_length(len(token_ids) + len(encoding), characters_left, fitting)
            token_ids += encoding.ids
        # A thread is waited for to its end; a request that was cancelled meanwhile goes no further.
        await trio.lowlevel.checkpoint_if_cancelled()
        return token_ids + behind

    async def _take(self, text: str, principal: str) -> Hold:
        return await self.hands.take(ContentKind.TEXT, principal, text.encode(errors="replace"))

    def _check_length(self, tokens: int, characters_left: int, fitting: int | None) -> None:
        """Raises `PromptTooLong` if the tokens so far and those to come cannot fit."""
        longest = self.tokenizer.token_characters_max
        if longest is not None:
            tokens += -(-characters_left // longest)
        if fitting is not None and tokens >= fitting and characters_left:
            raise PromptTooLong(tokens, fitting, at_least=True)

    def _embeds(self, prompt: PromptEmbeds, params: SamplingParams, length_max: int) -> Array:
        """Wanted embeddings of the prompt. Nothing of their size is copied, unless cut."""
        if params.prompt_logprobs is not None:
            raise InvalidParameter("prompt_logprobs", "must not be together with prompt_embeds")
        wanted = _tokens_wanted(prompt.tokens, params, length_max)
        embeds = prompt.array if wanted == prompt.tokens else prompt.last(wanted).array
        self.embeddings.check(embeds, wanted)
        return embeds

    def _too_many_characters(self, characters: int) -> InvalidParameter:
        bound = self.limits.prompt_characters_max
        return InvalidParameter("prompt", f"must have at most {bound} characters, not {characters}")

    def _check_ids(self, token_ids: list[int], max_model_len: int) -> None:
        """Raises `InvalidParameter`, or `PromptTooLong` if no token of an answer would fit."""
        if not token_ids:
            raise InvalidParameter("prompt", "must have at least one token")
        if len(token_ids) >= max_model_len:
            raise PromptTooLong(len(token_ids), max_model_len)
        self._check_range(token_ids)

    def _check_range(self, token_ids: Sequence[int]) -> None:
        """Raises `InvalidParameter` for an id that the model lacks."""
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < self.vocab_size):
            raise InvalidParameter("prompt", f"must have token ids from 0 to {self.vocab_size - 1}")


def _tokens_wanted(tokens: int, params: SamplingParams, length_max: int) -> int:
    """How much of the prompt's end is wanted; of -1, what leaves room for the answer."""
    wanted = params.truncate_prompt_tokens
    if wanted is None:
        return tokens
    if wanted == TRUNCATE_TO_MODEL:
        wanted = max(1, length_max - (params.max_tokens or 1))
    return min(wanted, tokens)


def _content_of(message: object) -> object:
    """Content of a message of a conversation. Raises `InvalidParameter`."""
    if not isinstance(message, Mapping):
        raise InvalidParameter("messages", "must be dictionaries with `role` and `content`")
    return message.get("content")


def _ids(prompt: Sequence[int], params: SamplingParams, length_max: int) -> list[int]:
    """A copy of those that are wanted; JSON's true and false are no token ids, nor other numbers.

    Their number is looked at first, as millions would hold the loop.
    """
    token_ids = list(prompt)
    token_ids = token_ids[-_tokens_wanted(len(token_ids), params, length_max) :]
    if len(token_ids) >= length_max:
        raise PromptTooLong(len(token_ids), length_max)
    if any(type(token_id) is not int for token_id in token_ids):
        raise InvalidParameter("prompt", _NO_PROMPT)
    return token_ids


def spell_bad_words(words: Iterable[str], encode: Callable[[str], list[int]]) -> list[list[int]]:
    """The token sequences to forbid; `encode` tokenises a text without adding special tokens.

    As in vLLM: each word as it begins a text, and as it stands after a space, for which most
    vocabularies have tokens of their own (vLLM forbids the second only if it has as many tokens); a
    second that ends with the first says nothing new. Words put together from smaller tokens are not
    found.
    """
    spelled = []
    for word in words:
        bare = word.lstrip() or word
        first = encode(bare)
        if first:
            spelled.append(first)
        spaced = encode(f" {bare}")
        if spaced and spaced[-len(first) :] != first:
            spelled.append(spaced)
    return spelled
