"""Hash of a model's files: whether a host has the model that its head serves.

Configuration and vocabulary are hashed whole, weights by name and size: reading gigabytes would
delay each join. That weights compute alike is said by engines' numerics ids, which replays compare.
"""

import hashlib
import pathlib

# Files that make a model; a folder may have others beside them.
WHOLE = (".json", ".jinja", ".model")
BY_SIZE = (".safetensors",)


def model_hash(folder: str) -> str:
    """Hash of the model in this folder, hexadecimal. Raises `OSError`."""
    found = hashlib.sha256()
    for path in sorted(pathlib.Path(folder).iterdir()):
        if path.suffix in WHOLE:
            content = path.read_bytes()
            found.update(f"{path.name}\0{len(content)}\0".encode() + content)
        elif path.suffix in BY_SIZE:
            found.update(f"{path.name}\0{path.stat().st_size}\0".encode())
    return found.hexdigest()[:16]
