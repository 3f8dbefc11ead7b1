"""What the evidence proves: lower bounds on ε that hold, from counts, independent scores, or one run.

>>> from coalmine.records import Counts
>>> counts = Counts(false_positives=2, negatives=1000, false_negatives=983, positives=1000)
>>> round(lower_bound(counts, delta=1e-5, confidence=0.95).epsilon, 6)
0.320015
"""

from coalmine.bounds.anytime import AnytimeAudit, anytime
from coalmine.bounds.bayesian import bayesian
from coalmine.bounds.claims import (
    ClaimTest,
    check_claim,
    check_confidence,
    claim_curve,
    claim_test,
    less_noise,
    power,
    trials_needed,
)
from coalmine.bounds.direction import points_the_wrong_way
from coalmine.bounds.dpsgd import DpSgdNoise
from coalmine.bounds.families import EpsilonDelta, Gdp
from coalmine.bounds.limit import most_provable
from coalmine.bounds.method import Evidence, Method
from coalmine.bounds.methods import METHODS, ceiling, clopper_pearson, dpsgd, gdp, lower_bound, named
from coalmine.bounds.one_run import Guesses, count_guesses, one_run
from coalmine.bounds.one_run_fdp import one_run_fdp, refutes
from coalmine.bounds.plan import Plan, plan, typical_bound
from coalmine.bounds.thresholds import DKW, Bonferroni, Given, HoldOut, Optimistic, Ranks, Sup

__all__ = [
    "DKW",
    "METHODS",
    "AnytimeAudit",
    "Bonferroni",
    "ClaimTest",
    "DpSgdNoise",
    "EpsilonDelta",
    "Evidence",
    "Gdp",
    "Given",
    "Guesses",
    "HoldOut",
    "Method",
    "Optimistic",
    "Plan",
    "Ranks",
    "Sup",
    "anytime",
    "bayesian",
    "ceiling",
    "check_claim",
    "check_confidence",
    "claim_curve",
    "claim_test",
    "clopper_pearson",
    "count_guesses",
    "dpsgd",
    "gdp",
    "less_noise",
    "lower_bound",
    "most_provable",
    "named",
    "one_run",
    "one_run_fdp",
    "plan",
    "points_the_wrong_way",
    "power",
    "refutes",
    "trials_needed",
    "typical_bound",
]
