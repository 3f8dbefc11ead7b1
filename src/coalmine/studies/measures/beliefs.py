"""What the adversary of bernau-2021 reaches: advantage, beliefs, δ′, the estimates ε′ and the sensitivities.

A cell's config is that of an audit with two keys more: ``belief``, the ρβ from which the noise follows, and ``step``
where a cell looks at one step alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import special

from coalmine import _validate, bounds
from coalmine.accounting import standard
from coalmine.adversaries.distinguishers.likelihood import SENSITIVITY
from coalmine.auditing.config import AuditConfig, parse
from coalmine.auditing.persons import beliefs_of
from coalmine.auditing.proof import log_odds_of, scores_of
from coalmine.auditing.run import subject_of
from coalmine.auditing.setting import prepare
from coalmine.identifiability import advantage, estimates
from coalmine.identifiability import belief as beliefs
from coalmine.identifiability.sensitivity import global_sensitivity
from coalmine.records import DpSgd, Sampling
from coalmine.studies.cells import Cell, Scale, Study, overlay
from coalmine.studies.measures import Bench, Measure, Measured, behind

OURS = ("advantage", "median belief", "sensitivity", "ε′ sensitivities")


def audits(study: Study, cell: Cell, scale: Scale) -> tuple[AuditConfig, ...]:
    """The one audit of the cell, with the noise that its belief asks for."""
    return (_audit(overlay(cell.tree, scale.config), scale),)


def _audit(tree: Mapping[str, Any], scale: Scale) -> AuditConfig:
    """σ by RDP composition (Section 4.4), times the sensitivity: LS of the step, C, or 2·C for bounded neighbours."""
    rest = {key: value for key, value in tree.items() if key not in ("belief", "step")}
    training = rest["training"]
    bounded = rest["adversary"][0].get("neighbours") == "bounded"
    sigma = unit_noise(tree)
    if training.get("noise_scale", "clip") == "clip" and bounded:
        sigma *= global_sensitivity(1.0, relation="replace")
    changes: dict[str, Any] = {"training": {"noise_multiplier": sigma}}
    if "trials" in scale.options:
        changes["audit"] = {"trials": scale.options["trials"]}
    return parse(overlay(rest, changes))


def unit_noise(tree: Mapping[str, Any]) -> float:
    """σ per unit of sensitivity, so that RDP composition over all steps gives the ε of the cell's belief.

    >>> round(unit_noise({"belief": 0.9, "audit": {"delta": 0.001}, "training": {"steps": 30}}), 3)
    9.952
    """
    epsilon = beliefs.to_epsilon(tree["belief"])
    return estimates.rdp_noise(epsilon, delta=tree["audit"]["delta"], steps=tree["training"]["steps"])


def measure(study: Study, cell: Cell, scale: Scale, bench: Bench) -> Measured:
    """``options.ours`` of the study says which column stands beside the published value (by default the advantage)."""
    (settings,) = audits(study, cell, scale)
    setting = prepare(settings, data_dir=bench.how.data_dir)
    played = bench.play(setting, settings.adversary[0])
    scores, odds, trials = scores_of(played.trials), log_odds_of(played.trials), played.trials
    relation, delta = played.attack.relation, settings.audit.delta
    epsilon = beliefs.to_epsilon(cell.tree["belief"])
    # The beliefs are held against the ρβ that was asked for, as in the paper.
    found = dataclasses.replace(
        beliefs_of(
            trials,
            played.attack,
            subject=subject_of(setting),
            delta=delta,
            confidence=settings.audit.confidence,
        ),
        exceeded=estimates.exceeded(odds, epsilon=epsilon, confidence=settings.audit.confidence),
    )
    by_method = {one.method: one.epsilon for one in found.estimates}
    right = special.expit(estimates.right_log_odds(odds))
    local = _sensitivities(trials.columns, cell.tree.get("step"))
    # Between these two worlds no ε above that of Gaussian steps with one unit of sensitivity is possible.
    pair = DpSgd(
        sample_rate=1.0,
        noise_multiplier=unit_noise(cell.tree),
        steps=setting.training.steps,
        sampling=Sampling.FULL,
    )
    columns: dict[str, float | str | None] = {
        "advantage": found.advantage,
        "low": 2.0 * found.wins.interval[0] - 1.0,
        "high": 2.0 * found.wins.interval[1] - 1.0,
        "ρα": advantage.from_epsilon(epsilon, delta=delta),
        "δ′": found.exceeded.value,
        "δ′ at least": found.exceeded.interval[0],
        "δ": delta,
        "ε": epsilon,
        "ε′ sensitivities": by_method["sensitivities"],
        "ε′ largest belief": by_method["largest belief"],
        "ε′ advantage": by_method["advantage"],
        "membership": found.loss_advantage,
        "membership bound": float(np.expm1(epsilon)),
        "sensitivity": float(np.median(local)),
        "sensitivity 5 %": float(np.quantile(local, 0.05)),
        "sensitivity 95 %": float(np.quantile(local, 0.95)),
        "global sensitivity": global_sensitivity(setting.training.clip, relation=relation),
        "belief 5 %": float(np.quantile(right, 0.05)),
        "median belief": float(np.median(right)),
        "belief 95 %": float(np.quantile(right, 0.95)),
        "largest belief": float(right.max()),
        "accuracy": played.accuracy,
    }
    ours = _validate.choice("ours", study.options.get("ours", "advantage"), OURS)
    value = columns[ours]
    assert isinstance(value, float)
    return Measured(
        ours=value,
        columns={name: columns[name] for name in study.options.get("columns", columns)},
        proved=bounds.lower_bound(
            scores, delta=delta, confidence=settings.audit.confidence, copies=1, relation=relation
        ).epsilon,
        guarantee=standard.epsilon(pair, delta=delta).epsilon,
        **behind(settings.audit, played),
        details={"columns": columns, "notes": list(played.attack.notes)},
    )


def _sensitivities(columns: Mapping[str, Any], step: int | None) -> np.ndarray[Any, np.dtype[np.float64]]:
    """LS of one step, or of every step that was kept, over all trainings that ended well."""
    names = [name for name in columns if name.startswith(f"{SENSITIVITY}_")]
    if step is not None:
        names = [_validate.choice("step", f"{SENSITIVITY}_{step}", names)]
    values = np.concatenate([columns[name] for name in names])
    return np.asarray(values[np.isfinite(values)])


MEASURE = Measure(
    measure=measure,
    audits=audits,
    columns={
        "advantage": "2·share of right guesses − 1, with its interval low to high at the study's confidence",
        "ρα": "the advantage that Theorem 3 allows",
        "δ′": "share of trainings whose belief in the right world ended above ρβ",
        "δ′ at least": "the lower end of its interval at the study's confidence",
        "ε′": "estimates of ε (Section 5.3): from sensitivities through RDP, the largest belief, or the advantage",
        "membership": "advantage of membership inference by the loss of the same models",
        "membership bound": "e^ε − 1 (Yeom et al.)",
        "sensitivity": "median over trainings and steps of the local sensitivity",
        "guarantee": "ε between the two worlds at most, exact for Gaussian steps; no bound may exceed it",
    },
)
