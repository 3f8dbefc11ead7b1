"""What tests of a user's own training share."""

import pytest

from coalmine.integrations import functions, identity


@pytest.fixture
def fixed_seeds(monkeypatch):
    """The same trials on every run: a trial's seed follows from the functions' text and versions; here from names."""
    monkeypatch.setattr(identity, "function_identity", lambda name, function: {"function": identity.label(function)})
    monkeypatch.setattr(functions, "title", lambda function, *, texts=False: identity.label(function))
