"""From the tests that a sampler failed to how it draws: each fault by its name, with what shows it best."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from coalmine.probing import laws
from coalmine.probing.findings import Finding
from coalmine.probing.sampler_checks import poisson_checks
from coalmine.probing.sampler_counts import Check, Counted
from coalmine.probing.sampler_given import order_is_kept, steps_are_tied

_SIZES = ("batch sizes", "most common batch size", "largest batch", "smallest batch", "empty batches")
_STEPS = ("repeats within an epoch", "steps in a row", "the same step of two epochs")
_TOGETHER = ("equal batches", "neighboring rows", "pairs of rows")
_RATES = ("inclusion rates", "rows of their own rate")


@dataclasses.dataclass(frozen=True)
class _Fault:
    """A way of drawing that is not the promised one: its name, what to say, where to look, and the tests it fails.

    The first of those tests that failed shows the fault; the others are not reported again.
    """

    name: str
    sentence: str
    look_at: str
    fails: tuple[str, ...]


_POISSON = {
    "shuffle": _Fault(
        "shuffled batches accounted as Poisson",
        "The sampler shuffles: {batches}, and {seen}, where Poisson sampling at rate {rate:.4g} gives {expected}. The "
        "privacy of shuffled batches is worse than what is accounted.",
        "the loader: shuffle=True or RandomSampler. Draw by Poisson, or account without amplification.",
        (*_STEPS, *_SIZES, *_TOGETHER, "inclusion rates"),
    ),
    "order": _Fault(
        "batches in a fixed order accounted as Poisson",
        "The sampler gives {batches} in an order that does not change, or not from epoch to epoch: {seen}, where "
        "Poisson sampling gives {expected}.",
        "the loader: shuffle=False, set_epoch never called, or a generator seeded anew in each epoch.",
        (*_STEPS, *_SIZES, *_TOGETHER, "inclusion rates"),
    ),
    "empty": _Fault(
        "empty batches are left out",
        "{Seen}, where Poisson sampling gives {expected}: a step without rows must be taken too, with its noise, or "
        "the number of steps tells about the rows.",
        "the sampler: it must give an empty batch where none was drawn.",
        ("empty batches", "sample rate", *_SIZES),
    ),
    "repeat": _Fault(
        "batches repeat",
        "{Seen}, and fresh draws never do: the steps are not independent.",
        "the seed: a generator seeded anew, or batches kept in memory.",
        ("equal batches", *_RATES, *_STEPS, *_SIZES, "neighboring rows", "pairs of rows"),
    ),
    "blocks": _Fault(
        "rows drawn in blocks",
        "{Seen}, where Poisson sampling gives {expected}: rows are not drawn one by one.",
        "the sampler: rows of one file, user or chunk drawn together.",
        ("neighboring rows", "pairs of rows", "equal batches", *_SIZES),
    ),
    "rows": _Fault(
        "a row of its own rate",
        "{Seen}, where rate {rate:.4g} gives {expected}; the other rows are as promised.",
        "the sampler, or the data: rows listed twice or left out.",
        ("rows of their own rate", "inclusion rates", "neighboring rows", "pairs of rows"),
    ),
    "weights": _Fault(
        "weighted sampler",
        "Rows have different rates: {seen}, where equal rates give {expected}. The rows that were drawn more often in "
        "the first half of the steps were drawn at rate {high:.4g} in the second half, the others at {low:.4g}; "
        "{rate:.4g} is accounted for all.",
        "the sampler: WeightedRandomSampler or class balancing. Draw all alike, or account for the largest rate.",
        (*_RATES, *_STEPS, *_SIZES, "neighboring rows", "pairs of rows", "rows within a batch"),
    ),
    "replacement": _Fault(
        "rows drawn with replacement",
        "A batch may hold a row more than once: {seen}. Its gradient then counts as often.",
        "the sampler: RandomSampler(replacement=True), or another draw with replacement within a batch.",
        ("rows within a batch", *_SIZES),
    ),
    "size": _Fault(
        "fixed-size batches accounted as Poisson",
        "The sampler draws {batches} without replacement, anew in each step: {seen}, where Poisson sampling gives "
        "{expected}.",
        "the batch sampler: draw by Poisson, or use an accountant for batches of a fixed size.",
        _SIZES,
    ),
    "steps": _Fault(
        "steps depend on each other",
        "{Seen}, where Poisson sampling gives {expected}, and more than rows of different rates would.",
        "the sampler: what it remembers from step to step.",
        ("steps in a row", *_STEPS, *_SIZES, *_RATES, *_TOGETHER),
    ),
    "cut": _Fault(
        "batches are cut",
        "Batches are cut at {size} rows: {seen}, where the largest of batches drawn by Poisson has {expected}. "
        "Rows are left out of larger ones, so they are no longer drawn one by one.",
        "the sampler, or what takes its batches: a largest batch size (memory, padding). Split a batch that is too "
        "large into parts of one step.",
        ("largest batch", *_SIZES),
    ),
    "filled": _Fault(
        "batches are filled up",
        "Batches are filled up to {size} rows: {seen}, where the smallest of batches drawn by Poisson has {expected}.",
        "the sampler, or what takes its batches: small batches drawn again, dropped, or filled with other rows.",
        ("smallest batch", *_SIZES),
    ),
    "rate": _Fault(
        "wrong sample rate",
        "{Seen}, {ratio:.3g} times the {rate:.4g} that is accounted.",
        "the rate that the accountant is told: batch size over rows, over all ranks and accumulated batches.",
        ("sample rate",),
    ),
}
_UNEXPLAINED = {
    **dict.fromkeys(_SIZES, ("batch sizes of another law", "the batch sampler: rows must be drawn one by one.")),
    **dict.fromkeys(_STEPS, ("steps depend on each other", "the sampler: what it remembers from step to step.")),
    **dict.fromkeys(_TOGETHER, ("rows drawn together", "the sampler: rows of one file or user drawn together.")),
    **dict.fromkeys(_RATES, ("rows tied to each other", "the sampler: how it makes all rows come alike often.")),
    "rows within a batch": ("rows drawn with replacement", "the sampler: draws with replacement within a batch."),
}
_RANKS = {
    "steps of the ranks": (
        "ranks differ in steps",
        "{Seen}: a step on one rank has no partner on another.",
        "the samplers: an empty batch left out on one rank, or parts of different length.",
    ),
    "rows of the ranks": (
        "ranks overlap",
        "{Seen}. Such a row enters the sum twice, so its influence is not bounded by one clipping norm.",
        "the samplers: each rank must draw from its own part of the rows (the sampler's rank and world size).",
    ),
    "seeds of the ranks": (
        "ranks draw with equal seeds",
        "{Seen} ({expected} if they drew on their own): the ranks pick the same places of their parts, so rows are "
        "drawn together.",
        "the seed of each rank's sampler: torch.manual_seed with the same number on all ranks.",
    ),
}
_OTHER = (
    {
        "rows within a batch": "rows drawn with replacement",
        "repeats within an epoch": "rows repeat within an epoch",
        "rows left out of an epoch": "rows left out of an epoch",
    },
    {"batch sizes": "batch sizes vary"},
    {
        "order of the rows": "rows are not shuffled",
        "neighboring rows": "rows are not shuffled",
        "epochs in a row": "the same order in every epoch",
        "the same step of two epochs": "the same order in every epoch",
    },
    {"rows of their own rate": "weighted sampler"},
    {"steps in a row": "steps depend on each other"},
)
"""What a test is called that fails under another promise than Poisson; of each group the first is told."""


def name_faults(
    counted: Counted, failed: dict[str, Check], *, promised: str, rate: float, share: float
) -> list[tuple[Finding, str]]:
    """A finding for each fault, with the name of the test that shows it; at least one if any test failed."""
    ranks = [name for name in _RANKS if name in failed]
    if ranks:
        # Ranks that are tied or out of step make the batches together too alike: nothing more is known from them.
        return [(_rank_finding(failed[ranks[0]], share), ranks[0])]
    if promised != "poisson":
        first = [next((name for name in group if name in failed), None) for group in _OTHER]
        return [(_other_finding(failed[name], promised, share), name) for name in first if name]
    found: list[tuple[Finding, str]] = []
    left = dict(failed)
    if "sample rate" in left:
        seen = left["sample rate"].number
        # A wrong rate alone moves most counts: what is still odd at the rate that was seen is another fault.
        at_seen = {one.name: one.p for one in poisson_checks(counted, min(max(seen, 1e-9), 1.0 - 1e-9))}
        shown = ("sample rate", "empty batches")
        left = {name: one for name, one in left.items() if name in shown or one.certain or at_seen[name] <= share}
    while left:
        kind = _kind(counted, left, rate, share)
        if not kind:
            break
        fault = _POISSON[kind]
        explained = [name for name in fault.fails if name in left]
        found.append((_finding(fault, left[explained[0]], counted, rate, share), explained[0]))
        left = {name: one for name, one in left.items() if name not in explained}
    return found + [(_unexplained(one, share), name) for name, one in left.items()]


def _kind(counted: Counted, failed: dict[str, Check], rate: float, share: float) -> str:
    """How a sampler draws that is not Poisson, from what it did; empty if none of the known ways explains it."""
    more = {name for name, one in failed.items() if one.number > one.expected}
    repeats = failed.get("repeats within an epoch")
    replaced = "rows within a batch" in failed
    if _empties_missing(counted, failed, rate, share):
        return "empty"
    if "sample rate" in failed:
        return "rate"
    if repeats is not None and repeats.number == 0 and not replaced:
        met = more & {"the same step of two epochs", *_TOGETHER}
        return "order" if met and order_is_kept(counted) else "shuffle"
    if more & {"neighboring rows", "pairs of rows"} and not failed.keys() & set(_RATES):
        return "blocks"
    if "equal batches" in failed:
        return "repeat"
    if "steps in a row" in more and "equal batches" not in failed and steps_are_tied(counted):
        return "steps"
    if more & set(_RATES) or "rows of their own rate" in failed:
        return "rows" if _few_rows(counted, rate, share) else "weights"
    if replaced:
        return "replacement"
    if failed.keys() & set(_SIZES) and _one_size(counted):
        return "size"
    largest, smallest = failed.get("largest batch"), failed.get("smallest batch")
    if largest is not None and largest.number < largest.expected:
        return "cut"
    return "filled" if smallest is not None and smallest.number > smallest.expected else ""


def _empties_missing(counted: Counted, failed: dict[str, Check], rate: float, share: float) -> bool:
    """No batch is empty, and with the missing ones the rate would be right."""
    check = failed.get("empty batches")
    if check is None or check.number > 0:
        return False
    steps = len(counted.steps)
    whole = round(steps / (1.0 - check.expected / steps)) * counted.rows
    return laws.two_sided(laws.binomial_tails(counted.draws, whole, rate)) > share


def _few_rows(counted: Counted, rate: float, share: float) -> bool:
    """Whether at most one row in a hundred is odd, and the others are as promised."""
    steps = len(counted.steps)
    values = np.unique(counted.counts)
    odd = [v for v in values if counted.rows * laws.two_sided(laws.binomial_tails(int(v), steps, rate)) < share]
    rest = counted.counts[~np.isin(counted.counts, odd)]
    few = counted.rows - rest.size <= max(1, counted.rows // 100)
    return bool(odd) and few and laws.two_sided(laws.spread_tails(rest, steps, rate)) > share


def _one_size(counted: Counted) -> bool:
    """All batches have as many rows, but for the last one of an epoch."""
    last = set(np.cumsum([len(epoch) for epoch in counted.epochs]) - 1)
    inner = [int(size) for s, size in enumerate(counted.sizes) if s not in last]
    return len(set(inner or counted.sizes.tolist())) == 1


def _finding(fault: _Fault, check: Check, counted: Counted, rate: float, share: float) -> Finding:
    """The fault with its number."""
    sizes = np.unique(counted.sizes)
    high, low = _halves(counted)
    weights = fault is _POISSON["weights"]
    return Finding(
        fault=fault.name,
        sentence=fault.sentence.format(
            **_words(check),
            rate=rate,
            ratio=check.number / rate,
            batches=f"batches of {sizes[-1]} rows" if sizes.size <= 2 else f"batches of {sizes[0]} to {sizes[-1]} rows",
            high=high,
            low=low,
            size=int(check.number),
        ),
        look_at=fault.look_at,
        number=(high / low if low > 0.0 else math.inf) if weights else check.number,
        allowed=1.0 if weights else check.expected,
        witness=check.witness,
        level=0.0 if check.certain else share,
    )


def _unexplained(check: Check, share: float) -> Finding:
    """A test that failed, where no known way of drawing explains it."""
    fault, look_at = _UNEXPLAINED[check.name]
    words = _words(check)
    return Finding(
        fault=fault,
        sentence=f"{words['Seen']}, where Poisson sampling gives {words['expected']}.",
        look_at=look_at,
        number=check.number,
        allowed=check.expected,
        witness=check.witness,
        level=0.0 if check.certain else share,
    )


def _rank_finding(check: Check, share: float) -> Finding:
    """The ranks do not fit together."""
    fault, sentence, look_at = _RANKS[check.name]
    same = check.name == "rows of the ranks" and check.number == 1.0
    return Finding(
        fault="ranks draw the same rows" if same else fault,
        sentence=sentence.format(**_words(check)),
        look_at="the seeds: every rank draws the same batches from all rows." if same else look_at,
        number=check.number,
        allowed=check.expected,
        witness=check.witness,
        level=0.0 if check.certain else share,
    )


def _other_finding(check: Check, promised: str, share: float) -> Finding:
    """A test of shuffling or of fixed sizes that failed."""
    fault = next(group[check.name] for group in _OTHER if check.name in group)
    shuffled = check.name == "steps in a row" and check.number < check.expected
    words = _words(check)
    return Finding(
        fault="shuffled batches, not drawn anew" if shuffled else fault,
        sentence=f"{words['Seen']}; what was promised ({promised}) gives {words['expected']}.",
        look_at="the loader's sampler, its generator, and set_epoch.",
        number=check.number,
        allowed=check.expected,
        witness=check.witness,
        level=0.0 if check.certain else share,
    )


def _halves(counted: Counted) -> tuple[float, float]:
    """The rates, in the second half of the steps, of the rows drawn more and less often in the first half."""
    half = len(counted.steps) // 2
    parts = []
    for batches in (counted.steps[:half], counted.steps[half:]):
        flat = np.concatenate(batches) if batches else np.zeros(0, dtype=np.int64)
        parts.append(np.bincount(flat, minlength=counted.rows))
    often = parts[0] >= parts[0].mean()
    rest = max(1, len(counted.steps) - half)
    high = float(parts[1][often].mean()) / rest if often.any() else math.nan
    return high, float(parts[1][~often].mean()) / rest if not often.all() else high


def _words(check: Check) -> dict[str, str]:
    """What was seen, within and at the start of a sentence, and what was expected."""
    seen = check.sentence
    return {"seen": seen, "Seen": seen[:1].upper() + seen[1:], "expected": f"about {check.expected:.4g}"}
