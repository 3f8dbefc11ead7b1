"""What the book is made from: what was kept from an earlier build holds as long as this is the same."""

import functools
import hashlib
from pathlib import Path

import coalmine


@functools.cache
def digest() -> str:
    """One hash of the whole package and of the book's own trainings."""
    found = hashlib.sha256(Path(__file__).with_name("trainings.py").read_bytes())
    for path in sorted(Path(coalmine.__file__).parent.rglob("*.*")):
        if path.suffix in (".py", ".html", ".css", ".toml"):
            found.update(path.read_bytes())
    return found.hexdigest()[:16]
