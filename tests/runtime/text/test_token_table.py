"""The alphabet is the library's, and tables say what the library decodes."""

from tokenizers import pre_tokenizers

from triolet.runtime.text.tokenizer import BYTE_OF_CHARACTER, TokenTable, bytes_of_token


def test_the_alphabet_is_the_librarys() -> None:
    assert set(BYTE_OF_CHARACTER) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(BYTE_OF_CHARACTER.values()) == list(range(256))


def test_a_token_outside_the_alphabet_spells_itself() -> None:
    assert bytes_of_token("Ġcat") == b" cat"
    assert bytes_of_token("two words") == b"two words"
    assert bytes_of_token("Ã") == b"\xc3"


def test_skipped_tokens_and_holes_are_empty_and_half_characters_have_no_text() -> None:
    table = TokenTable.build({"a": 0, "<|end|>": 1, "Ã": 3}, 4, skipped={1})
    assert table.data == [b"a", b"", b"", b"\xc3"]
    assert table.texts == ["a", "", "", None]
