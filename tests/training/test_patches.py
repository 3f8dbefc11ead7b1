"""Patches cut out and put back on a CPU: torch's unfold and fold, to the last bit."""

import pytest
import torch
from torch.nn import functional

from coalmine.training.convolution import Conv2d, Pool2d
from coalmine.training.layers import Run

SHAPES = [
    (1, 8, 3, 1, 0, 28, 28),
    (3, 16, 8, 2, 0, 20, 23),
    (16, 32, 4, 2, 1, 9, 7),
    (2, 4, 1, 1, 0, 5, 5),
    (2, 4, 2, 3, 2, 6, 6),
]


def a_run():
    buffers = {}

    def scratch(key, shape):
        return buffers.setdefault((key, tuple(shape)), torch.full(tuple(shape), torch.nan))

    return Run(scratch=scratch, counts=[3, 2])


@pytest.mark.parametrize(("inputs", "outputs", "kernel", "stride", "padding", "high", "wide"), SHAPES)
def test_patches_are_those_of_unfold_and_fold(inputs, outputs, kernel, stride, padding, high, wide):
    layer = Conv2d(inputs, outputs, kernel, stride=stride, padding=padding)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 3, inputs, high, wide, generator=generator)
    for pictures in (x, x.movedim(2, -1).contiguous().movedim(-1, 2)):  # in either order of memory
        found = layer._patches(pictures, a_run()).flatten(0, 1)
        cut = functional.unfold(x.flatten(0, 1), kernel, stride=stride, padding=padding)
        assert torch.equal(found, cut.transpose(1, 2))
    columns = torch.randn(found.shape, generator=generator)
    whole = functional.fold(columns.transpose(1, 2), (high, wide), kernel, stride=stride, padding=padding)
    assert torch.equal(layer._put_back(columns, x), whole.view(x.shape))


@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (2, 1), (3, 2)])
def test_errors_of_a_maximum_go_to_the_first_place_that_holds_it(kernel, stride):
    """Against a loop over windows; many ties, because the values are few."""
    x = torch.randint(0, 3, (2, 3, 2, 7, 7), generator=torch.Generator().manual_seed(2)).float()
    layer, run = Pool2d("max", kernel, stride), a_run()
    y = layer.forward((), x, run)
    e = torch.randint(-9, 9, y.shape, generator=torch.Generator().manual_seed(3)).float()  # sums are exact
    expected = torch.zeros_like(x)
    for s, w, c, i, j in torch.cartesian_prod(*(torch.arange(n) for n in y.shape)).tolist():
        part = x[s, w, c, i * stride : i * stride + kernel, j * stride : j * stride + kernel]
        assert y[s, w, c, i, j] == part.max()
        place = int((part == part.max()).flatten().nonzero()[0])
        expected[s, w, c, i * stride + place // kernel, j * stride + place % kernel] += e[s, w, c, i, j]
    assert torch.equal(layer.backward((), x, y, e, run), expected)
