"""The bound for trade-off curves against the exact worst case over all mechanisms: a linear program, few canaries."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linprog

from coalmine.bounds.one_run import Guesses, one_run, p_value
from coalmine.bounds.one_run_fdp import critical_count, fdp_p_value, refutes
from coalmine.records import OneRunScores
from coalmine.theory.curves import EpsilonDeltaCurve, ProfileCurve, gaussian_delta


def worst_case(m, *, answers, good, epsilons, deltas):
    """The largest chance of ``good`` over mechanisms that answer one of ``answers`` and keep every (ε, δ) for each bit.

    Variables: P(answer | bits), and a slack for each pair of neighbors, answer and ε. Nothing is assumed about how
    bits depend on each other.
    """
    bits = list(itertools.product((0, 1), repeat=m))
    place = {b: i for i, b in enumerate(bits)}
    width, size = len(answers), len(bits) * len(answers)
    pairs = [(place[b], place[(*b[:i], 1 - b[i], *b[i + 1 :])]) for b in bits for i in range(m)]  # both directions
    rows, columns, values, limits = [], [], [], []
    row, slack = 0, size
    for epsilon, delta in zip(epsilons, deltas, strict=True):
        for one, other in pairs:
            mine = []
            for a in range(width):
                rows += [row] * 3
                columns += [one * width + a, other * width + a, slack]
                values += [1.0, -math.exp(epsilon), -1.0]
                limits.append(0.0)
                mine.append(slack)
                row, slack = row + 1, slack + 1
            rows += [row] * len(mine)
            columns += mine
            values += [1.0] * len(mine)
            limits.append(delta)
            row += 1
    matrix = sparse.csr_matrix((values, (rows, columns)), shape=(row, slack))
    equal = sparse.lil_matrix((len(bits), slack))
    for i in range(len(bits)):
        equal[i, i * width : (i + 1) * width] = 1.0
    target = np.zeros(slack)
    for i, b in enumerate(bits):
        for a, answer in enumerate(answers):
            if good(b, answer):
                target[i * width + a] = -1.0 / len(bits)
    found = linprog(
        target, A_ub=matrix, b_ub=limits, A_eq=equal.tocsr(), b_eq=np.ones(len(bits)), bounds=(0, None), method="highs"
    )
    assert found.status == 0
    return -found.fun


def guess_vectors(m, *, inside, outside):
    """All answers with so many guesses IN (1), OUT (0) and no guess (None)."""
    for places in itertools.permutations(range(m), inside + outside):
        high, low = places[:inside], places[inside:]
        if list(high) == sorted(high) and list(low) == sorted(low):
            yield tuple(1 if i in high else 0 if i in low else None for i in range(m))


def profile(mu):
    epsilons = np.array([0.0, 0.3, 0.7, 1.2, 1.8])
    return epsilons, np.array([gaussian_delta(mu, epsilon=float(e)) for e in epsilons])


@pytest.mark.parametrize(("m", "inside", "outside"), [(3, 1, 0), (4, 2, 0), (3, 1, 1), (4, 1, 1)])
@pytest.mark.parametrize("mu", [0.5, 1.0])
def test_no_mechanism_beats_the_p_value(m, inside, outside, mu):
    epsilons, deltas = profile(mu)
    curve = ProfileCurve(epsilons, deltas)
    answers = list(guess_vectors(m, inside=inside, outside=outside))
    r = inside + outside
    for v in range(1, r + 1):

        def good(bits, answer, v=v):
            return sum(b == a for b, a in zip(bits, answer, strict=True) if a is not None) >= v

        exact = worst_case(m, answers=answers, good=good, epsilons=epsilons, deltas=deltas)
        seen = Guesses(canaries=m, guesses=r, correct=v, sides=2 if inside and outside else 1)
        found = fdp_p_value(seen, curve)
        assert found >= exact - 1e-6, (v, found, exact)
        if r == 1:  # one guess: the bound is nearly the truth
            assert found <= 1.05 * exact


def test_one_side_is_tighter_and_still_no_mechanism_beats_it():
    epsilons, deltas = profile(0.8)
    curve = ProfileCurve(epsilons, deltas)
    answers = list(guess_vectors(4, inside=2, outside=0))
    exact = worst_case(
        4,
        answers=answers,
        good=lambda bits, answer: sum(b for b, a in zip(bits, answer, strict=True) if a) == 2,
        epsilons=epsilons,
        deltas=deltas,
    )
    one = fdp_p_value(Guesses(canaries=4, guesses=2, correct=2, sides=1), curve)
    two = fdp_p_value(Guesses(canaries=4, guesses=2, correct=2), curve)
    assert exact <= one + 1e-6
    assert one < two


def test_the_p_value_of_steinke_is_no_smaller_than_the_exact_worst_case():
    epsilon, delta = 0.8, 0.02
    answers = list(guess_vectors(3, inside=1, outside=1))
    for v in (1, 2):
        exact = worst_case(
            3,
            answers=answers,
            good=lambda bits, answer, v=v: sum(b == a for b, a in zip(bits, answer, strict=True) if a is not None) >= v,
            epsilons=[epsilon],
            deltas=[delta],
        )
        assert p_value(Guesses(canaries=3, guesses=2, correct=v), epsilon=epsilon, delta=delta) >= exact - 1e-6
        curve = EpsilonDeltaCurve(epsilon=epsilon, delta=delta)
        assert fdp_p_value(Guesses(canaries=3, guesses=2, correct=v), curve) >= exact - 1e-6


def test_critical_count_and_p_value_agree_with_refutes():
    curve = ProfileCurve(*profile(0.6))
    for r, sides in ((40, 2), (100, 1), (300, 2)):
        critical = critical_count(curve, canaries=600, guesses=r, level=0.05, sides=sides)
        for v in range(r + 1):
            seen = Guesses(canaries=600, guesses=r, correct=v, sides=sides)
            assert refutes(seen, curve, level=0.05) == (critical is not None and v >= critical)
        if critical is not None:
            last = Guesses(canaries=600, guesses=r, correct=critical, sides=sides)
            assert fdp_p_value(last, curve) <= 0.05 * 1.001
            before = Guesses(canaries=600, guesses=r, correct=critical - 1, sides=sides)
            assert fdp_p_value(before, curve) > 0.05


def test_a_score_must_not_use_the_coins_of_the_others():
    """One bit, the parity of all coins, told truly three times in four: ε = ln 3. Whoever knows all other coins reads
    each coin off that bit, so all guesses are right together, three times in four, and everything is "proved".

    Of 400 runs fewer than 240 would be right with a chance below 1e-9.
    """
    rng = np.random.default_rng(0)
    canaries, too_high = 200, 0
    for _ in range(400):
        coins = rng.random(canaries) < 0.5
        bit = (coins.sum() % 2 == 1) ^ (rng.random() < 0.25)
        others = (coins.sum() - coins) % 2 == 1
        scores = OneRunScores(coins, (others ^ bit).astype(float))
        found = one_run(scores, delta=0.0, confidence=0.95, guess_numbers=[(50, 50)])
        too_high += found.epsilon > math.log(3.0)
    assert too_high > 240
