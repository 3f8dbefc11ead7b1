"""Whether evidence speaks for the wrong world: then nothing is refuted, however much there is to see."""

from __future__ import annotations

import numpy as np
from scipy import special

from coalmine.bounds.one_run import Guesses
from coalmine.records import Counts, OneRunScores, Scores

_LEVEL = 1e-3
"""Evidence of a test that knows nothing points the wrong way with at most this chance."""


def points_the_wrong_way(evidence: Scores | Counts | OneRunScores | Guesses) -> bool:
    """Whether the worlds are told apart, but with the smaller scores, or the errors, on the side of world 1.

    >>> points_the_wrong_way(Counts(false_positives=900, negatives=1000, false_negatives=900, positives=1000))
    True
    >>> points_the_wrong_way(Guesses(canaries=100, guesses=100, correct=45))
    False
    """
    if isinstance(evidence, Guesses):
        return bool(special.bdtr(evidence.correct, evidence.guesses, 0.5) < _LEVEL)
    from scipy import stats  # slow to load, and seldom needed

    if isinstance(evidence, Counts):
        taken = [evidence.false_positives, evidence.positives - evidence.false_negatives]
        left = [evidence.negatives - evidence.false_positives, evidence.false_negatives]
        return bool(stats.fisher_exact([taken, left], alternative="greater").pvalue < _LEVEL)
    if isinstance(evidence, OneRunScores):
        world0, world1 = evidence.score[~evidence.included], evidence.score[evidence.included]
    else:
        world0, world1 = evidence.world0, evidence.world1
    if not world0.size or not world1.size or np.ptp(np.concatenate([world0, world1])) == 0.0:
        return False
    return bool(stats.mannwhitneyu(world1, world0, alternative="less").pvalue < _LEVEL)
