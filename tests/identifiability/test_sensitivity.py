"""Dissimilarities against SciPy and scikit-image's formula; the search against a plain double loop."""

import numpy as np
import pytest
from scipy.spatial import distance

from coalmine.errors import InvalidInputError
from coalmine.identifiability import sensitivity
from coalmine.identifiability.sensitivity import dissimilarity, dissimilarity_sums, neighbour, replacement

RNG = np.random.default_rng(11)
PICTURE = (1, 4, 5)
MEASURES = sensitivity.DISSIMILARITIES
NAMES = {"euclidean": "euclidean", "manhattan": "cityblock", "hamming": "hamming", "cosine": "cosine"}


def table(measure, rows, seed):
    rng = np.random.default_rng(seed)
    x = rng.random((rows, 20))
    return (x < 0.4).astype(float) if measure == "hamming" else x


def slow_ssim(x, y):
    """Wang et al. (2004), eq. 13, one window, written out."""
    c1, c2 = 0.0001, 0.0009
    covariance = sum((a - x.mean()) * (b - y.mean()) for a, b in zip(x, y, strict=True)) / len(x)
    top = (2 * x.mean() * y.mean() + c1) * (2 * covariance + c2)
    return 1 - top / ((x.mean() ** 2 + y.mean() ** 2 + c1) * (x.var() + y.var() + c2))


def slow(measure, x, y):
    if measure == "ssim":
        return np.array([[slow_ssim(a, b) for b in y] for a in x])
    return distance.cdist(x, y, NAMES[measure])


@pytest.mark.parametrize("measure", MEASURES)
def test_dissimilarities_are_the_known_formulas(measure):
    x, y = table(measure, 6, 1), table(measure, 5, 2)
    expected = slow(measure, x, y)
    ours = [[dissimilarity(a, b, measure=measure) for b in y] for a in x]
    np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("measure", MEASURES)
def test_sums_and_extremes_are_those_of_a_double_loop(measure, monkeypatch):
    monkeypatch.setattr(sensitivity, "_BLOCK", 16)  # so that there are several blocks
    x, y = table(measure, 75, 3), table(measure, 41, 4)
    pairs = slow(measure, x, x)
    np.fill_diagonal(pairs, 0.0)
    np.testing.assert_allclose(dissimilarity_sums(x, measure=measure, picture=PICTURE), pairs.sum(axis=1), rtol=1e-9)
    other = slow(measure, x, y)
    for most in (True, False):
        totals = np.round(pairs.sum(axis=1), 9)
        for rank in (1, 2, 5):
            found = neighbour(x, measure=measure, picture=PICTURE, most=most, rank=rank)
            order = np.argsort(-totals if most else totals, kind="stable")
            assert found.row == order[rank - 1]
            assert found.value == pytest.approx(totals[found.row], rel=1e-7)
            pair = replacement(x, y, measure=measure, picture=PICTURE, most=most, rank=rank)
            flat = np.round(other, 12).ravel()
            place = np.argsort(-flat if most else flat, kind="stable")[rank - 1]
            assert (pair.row, pair.replacement) == divmod(int(place), 41)
            assert pair.value == pytest.approx(other.ravel()[place], rel=1e-12)


def test_equal_rows_are_not_told_apart_by_rounding():
    x = np.tile(RNG.random((1, 20)), (9, 1))
    x[3:6] = RNG.random(20)
    for measure in ("euclidean", "ssim", "manhattan", "cosine"):
        assert neighbour(x, measure=measure, picture=PICTURE).row == 3
        assert replacement(x, x, measure=measure, picture=PICTURE, most=False).row == 0


def test_nothing_as_large_as_all_pairs_is_held(monkeypatch):
    monkeypatch.setattr(sensitivity, "_BLOCK", 32)
    largest = []
    plain = sensitivity._products

    def watched(*args):
        made = plain(*args)
        largest.append(made.size)
        return made

    monkeypatch.setattr(sensitivity, "_products", watched)
    neighbour(RNG.random((200, 20)), measure="ssim", picture=PICTURE)
    assert max(largest) <= 32 * 32
    assert len(largest) == 7 * 8 // 2  # each pair of blocks once


def test_the_triangle_inequality_spares_most_blocks(monkeypatch):
    monkeypatch.setattr(sensitivity, "_BLOCK", 16)
    x = RNG.random((400, 20)) * np.linspace(0.05, 1.0, 400)[:, None]
    looked = []
    plain = sensitivity._Search._look
    monkeypatch.setattr(sensitivity._Search, "_look", lambda self, i, j: (looked.append(1), plain(self, i, j))[1])
    found = replacement(x, x, measure="manhattan")
    expected = distance.cdist(x, x, "cityblock")
    assert found.value == pytest.approx(expected.max(), rel=1e-12)
    assert len(looked) < 25 * 25 / 4


def test_global_and_local_sensitivity():
    assert sensitivity.global_sensitivity(3.0, relation="replace") == 6.0
    for seed in range(20):
        a, b = np.random.default_rng(seed).normal(size=(2, 7)) * 3
        clipped = [v / max(1.0, np.linalg.norm(v) / 2.0) for v in (a, b)]
        assert sensitivity.local_sensitivity(a, clip=2.0) == pytest.approx(np.linalg.norm(clipped[0]))
        both = sensitivity.local_sensitivity(a, clip=2.0, replaced=b)
        assert both == pytest.approx(np.linalg.norm(clipped[0] - clipped[1]))
        assert both <= sensitivity.global_sensitivity(2.0, relation="replace") + 1e-12


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: neighbour([[0.5, 1.0]], measure="hamming"), "zeros and ones"),
        (lambda: neighbour([[0.5, 1.0]], measure="ssim"), "ssim compares pictures"),
        (lambda: neighbour([[0.5, 2.0]], measure="ssim", picture=(1, 1, 2)), "values from 0 to 1"),
        (lambda: neighbour([[0.5, 1.0]], measure="ssim", picture=(1, 2, 2)), "does not fit rows of 2"),
        (lambda: neighbour([[0.0, 0.0]], measure="cosine"), "row of zeros"),
        (lambda: neighbour([[0.0, 0.0]], measure="chebyshev"), "dissimilarity = 'chebyshev' is not allowed"),
        (lambda: neighbour([[0.0, np.nan]], measure="euclidean"), "not finite"),
        (lambda: replacement([[0.0, 1.0]], [[1.0]], measure="euclidean"), "rows of 1 features"),
        (lambda: sensitivity.local_sensitivity([1.0], clip=0.0), "clip = 0.0"),
        (lambda: sensitivity.local_sensitivity([1.0], clip=1.0, replaced=[1.0, 2.0]), "expected 1"),
    ],
)
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(InvalidInputError, match=words):
        call()
