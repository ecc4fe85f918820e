"""Spells words that an output must not contain, as the token sequences that a sampler can forbid.

As vLLM does: each word as it begins a text, and as it stands after a space, which most vocabularies
have tokens of their own for (vLLM forbids the second only if it has as many tokens). Any other way
to put the word together from smaller tokens is not found.

Sans-IO: plain computation. Must not know requests or which tokenizer it is.
"""

from collections.abc import Callable, Iterable


def spell_bad_words(words: Iterable[str], encode: Callable[[str], list[int]]) -> list[list[int]]:
    """The sequences to forbid; `encode` tokenises a text without adding special tokens.

    A spelling after a space that ends with the one without says nothing new.
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
