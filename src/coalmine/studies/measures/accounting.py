"""What theory says of DP-SGD, by several analyses side by side; nothing is trained."""

from __future__ import annotations

import time

from coalmine.accounting import standard
from coalmine.records import DpSgd
from coalmine.studies.cells import Cell, Scale, Study
from coalmine.studies.measures import Bench, Measure, Measured


def measure(study: Study, cell: Cell, scale: Scale, bench: Bench) -> Measured:
    """ε at δ by Rényi DP (``ours``: what the paper uses), by the central limit of Gaussian DP, and by PLDs."""
    began = time.perf_counter()
    tree = {**cell.tree, **scale.config}
    mechanism = DpSgd(
        sample_rate=float(tree["sample_rate"]),
        noise_multiplier=float(tree["noise_multiplier"]),
        steps=int(tree["steps"]),
    )
    delta = float(tree["delta"])
    renyi = standard.epsilon(mechanism, delta=delta, analysis="rdp").epsilon
    gaussian = standard.gdp_clt(mechanism, delta=delta).epsilon
    exact = standard.epsilon(mechanism, delta=delta).epsilon
    return Measured(
        ours=renyi,
        columns={
            "RDP": renyi,
            "GDP": gaussian,
            "PLD": exact,
            "GDP / PLD": gaussian / exact,
            "RDP / PLD": renyi / exact,
        },
        delta=delta,
        seconds=time.perf_counter() - began,
    )


MEASURE = Measure(
    measure=measure,
    columns={
        "RDP": "Rényi differential privacy: a guarantee, and what the paper uses",
        "GDP": "the central limit of Gaussian differential privacy: a heuristic, which can lie below the truth",
        "PLD": "privacy loss distributions: the guarantee that audits are held against",
    },
)
