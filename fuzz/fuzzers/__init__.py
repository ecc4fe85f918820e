"""The fuzzers, one file each; `fuzz/__main__.py` lists them."""
