"""Between text and tokens: templates, tokenizer, detokenizer, stop strings, tool calls."""
