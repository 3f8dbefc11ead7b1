"""Copies of a step's state: put back bit for bit, and large tensors that nobody else holds are not kept twice."""

import gc

import numpy as np
import torch

from coalmine.probing.snapshot import Snapshot, held_once

NUMBERS = 50_000


def noise(seed):
    return torch.randn(NUMBERS, generator=torch.Generator().manual_seed(seed))


def storages():
    """Bytes of all large tensors that are alive, each memory once."""
    gc.collect()
    large = [one for one in gc.get_objects() if type(one) is torch.Tensor and one.nbytes >= 4 * NUMBERS]
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in large}.values())


def test_a_large_tensor_is_held_once_only_where_nothing_else_can_tell():
    state = {"alone": noise(0)}
    assert held_once(state, "alone")
    name = state["alone"]
    assert not held_once(state, "alone")
    del name
    for other in (lambda t: t[1:], lambda t: t.data, lambda t: t.numpy(), lambda t: t.untyped_storage()):
        held = other(state["alone"])
        assert not held_once(state, "alone")
        del held
    state, weight = {"alone": noise(0)}, torch.ones(NUMBERS, requires_grad=True)
    loss = (weight * state["alone"]).sum()  # the graph needs it for the gradient
    assert not held_once(state, "alone")
    del loss
    assert held_once(state, "alone")
    graph = weight * 2.0
    others = {
        "small": torch.zeros(3),
        "from an array": torch.from_numpy(np.zeros(NUMBERS)),
        "a part": noise(0)[: NUMBERS - 1],
        "turned": noise(0).view(2, -1).t(),
        "learned": torch.zeros(NUMBERS, requires_grad=True),
        "a result": graph * 1.0,
        "a parameter": torch.nn.Parameter(torch.zeros(NUMBERS)),
        "with a graph": noise(0),
    }
    others["with a graph"].made_by = graph
    assert [key for key in others if held_once(others, key)] == []


def test_what_a_step_does_to_a_large_tensor_is_undone():
    holder, first = torch.nn.Parameter(torch.zeros(2)), noise(1)
    holder.rows = noise(1)
    holder.rows.done = True

    def written():
        holder.rows.mul_(2.0)
        holder.rows.done = False

    def replaced():
        holder.rows = noise(2)

    def marked():
        holder.rows.note = [1]

    def taken():
        del holder.rows

    def resized():
        holder.rows.resize_(3)

    def learned():
        holder.rows.requires_grad_(True)

    before = Snapshot(holder, lambda: None)
    for step in (written, replaced, marked, taken, resized, learned, replaced):
        step()
        before.restore()
        assert torch.equal(holder.rows, first)
        assert holder.rows.__dict__ == {"done": True}
        assert not holder.rows.requires_grad


def test_who_else_holds_a_tensor_sees_it_put_back():
    shared = noise(1)
    state, other = {"rows": shared}, [shared]
    del shared
    before = Snapshot(state, lambda: None)
    state["rows"].zero_()
    state["rows"] = noise(2)
    before.restore()
    assert state["rows"] is other[0]
    assert torch.equal(other[0], noise(1))


def test_a_large_tensor_is_copied_once_and_its_place_is_free_while_a_step_runs():
    state = {"rows": noise(1)}
    start = storages()
    before = Snapshot(state, lambda: None)
    assert storages() - start == 4 * NUMBERS
    for _ in range(3):
        state["rows"] = None
        assert storages() - start == 0  # the copy alone
        state["rows"] = noise(2)
        assert storages() - start == 4 * NUMBERS
        before.restore()
        assert storages() - start == 4 * NUMBERS
    assert torch.equal(state["rows"], noise(1))
