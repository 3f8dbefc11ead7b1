"""Figures 1 and 5 of last-iterate-2024: the heuristic beside its baselines, and a loss that exceeds it. No training."""

from __future__ import annotations

import math

from coalmine.accounting import calibrate, counterexamples, full_batch, last_iterate, standard
from coalmine.records import DpSgd
from coalmine.studies.cells import Cell, Scale, Study, overlay
from coalmine.studies.measures import Bench, Measure, Measured


def _mechanism(cell: Cell, scale: Scale) -> tuple[DpSgd, float]:
    """The mechanism of a cell, and its δ.

    A cell gives steps, and sampling rate and noise as numbers or by a rule: ``sample_rate`` = "1/steps"; the noise as
    ``noise_multiplier``, as ``noise_over_root_steps`` over √T, or by ``standard_epsilon`` (the whole training's) or
    ``one_step_epsilon`` (that of one iteration).
    """
    tree = overlay(cell.tree, scale.config)
    steps, delta = int(tree["steps"]), float(tree["delta"])
    rate = 1.0 / steps if tree["sample_rate"] == "1/steps" else float(tree["sample_rate"])
    if "noise_multiplier" in tree:
        sigma = float(tree["noise_multiplier"])
    elif "noise_over_root_steps" in tree:
        sigma = float(tree["noise_over_root_steps"]) / math.sqrt(steps)
    else:
        whole = "standard_epsilon" in tree
        target = float(tree["standard_epsilon" if whole else "one_step_epsilon"])
        sigma = calibrate.noise_multiplier(
            sample_rate=rate,
            steps=steps if whole else 1,
            epsilon=target,
            delta=delta,
            analysis="standard" if whole else "last_iterate",
        ).noise_multiplier
    return DpSgd(sample_rate=rate, noise_multiplier=sigma, steps=steps), delta


def baselines(study: Study, cell: Cell, scale: Scale, bench: Bench) -> Measured:
    """Heuristic, standard analysis and full batch (eq. 4) at one point of Figure 1."""
    mechanism, delta = _mechanism(cell, scale)
    heuristic = last_iterate.epsilon(mechanism, delta=delta).epsilon
    first = last_iterate.epsilon(mechanism.with_steps(1), delta=delta).epsilon
    return Measured(
        ours=heuristic,
        columns={
            "q": mechanism.sample_rate,
            "sigma": mechanism.noise_multiplier,
            "heuristic": heuristic,
            "standard": standard.epsilon(mechanism, delta=delta).epsilon,
            "full batch": full_batch.epsilon(mechanism, delta=delta).epsilon,
            "one step": first,
            "4.1 refutes": "yes" if first > heuristic + 1e-6 else "no",
        },
        delta=delta,
    )


def ratio(study: Study, cell: Cell, scale: Scale, bench: Bench) -> Measured:
    """ε of the linear loss with a quadratic regularizer over the largest heuristic for t ≤ T: a point of Figure 5."""
    mechanism, delta = _mechanism(cell, scale)
    weight = float(overlay(cell.tree, scale.config).get("regularizer", 0.5))
    example = counterexamples.regularized(mechanism, regularizer=weight, delta=delta)
    by_epsilon = study.options.get("ours") == "epsilon"
    return Measured(
        ours=example.epsilon if by_epsilon else example.epsilon / example.heuristic_worst,
        columns={
            "sigma": mechanism.noise_multiplier,
            "epsilon": example.epsilon,
            "heuristic": example.heuristic,
            "largest heuristic": example.heuristic_worst,
            "method": example.method,
            "exceeded": "yes" if example.refutes_worst else "no",
        },
        delta=delta,
    )


BASELINES = Measure(
    measure=baselines,
    columns={
        "q": "the sampling rate",
        "sigma": "the noise multiplier",
        "heuristic": "last iterate, linear losses (Theorem 1)",
        "standard": "composition over all iterates: proved",
        "full batch": "full batches with the same noise per gradient (eq. 4)",
        "one step": "the heuristic of a single step",
        "4.1 refutes": "whether one step leaks more, so that the example of Section 4.1 exceeds the heuristic",
    },
)
RATIO = Measure(
    measure=ratio,
    columns={
        "sigma": "the noise multiplier",
        "epsilon": "what the loss with the regularizer leaks (an upper bound where the method is rounded_up)",
        "heuristic": "the heuristic at T",
        "largest heuristic": "the largest heuristic over t ≤ T",
        "method": "exact up to 20 steps; beyond, values are rounded up as in the paper",
        "exceeded": "whether the loss provably leaks more than the largest heuristic",
    },
)
