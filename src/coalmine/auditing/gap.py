"""Where the gap comes from: between the ε that is promised and the ε that an attack proved.

Four levels stand between them, each a number of its own:

============  ==============================================================================================
promised      the accountant's ε, or the claim's
perfect       what half of all perfect attacks would have proved with as many trials, in the mechanism's family
stronger      what the attackers who may see or do more proved, in the same family
assumed       what the attack's own scores prove in that family
proved        what they prove with nothing assumed
============  ==============================================================================================

So promised − perfect is lost to the number of trials, perfect − stronger is left to the attack and the accountant,
stronger − assumed is lost to what this attacker may not see or do, and assumed − proved is lost to assuming nothing. A
perfect attack loses nothing of the trade-off curve that is promised. The levels come from trials and vary with them:
where chance puts a level above the next, the next is raised to it, so no part is negative and they add up to the gap.
"""

from __future__ import annotations

import dataclasses
import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from coalmine import bounds
from coalmine.records import Claim, EpsilonClaim, LowerBound, MechanismClaim, Relation, plain

if TYPE_CHECKING:
    from coalmine.auditing.results import AdversaryResult, AuditResult


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gap:
    """The levels between promised and proved for one attack (see the module's text).

    ``method`` names the family, ``above`` the attack that ``stronger`` is from (empty where none that may see or do
    more proved more), ``tried`` whether one was played at all. ``typical`` is the median of perfect attacks even where
    chance let this one prove more.

    >>> levels = {"promised": 4.0, "perfect": 3.0, "stronger": 2.5, "assumed": 2.0, "proved": 0.5}
    >>> gap = Gap(adversary="a", method="gdp", above="b", tried=True, typical=3.0, **levels)
    >>> gap.trials, gap.attack, gap.view, gap.assumptions
    (1.0, 0.5, 0.5, 1.5)
    """

    adversary: str
    method: str
    promised: float
    perfect: float
    stronger: float
    assumed: float
    proved: float
    above: str
    tried: bool
    typical: float

    @property
    def trials(self) -> float:
        """Lost to the number of trials."""
        return self.promised - self.perfect

    @property
    def attack(self) -> float:
        """Left to the attack and the accountant."""
        return self.perfect - self.stronger

    @property
    def view(self) -> float:
        """Lost to what this attacker may not see or do."""
        return self.stronger - self.assumed

    @property
    def assumptions(self) -> float:
        """Lost to assuming nothing about the mechanism."""
        return self.assumed - self.proved

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types, levels and parts."""
        parts = {name: getattr(self, name) for name in ("trials", "attack", "view", "assumptions")}
        return {"kind": "gap", **plain(dataclasses.asdict(self)), "lost": plain(parts)}


def gaps(result: AuditResult) -> tuple[Gap, ...]:
    """The gaps of the best attack on the data at hand and of the best one on data that it chose, where there are any.

    There is none where nothing is promised, where the attack proved as much as is promised, and where no family of the
    mechanism is known.

    Args:
        result: An audit.

    Returns:
        One gap for each of the two attacks that has one.
    """
    best = [one for one in (result.on_data, result.on_chosen_data) if one is not None]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda one: _gap(result, one), best))
    return tuple(one for one in found if one is not None)


def _gap(result: AuditResult, one: AdversaryResult) -> Gap | None:
    claim, assumed, proved = _promise(result), one.assumed, one.bound.epsilon
    if claim is None or assumed is None or claim.relation is not assumed.relation:
        return None
    if not max(proved, assumed.epsilon) < result.promised < math.inf:
        return None
    later = result.adversaries[result.adversaries.index(one) + 1 :] if one.attack.powers else ()
    rungs = [
        (other.assumed.epsilon, other.label)
        for other in later
        if other.attack.powers and other.assumed is not None and other.assumed.method == assumed.method
    ]
    alone = max(proved, assumed.epsilon)
    most, label = max(rungs, default=(0.0, ""))
    stronger = min(max(most, alone), result.promised)
    typical = _perfect(one, assumed, claim)
    return Gap(
        adversary=one.label,
        method=assumed.method,
        promised=result.promised,
        perfect=min(max(typical, stronger), result.promised),
        stronger=stronger,
        assumed=alone,
        proved=proved,
        above=label if most > alone else "",
        tried=bool(rungs),
        typical=typical,
    )


def _promise(result: AuditResult) -> Claim | None:
    """What is promised: the mechanism where it is known, else the claim."""
    if result.mechanism is not None:
        return MechanismClaim(mechanism=result.mechanism, delta=result.config.audit.delta)
    return result.claim if isinstance(result.claim, EpsilonClaim) else None


def _perfect(one: AdversaryResult, assumed: LowerBound, claim: Claim) -> float:
    """What an attack that loses nothing proves in the median, by the same method with as many trials."""
    if one.one_run is not None:
        from coalmine.one_run.planning import forecast

        design = one.one_run.design
        found = forecast(design.claim, canaries=design.canaries, confidence=design.confidence, choice=design.choice())
        return found.expected
    method = bounds.named(assumed.method)
    added = one.attack.added and method is bounds.named("dpsgd") and claim.relation is Relation.ADD_REMOVE
    return bounds.typical_bound(
        bounds.less_noise(claim, share=1.0, added=added),
        negatives=assumed.trials[0],
        positives=assumed.trials[1],
        delta=assumed.delta,
        confidence=assumed.confidence,
        method=assumed.method,
        copies=assumed.copies,
        mechanism=claim.mechanism if method.needs_mechanism and isinstance(claim, MechanismClaim) else None,
        added=added,
    )
