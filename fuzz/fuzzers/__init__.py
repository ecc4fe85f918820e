"""The fuzzers, one file each; the registry lists them."""
