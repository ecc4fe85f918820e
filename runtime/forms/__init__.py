"""Forms of answers (schemas, regexes, grammars): checked first in a process of their own."""
