"""Tiny model folders for tests: two kinds of tokenizers, trained in no time."""

import json
import pathlib
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

# Few merges and many scripts: most characters outside ASCII take several tokens.
CORPUS = [
    "the cat sat on the mat, and the dog's bone wasn't there",
    "Once upon a time there was a little girl. She said: hello world!",
    "Größe, naïve café, 你好世界, привет мир, 🙂🙃 123 4567",
] * 4
SPECIAL_TOKENS = ["<|begin|>", "<|end|>", "<|turn|>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|turn|>{{ message['role'] }}\n{{ message['content'] | trim }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def byte_level_tokenizer() -> tokenizers.Tokenizer:
    """About 320 tokens in GPT-2's manner, `<|begin|>` in front of plain texts."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", begin)]
    )
    return tokenizer


def metaspace_tokenizer() -> tokenizers.Tokenizer:
    """In SentencePiece's manner, with bytes for what is not in the vocabulary."""
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(), decoders.Fuse()]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", *SPECIAL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    specification = json.loads(tokenizer.to_str())
    for token in specification["added_tokens"]:
        token["special"] = token["content"] in SPECIAL_TOKENS
    return tokenizers.Tokenizer.from_str(json.dumps(specification))


def write_folder(
    folder: pathlib.Path, tokenizer: tokenizers.Tokenizer, **settings: Any
) -> pathlib.Path:
    """Save a tokenizer and its `tokenizer_config.json`, as `save_pretrained` lays them out."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": {"__type": "AddedToken", "content": "<|end|>", "special": True},
        **settings,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    return folder
