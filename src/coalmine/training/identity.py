"""What a network is, as plain data: equal exactly where trainings have the same law."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import sys
import types
from typing import Any

import torch
from torch import Tensor, nn

from coalmine.records import content_hash, plain
from coalmine.training.layers import Part
from coalmine.training.modules import Opaque
from coalmine.training.networks import Network


def network_identity(network: Network) -> dict[str, Any]:
    """All that decides what a network computes, as plain JSON types.

    A network of known layers is its layers with all their values. A module is its classes with their source, how it
    prints, the shapes of its parameters (and which are trained), and the content of what is frozen in it. Where
    training starts is said by the training's ``initialization``, not by the module.

    >>> from coalmine.training import LogisticRegression
    >>> network_identity(LogisticRegression(5))["layers"]
    [{'layer': 'Linear', 'inputs': 5, 'outputs': 2, 'bias': True}]
    """
    return {
        "input_shape": list(network.input_shape),
        "classes": network.classes,
        "layers": [_part_identity(part) for part in network.layers()],
    }


def _part_identity(part: Part) -> dict[str, Any]:
    """One layer with all its values, or a module."""
    if not isinstance(part, Opaque):
        values: dict[str, Any] = plain(dataclasses.asdict(part))  # type: ignore[call-overload]
        return {"layer": type(part).__name__, **values}
    body = part.body
    classes = [class_identity(kind) for kind in {type(child) for child in body.modules()}]
    return {
        "module": class_identity(type(body))["class"],
        "tokens": part.takes_tokens,
        "repr": repr(body),
        "parameters": [[name, list(p.shape), str(p.dtype), p.requires_grad] for name, p in body.named_parameters()],
        "state": _state(body),
        "classes": sorted((one for one in classes if not one["class"].startswith("torch.")), key=str),
    }


def class_identity(kind: type) -> dict[str, str]:
    """Where a class is found, and SHA-256 of the text of its module (of its methods' code where it was typed in).

    >>> class_identity(nn.Linear)["class"]
    'torch.nn.modules.linear:Linear'
    """
    try:
        text = inspect.getsource(sys.modules[kind.__module__])
    except (KeyError, OSError, TypeError):
        text = "\n".join(f"{name} {_code(value)}" for name, value in sorted(vars(kind).items()))
    source = hashlib.sha256(text.encode()).hexdigest()
    return {"class": f"{kind.__module__}:{kind.__qualname__}", "source": source}


def _code(value: object) -> str:
    """What a function, a method or a constant of a class does, without where it was typed."""
    code = value if isinstance(value, types.CodeType) else getattr(getattr(value, "__func__", value), "__code__", None)
    if code is None:
        return repr(value) if isinstance(value, (bool, int, float, str, bytes, tuple, type(None))) else ""
    return f"{code.co_code.hex()} {code.co_names} {[_code(constant) for constant in code.co_consts]}"


def _state(body: nn.Module) -> str:
    """The content of a module's frozen parameters and buffers, whatever their type: what is trained starts anew."""
    content = {}
    trained = {name for name, value in body.named_parameters() if value.requires_grad}
    for name, value in body.state_dict().items():
        if isinstance(value, Tensor) and name not in trained:
            raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            content[f"{name} {value.dtype} {tuple(value.shape)}"] = raw.numpy()
    return content_hash(content)
