"""Spells words that an output must not contain, as the token sequences that a sampler can forbid.

As vLLM does: each word as it begins a text, and as it stands after a space, which most vocabularies
have tokens of their own for. Any other way to put the word together from smaller tokens is not
found. Sans-IO: plain computation. Must not know requests or which tokenizer it is.
"""

from collections.abc import Callable, Iterable


def spell_bad_words(words: Iterable[str], encode: Callable[[str], list[int]]) -> list[list[int]]:
    """The sequences to forbid; `encode` tokenises a text without adding special tokens.

    The spelling after a space counts where it is as long and begins otherwise: a tokenizer that
    puts the space into a token of its own would forbid the space.
    """
    spelled = []
    for word in words:
        bare = word.lstrip() or word
        first = encode(bare)
        if first:
            spelled.append(first)
        spaced = encode(f" {bare}")
        if first and spaced and spaced[0] != first[0] and len(spaced) == len(first):
            spelled.append(spaced)
    return spelled
