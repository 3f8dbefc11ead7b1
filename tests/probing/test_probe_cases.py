"""Every bug that a step on one CPU can have is found by its name, and its right twin passes.

Fixed seeds. A right twin is refuted with a probability of at most 1e-8 by a statistical test; all else is seen, not
inferred. Broken ones are probed at the level that users have. More seeds: ``python tests/probing/many_seeds.py``.
"""

import warnings

import pytest
from trainers import by_hand
from trainers.cases import CASES, RIGHT, made

from coalmine.probing.faults import NOT_NORMAL
from coalmine.probing.probe import probe
from coalmine.records import Outcome

BROKEN = {"replays": 100, "tries": 40}
RIGHT_ONES = {"replays": 40, "tries": 120, "level": 1e-8}


def probed(build, options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns that its noise is not cryptographic, torch about hooks
        return probe(made(build, 0), **options)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_bug_is_found_by_its_name(case):
    more = {"replays": 200} if NOT_NORMAL in case.faults else {}  # a shape takes more numbers than a size
    report = probed(case.broken, BROKEN | more)
    assert {fault.name for fault in case.faults} <= {one.fault for one in report.findings}
    assert report.verdict.outcome is Outcome.REFUTED


@pytest.mark.parametrize("build", RIGHT, ids=lambda build: build.__name__)
def test_the_right_twin_passes(build):
    report = probed(build, RIGHT_ONES)
    assert report.findings == ()
    assert report.verdict.outcome is not Outcome.REFUTED  # with so few replays it may be inconclusive


@pytest.mark.parametrize(
    ("build", "seed", "fault"),
    [
        (by_hand.NoClipping, 8, "no clipping"),  # rows sought at the clip norm are no sign of clipping
        (by_hand.ReplacedRows, 17, "replaced rows count twice"),  # the rows that move most are all alike
    ],
)
def test_weights_with_which_it_was_once_missed(build, seed, fault):
    report = probe(made(build, seed), seed=seed, replays=60, tries=40)
    assert fault in {one.fault for one in report.findings}
