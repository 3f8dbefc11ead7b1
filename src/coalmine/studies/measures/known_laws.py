"""Attacks whose scores have a known law, so that nothing is trained: a replaced row, and a canary in each step."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from coalmine import bounds
from coalmine.accounting import standard
from coalmine.records import DpSgd, Relation, Sampling, Scores
from coalmine.studies.cells import Cell, Scale, Study
from coalmine.studies.measures import Bench, Measure, Measured
from coalmine.studies.measures.one_run import mechanism_of

Array = NDArray[np.float64]
_AT_ONCE = 2**24
"""Numbers drawn at a time."""


def opposite_sums(mechanism: DpSgd, *, trials: int, rng: np.random.Generator) -> Scores:
    """What the last model shows where the canary's gradient is −C in world 0 and +C in world 1, in units of C.

    ±Binomial(T, q) + N(0, T·σ²): every step adds the gradient when the row is drawn, and noise (Pradhan et al. 2026).

    >>> mechanism = DpSgd(sample_rate=1.0, noise_multiplier=4.0, steps=16)
    >>> scores = opposite_sums(mechanism, trials=50_000, rng=np.random.default_rng(0))
    >>> round(float(scores.world1.mean() - scores.world0.mean())), round(float(scores.world1.std()))
    (32, 16)
    """
    steps, spread = mechanism.steps, mechanism.noise_multiplier * math.sqrt(mechanism.steps)
    drawn = rng.binomial(steps, mechanism.sample_rate, (2, trials)) * np.array([[-1.0], [1.0]])
    return Scores(*(drawn + spread * rng.standard_normal((2, trials))))


def opposite_steps(mechanism: DpSgd, *, trials: int, rng: np.random.Generator) -> Scores:
    """The same worlds for one who sees every step: the log-likelihood ratio Σ_t ln(p₊(x_t) / p₋(x_t)).

    p± is (1 − q)·N(0, σ²) + q·N(±1, σ²).
    """
    q, sigma = mechanism.sample_rate, mechanism.noise_multiplier
    worlds = []
    for sign in (-1.0, 1.0):
        scores: list[Array] = []
        for part in np.array_split(np.arange(trials), -(-trials * mechanism.steps // _AT_ONCE)):
            shape = (len(part), mechanism.steps)
            seen = sign * (rng.random(shape) < q) + sigma * rng.standard_normal(shape)
            up, down = ((sign_of * seen - 0.5) / sigma**2 for sign_of in (1.0, -1.0))
            scores.append((np.log1p(q * np.expm1(up)) - np.log1p(q * np.expm1(down))).sum(axis=1))
        worlds.append(np.concatenate(scores))
    return Scores(*worlds)


def replaced(study: Study, cell: Cell, scale: Scale, bench: Bench) -> Measured:
    """What opposite gradients prove of a replaced row, beside ε for rows added or removed and ε for rows replaced.

    The noise is that of ``epsilon`` under add/remove: what a library reports for it.
    """
    mechanism, added, delta = mechanism_of(cell.tree)
    other = dataclasses.replace(mechanism, relation=Relation.REPLACE)
    guarantee = standard.epsilon(other, delta=delta).epsilon
    confidence, trials = float(cell.tree["confidence"]), int(scale.options["trials"])
    rng = np.random.default_rng([0x5EA1, trials, *cell.name.encode()])
    last = opposite_sums(mechanism, trials=trials, rng=rng)
    every = last if mechanism.sampling is Sampling.FULL else opposite_steps(mechanism, trials=trials, rng=rng)

    def proved(scores: Scores) -> float:
        return bounds.dpsgd(scores, mechanism=other, delta=delta, confidence=confidence).epsilon

    free = bounds.lower_bound(last, delta=delta, confidence=confidence, relation=Relation.REPLACE).epsilon
    ours, steps = proved(last), proved(every)
    return Measured(
        ours=ours,
        columns={
            "σ": mechanism.noise_multiplier,
            "last model": ours,
            "no assumption": free,
            "every step": steps,
            "add/remove ε": added,
            "replace ε": guarantee,
            "share": ours / guarantee,
        },
        proved=max(ours, steps, free),
        guarantee=guarantee,
        delta=delta,
        confidence=confidence,
        played={"draws": trials},
        trials=2 * trials,
    )


def every_step(study: Study, cell: Cell, scale: Scale, bench: Bench) -> Measured:
    """A Dirac canary in each step, seen with and without it: σ of a step is bounded and the bound is composed.

    A step with the canary shows 1 + σ·Z and one without it σ·Z, in units of C; both are drawn ``draws`` times a step,
    and a step without it is applied, so the model is not touched (Nasr et al. 2023). All steps have the same law, so
    their scores together bound μ = 1/σ of a Gaussian mechanism, and ε follows from the accountant at 1/μ. The mean over
    ``options.audits`` audits.
    """
    mechanism, guarantee, delta = mechanism_of(cell.tree)
    confidence, audits = float(cell.tree["confidence"]), int(scale.options["audits"])
    seen = mechanism.steps * int(cell.tree["draws"])
    found = []
    for audit in range(audits):
        rng = np.random.default_rng([0xD1AC, seen, audit, *cell.name.encode()])
        noise = mechanism.noise_multiplier * rng.standard_normal((2, seen))
        mu = float(bounds.gdp(Scores(noise[0], 1.0 + noise[1]), delta=delta, confidence=confidence).details["mu"])
        # Without evidence of less noise than any that accountants know, nothing is proved.
        proved = 0.0 if mu < 1e-3 else standard.epsilon_at_least(mechanism.with_noise(1.0 / mu), delta=delta)
        found.append(proved)
    ours = float(np.mean(found))
    return Measured(
        ours=ours / guarantee,
        columns={
            "proved": ours,
            "least": min(found),
            "most": max(found),
            "too high": float(np.mean(np.asarray(found) > guarantee)),
            "ε": guarantee,
            "scores": float(2 * seen),
        },
        delta=delta,
        confidence=confidence,
        played={"audits": audits, "draws": seen},
        trials=2 * seen * audits,
    )


REPLACED = Measure(
    measure=replaced,
    columns={
        "σ": "the noise that keeps the ε of the cell where rows are added or removed",
        "last model": "lower bound for a replaced row from the last model; assumes DP-SGD, its noise estimated",
        "no assumption": "the same scores without any assumption",
        "every step": "lower bound from every step; assumes DP-SGD, its noise estimated",
        "add/remove ε": "what is promised where a row is added or removed: no promise to one who is replaced",
        "replace ε": "what is promised where a row is replaced: no bound may exceed it",
        "share": "ours over the replace ε",
    },
)
EVERY_STEP = Measure(
    measure=every_step,
    columns={
        "proved": "mean lower bound on ε; assumes Gaussian noise in each step, and the accountant",
        "least": "the smallest of the audits",
        "most": "the largest of the audits",
        "too high": "the share of audits above ε: at most 1 − confidence",
        "ε": "what the mechanism promises",
        "scores": "in one audit, both worlds together",
    },
)
