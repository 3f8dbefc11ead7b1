"""The public names are there, and the light parts stay light."""

from __future__ import annotations

import subprocess
import sys

import pytest

import coalmine


def test_every_public_name_is_there():
    for name in coalmine.__all__:
        assert getattr(coalmine, name) is not None
    assert not hasattr(coalmine, "no_such_name")


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("coalmine", "torch numpy dp_accounting pydantic"),
        ("coalmine.bounds", "torch dp_accounting pydantic altair"),
        ("coalmine.accounting", "torch pydantic altair"),
        ("coalmine.identifiability", "torch pydantic altair"),
        ("coalmine.store", "torch scipy dp_accounting pydantic"),
        ("coalmine.training", "dp_accounting pydantic typer rich sklearn altair opacus"),
        ("coalmine.adversaries", "dp_accounting pydantic typer rich sklearn altair opacus"),
        ("coalmine.cli", "torch dp_accounting scipy altair sklearn"),
    ],
)
def test_a_room_does_not_load_what_it_does_not_need(module, absent):
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent.split()!r})); import {module}; "
        f"print([name for name in {absent.split()!r} if sys.modules[name] is not None])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
