"""What many canaries in one training prove: of ideal scores, of several canaries to a parameter, and of real audits."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from coalmine.accounting import calibrate, standard
from coalmine.auditing.config import AuditConfig
from coalmine.auditing.one_run import OneRunGame
from coalmine.auditing.proof import coins_of, prove_one_run
from coalmine.auditing.run import claim_of, game_of
from coalmine.auditing.setting import prepare
from coalmine.bounds.methods import METHODS
from coalmine.bounds.one_run import Guesses
from coalmine.bounds.one_run_dpsgd import one_run_dpsgd
from coalmine.errors import InvalidInputError
from coalmine.game import ACCURACY, WITH_CANARIES
from coalmine.one_run import guesses as guessing
from coalmine.one_run.design import Design
from coalmine.one_run.judge import lower_bounds
from coalmine.records import DpSgd, EpsilonClaim, MechanismClaim, OneRunScores, Sampling
from coalmine.studies.cells import Cell, Scale, Study
from coalmine.studies.measures import Bench, Measure, Measured, behind, scenes


def mechanism_of(tree: Any) -> tuple[DpSgd, float, float]:
    """DP-SGD of a cell, with ε as given or for its noise; then ε and δ."""
    rate, steps, delta = float(tree["sample_rate"]), int(tree["steps"]), float(tree["delta"])
    sampling = Sampling.FULL if rate == 1.0 else Sampling.POISSON
    if "noise_multiplier" in tree:
        sigma = float(tree["noise_multiplier"])
    else:
        sigma = calibrate.noise_multiplier(
            sample_rate=rate, steps=steps, epsilon=float(tree["epsilon"]), delta=delta, sampling=sampling
        ).noise_multiplier
    found = DpSgd(sample_rate=rate, noise_multiplier=sigma, steps=steps, sampling=sampling)
    return found, standard.epsilon(found, delta=delta).epsilon, delta


def ideal(study: Study, cell: Cell, scale: Scale, bench: Bench) -> Measured:
    """The bound of the expected number of right guesses about m canaries with the best score there is.

    The numbers of guesses are the best for the mechanism itself, known beforehand, so nothing is corrected for them.
    """
    mechanism, epsilon, delta = mechanism_of(cell.tree)
    m, confidence = int(cell.tree["canaries"]), float(cell.tree["confidence"])
    claim = MechanismClaim(mechanism=mechanism, delta=delta)
    choice = guessing.choose(claim, canaries=m, confidence=confidence, aim="bound")
    pair, law = (choice.guess_in, choice.guess_out), guessing.leak(claim)
    right = round(sum(pair) * guessing.right_share(law, m, pair))
    seen = Guesses(canaries=m, guesses=sum(pair), correct=right, sides=2 if all(pair) else 1)
    ours = one_run_dpsgd(seen, mechanism=mechanism, delta=delta, confidence=confidence).epsilon
    # The methods that assume nothing have other best numbers of guesses.
    said = EpsilonClaim(epsilon=epsilon, delta=delta)
    tried = guessing.candidates(m, one_sided=False)
    others = {
        name: max(guessing.expected_bound(said, law, m, one, method=method, level=1.0 - confidence) for one in tried)
        for name, method in (("(ε, δ), p-value", "one_run"), ("(ε, δ), curve", "one_run_fdp"))
    }
    return Measured(
        ours=ours,
        columns={"if DP-SGD": ours, **others, "ε": epsilon, "guesses": float(sum(pair))},
        proved=ours,
        guarantee=epsilon,
        delta=delta,
        confidence=confidence,
        played={"canaries": m},
        trials=m,
    )


def coordinates(study: Study, cell: Cell, scale: Scale, bench: Bench) -> Measured:
    """d parameters with s Dirac canaries each and no other rows: what every step shows is simulated, not trained.

    Scores are exact posteriors; canaries of one parameter have the same one. The mean over ``options.audits`` audits.
    """
    from coalmine.one_run.likelihood import StepLikelihood

    mechanism, epsilon, delta = mechanism_of(cell.tree)
    places, share = int(cell.tree["coordinates"]), int(cell.tree["per_coordinate"])
    confidence, audits = float(cell.tree["confidence"]), int(scale.options["audits"])
    half = int(cell.tree["guesses"]) // 2
    claim = MechanismClaim(mechanism=mechanism, delta=delta)
    design = Design(
        claim=claim,
        confidence=confidence,
        canaries=places * share,
        guess_in=half,
        guess_out=half,
        method="one_run_fdp",
    )
    found: dict[str, list[float]] = {}
    for audit in range(audits):
        rng = np.random.default_rng([0xC00D, places, share, audit])
        coins = rng.random((places, share)) < 0.5
        watch = StepLikelihood(mechanism, places=places, share=share)
        for _ in range(mechanism.steps):
            drawn = rng.binomial(coins.sum(axis=1), mechanism.sample_rate)
            watch.add(drawn + mechanism.noise_multiplier * rng.standard_normal(places))
        scores = OneRunScores(coins.ravel(), np.repeat(watch.log_odds(), share))
        for bound in lower_bounds(scores, design=design):
            found.setdefault(bound.method, []).append(bound.epsilon)
    means = {METHODS[name].name.replace("_", " "): float(np.mean(values)) for name, values in found.items()}
    return Measured(
        ours=means["one run"],
        columns={**means, "ε": epsilon},
        proved=max(means.values()),
        guarantee=epsilon,
        delta=delta,
        confidence=confidence,
        played={"audits": audits, "canaries": places * share},
        trials=places * share * audits,
    )


def audits(study: Study, cell: Cell, scale: Scale) -> tuple[AuditConfig, ...]:
    """The cell's audit; none where data and network come from a scene, which a config cannot name."""
    return () if "scene" in cell.tree else (scale.audit(cell),)


def measure(study: Study, cell: Cell, scale: Scale, bench: Bench) -> Measured:
    """The bounds of a real audit of one run, or of several pooled, and what the canaries cost.

    A cell may name a ``scene`` of :mod:`~coalmine.studies.measures.scenes` in the place of data and model.
    """
    settings = scale.audit(
        dataclasses.replace(cell, tree={name: part for name, part in cell.tree.items() if name != "scene"})
    )
    given, network = None, None
    if "scene" in cell.tree:
        given, network = scenes.SCENES[cell.tree["scene"]](bench.how.data_dir)
    setting = prepare(settings, data_dir=bench.how.data_dir, data=given, model=network)
    (section,) = settings.adversary
    game = game_of(setting, section, trials=settings.audit.trials)
    if not isinstance(game, OneRunGame):
        raise InvalidInputError(f"adversary = {section.name!r} is not allowed here: expected one run")
    played = bench.play(setting, section)
    design = game.design(claim_of(setting), confidence=settings.audit.confidence)
    first, others = prove_one_run(coins_of(played.trials), design=design)
    best = {METHODS[bound.method].short: bound.epsilon for bound in (*others, first) if hasattr(bound, "ceiling")}
    ours = best["if DP-SGD"]
    guarantee = setting.guarantee.epsilon
    columns = played.trials.columns
    return Measured(
        ours=ours,
        columns={
            **best,
            "share": ours / guarantee,
            "guarantee": guarantee,
            "accuracy with": _mean(columns[WITH_CANARIES]),
            "accuracy without": _mean(columns[ACCURACY]),
        },
        proved=max(best.values()),
        guarantee=guarantee,
        **behind(settings.audit, played),
    )


def _mean(values: Any) -> float | None:
    kept = values[np.isfinite(values)]
    return float(kept.mean()) if kept.size else None


_BOUNDS = {
    "if DP-SGD": "assumes DP-SGD with this sampling rate and number of steps; its noise is estimated",
    "ε": "what the mechanism promises",
}
IDEAL = Measure(
    measure=ideal,
    columns={
        **_BOUNDS,
        "(ε, δ), p-value": "no assumption on the mechanism, by the p-value of Steinke et al. 2023",
        "(ε, δ), curve": "no assumption on the mechanism, by the recursion of Mahloujifar et al. 2025",
        "guesses": "how many of the m canaries are guessed",
    },
)
COORDINATES = Measure(
    measure=coordinates,
    columns={
        "one run": "no assumption on the mechanism, by the p-value of Steinke et al. 2023",
        "one run fdp epsilon delta": "no assumption on the mechanism, by the recursion of Mahloujifar et al. 2025",
        "one run dpsgd": _BOUNDS["if DP-SGD"],
        "ε": _BOUNDS["ε"],
    },
)
MEASURE = Measure(
    measure=measure,
    audits=audits,
    columns={
        "if DP-SGD": _BOUNDS["if DP-SGD"],
        "proved": "lower bound by the attack, no assumption on the mechanism",
        "share": "of the guarantee, by the first of these",
        "guarantee": "upper bound on ε by the accountant: no lower bound may exceed it",
        "accuracy with": "share of right answers on test rows with the canaries",
        "accuracy without": "the same without them: same start, batches and noise",
    },
)
