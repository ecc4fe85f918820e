"""Chat completions and completions: what runs above their connections, and is resumed."""
