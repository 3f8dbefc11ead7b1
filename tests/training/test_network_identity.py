"""What a network is: the same where trainings have the same law, another where anything differs."""

import json

import pytest
import torch
from engines import CLOSED, Attention, as_module
from torch import nn

from coalmine.training import FromModule, Linear, LogisticRegression, Mlp, Sequential, class_identity, network_identity


def from_module(body):
    return FromModule(body, input_shape=(5, 4), classes=3)


def make(seed=0, kind=Attention):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind()


@pytest.mark.parametrize("name", CLOSED)
def test_layers_with_all_their_values(name):
    found = network_identity(CLOSED[name])
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert len(found["layers"]) == len(CLOSED[name].layers())
    others = [network_identity(network) for other, network in CLOSED.items() if other != name]
    assert found not in others


def test_how_it_was_written_does_not_matter():
    assert network_identity(LogisticRegression(5, classes=3)) == network_identity(Mlp(5, hidden=(), classes=3))
    assert network_identity(LogisticRegression(5)) == network_identity(Sequential((5,), 2, (Linear(5, 2),)))
    assert network_identity(LogisticRegression(5)) != network_identity(Sequential((5,), 2, (Linear(5, 2, bias=False),)))


def test_a_module_is_its_classes_its_shapes_and_its_state():
    one = network_identity(from_module(make()))
    assert one == network_identity(from_module(make()))
    (part,) = one["layers"]
    assert part["module"] == "engines:Attention"
    assert [child["class"] for child in part["classes"]] == ["engines:Attention"]
    assert ["mix.weight", [4, 4], "torch.float32", True] in part["parameters"]
    assert json.loads(json.dumps(one, allow_nan=False)) == one
    frozen = make()
    frozen.norm.requires_grad_(False)
    for other in (make().to(torch.bfloat16), frozen):
        assert network_identity(from_module(other)) != one
    assert network_identity(from_module(make(seed=1))) == one  # what is trained starts where the training says
    held = make(seed=1)
    held.norm.requires_grad_(False)
    held.norm.weight.data += 1.0
    assert network_identity(from_module(held)) != network_identity(from_module(frozen))
    assert network_identity(as_module(CLOSED["relu"])) != network_identity(CLOSED["relu"])


def test_another_method_is_another_module_even_if_it_was_typed_in():
    def typed(forward):
        kind = type("Net", (nn.Module,), {"forward": forward})
        kind.__module__ = "typed_in"  # a module without a file
        return class_identity(kind)

    same, again = typed(lambda self, x: x + 1), typed(lambda self, x: x + 1)
    other = typed(lambda self, x: x + 2)
    assert same["class"] == "typed_in:Net"
    assert same == again
    assert same["source"] != other["source"]
