"""What a probe of a large step takes at once: a few vectors as long as its parameters, and not one for every run.

A process of its own gives freed memory back at once (an option of the C library), so that its peak is what was needed.
"""

import os
import subprocess
import sys

import pytest
import torch

from coalmine.probing import vectors
from coalmine.probing.bench import Bench
from coalmine.probing.carriers import delta
from coalmine.probing.private_step import PrivateStep

SIDE = 768
AT_MOST = 16
"""Vectors: copies of the state, what runs showed without noise and with it, the draws, and sums over runs of noise."""

PROBED = f"""
import torch
from coalmine.probing.probe import probe

def peak():  # kB; ru_maxrss begins at what the process that started this one held
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])

def grown(side):
    weight = torch.zeros(side, side)

    def step(batch):
        x, y = batch
        clipped = x / (x.norm(dim=1, keepdim=True) * y.norm(dim=1, keepdim=True)).clamp(min=1.0)
        weight.sub_((clipped.T @ y).add_(torch.randn(side, side)).div_(8))

    rows = torch.randn(4, side), torch.randn(4, side)
    step(rows)
    before = peak()
    report = probe(step, state={{"weight": weight}}, batch=rows, clip_norm=1.0, noise_multiplier=1.0, divisor=8,
                   learning_rate=1.0, replays=20, tries=10)
    assert str(report.verdict) == "consistent", report.in_words()
    return peak() - before

torch.manual_seed(0)
torch.set_num_threads(1)
grown(64)  # what every probe loads
print(grown({SIDE}) * 1024 / (4 * {SIDE}**2))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the option is glibc's, the peak Linux's")
def test_a_probe_takes_a_few_vectors_as_long_as_the_parameters():
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROBED], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 2 <= float(done.stdout) <= AT_MOST  # at least what was there before, and now


@pytest.mark.parametrize("numbers", [1, 1000, 300_001])
def test_pieces_give_the_lengths_of_the_whole(numbers):
    a, b, c, d = torch.randn(4, numbers, generator=torch.Generator().manual_seed(0)).unbind()
    whole = float(delta(a, b).norm())
    exact = numbers <= 1000  # one piece: the same bits
    assert vectors.distance(a, b) == (whole if exact else pytest.approx(whole, rel=1e-14))
    assert vectors.inner(a, b, c, d) == pytest.approx(float(delta(a, b) @ delta(c, d)), rel=1e-12)
    left = float((delta(a, b) - 0.3 * delta(c, d)).norm())
    assert vectors.residual(a, b, c, d, 0.3) == pytest.approx(left, rel=1e-14)
    assert vectors.distance(a, torch.full_like(b, torch.nan)) != 0.0


def test_the_first_state_is_copied_once():
    weight = torch.nn.Parameter(torch.arange(5.0))
    bench = Bench(
        PrivateStep(step=lambda rows: None, state=[weight], batch=torch.eye(5), clip_norm=1.0, noise_multiplier=1.0)
    )
    (copy,) = bench._snapshot.copies.values()
    (start,) = bench.start.values()
    assert start is copy
    assert torch.equal(start, torch.arange(5.0))
    assert bench.now()["tensor"] is not copy
