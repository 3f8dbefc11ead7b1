"""What theory promises for DP-SGD, before any training.

============================  ==========================================================================================
module                        what it gives
============================  ==========================================================================================
:mod:`.standard`              the Guarantee by composition over all iterates (PLD or RDP); the central-limit value
:mod:`.last_iterate`          the Heuristic for the last model alone, exact for linear losses
:mod:`.full_batch`            the full-batch baseline
:mod:`.counterexamples`       losses for which the last-iterate heuristic is too small
:mod:`.encoding`              data for which it is too small
:mod:`.calibrate`             the smallest noise for a wanted ε
============================  ==========================================================================================

dp-accounting is loaded only when a composition is computed.
"""

from coalmine.accounting import calibrate, counterexamples, encoding, full_batch, last_iterate, standard
from coalmine.accounting._common import Profile

__all__ = ["Profile", "calibrate", "counterexamples", "encoding", "full_batch", "last_iterate", "standard"]
