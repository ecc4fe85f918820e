"""Grammars of structured output: their text, their bounds, the matcher that masks tokens."""
