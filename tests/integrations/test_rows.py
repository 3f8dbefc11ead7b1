"""Worlds that are no neighbours are refused, whatever holds their rows: a refutation there would prove nothing."""

import numpy as np
import pytest
import torch

from coalmine.errors import InvalidInputError
from coalmine.integrations import Worlds, neighbours
from coalmine.integrations.rows import check_neighbours

ROWS = np.random.default_rng(0).normal(size=(6, 3))
LABELS = np.arange(6)


def frame(library, rows):
    return pytest.importorskip(library, reason=f"{library} is not installed").DataFrame(
        {"a": rows[:, 0], "b": [f"{one:.3f}" for one in rows[:, 1]]}
    )


HOLDERS = {
    "array": lambda rows, labels: rows,
    "tensor": lambda rows, labels: torch.from_numpy(rows),
    "half tensor": lambda rows, labels: torch.from_numpy(rows).bfloat16(),
    "pair": lambda rows, labels: (rows, labels),
    "pair in a list": lambda rows, labels: [rows, labels],
    "mapping": lambda rows, labels: {"y": labels, "x": torch.from_numpy(rows)},
    "list": lambda rows, labels: list(zip(rows.tolist(), labels.tolist(), strict=True)),
    "list of arrays": lambda rows, labels: list(rows),
    "tensor data set": lambda rows, labels: torch.utils.data.TensorDataset(torch.from_numpy(rows)),
    "data set": lambda rows, labels: torch.utils.data.Subset(
        torch.utils.data.TensorDataset(torch.from_numpy(rows)), range(len(rows))
    ),
    "objects": lambda rows, labels: np.array([str(row) for row in rows], dtype=object),
    "pandas": lambda rows, labels: frame("pandas", rows),
    "polars": lambda rows, labels: frame("polars", rows),
}


@pytest.fixture(params=HOLDERS)
def held(request):
    return lambda *which: HOLDERS[request.param](ROWS[list(which)], LABELS[list(which)])


def test_neighbours_pass(held):
    """And it is known whether world 1 has every row of world 0 and more."""
    assert check_neighbours(Worlds(world0=held(0, 1, 2, 3), world1=held(0, 1, 2, 3, 4)))
    assert not check_neighbours(Worlds(world0=held(0, 1, 2, 3), world1=held(0, 2, 3)))
    assert check_neighbours(Worlds(world0=held(0, 1, 2, 3), world1=held(0, 1, 2, 3, 4, 4), copies=2))
    assert not check_neighbours(Worlds(world0=held(0, 1, 2, 3), world1=held(0, 1, 2, 5), copies=2))
    assert not check_neighbours(Worlds(world0=held(0, 1, 2, 3), world1=held(0, 5, 2, 3), relation="replace"))


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
def test_the_same_rows_twice_are_refused(held, relation):
    """A training could not be refuted by them, however it leaks."""
    with pytest.raises(InvalidInputError, match=r"both worlds hold the same rows.*coalmine\.neighbours"):
        check_neighbours(Worlds(world0=held(0, 1, 2, 3), world1=held(0, 1, 2, 3), relation=relation))
    with pytest.raises(InvalidInputError, match="both worlds hold the same rows"):
        check_neighbours(Worlds(world0=ROWS, world1=ROWS[::-1], relation=relation))


def test_copies_that_are_not_there_are_refused(held):
    """The claim would be that of a group, for worlds that differ in one row."""
    with pytest.raises(InvalidInputError, match=r"copies = 5 .* differ in 1 row: expected copies=1"):
        check_neighbours(Worlds(world0=held(0, 1, 2, 3), world1=held(0, 1, 2, 3, 4), copies=5))


def test_others_are_refused(held):
    with pytest.raises(InvalidInputError, match=r"0 rows are only in world 0 and 2 rows only in world 1.*copies=2"):
        check_neighbours(Worlds(world0=held(0, 1, 2), world1=held(0, 1, 2, 3, 4)))
    with pytest.raises(InvalidInputError, match=r"1 row is only in world 0 and 1 row only.*relation='replace'"):
        check_neighbours(Worlds(world0=held(0, 1, 2), world1=held(0, 1, 3)))
    with pytest.raises(InvalidInputError, match="preparation that looks at all rows belongs into train"):
        check_neighbours(Worlds(world0=held(0, 1, 2), world1=held(3, 4, 5)))
    with pytest.raises(InvalidInputError, match="by 'replace': 0 rows are only"):
        check_neighbours(Worlds(world0=held(0, 1, 2), world1=held(0, 1, 2, 3), relation="replace"))


def test_numbers_count_by_value():
    assert check_neighbours(Worlds(world0=np.array([1, 2]), world1=np.array([1, 2, 0.5])))
    assert check_neighbours(Worlds(world0=np.zeros((3, 2), dtype=np.float32), world1=torch.zeros(4, 2)))


@pytest.mark.parametrize("data", [3.0, "rows.csv", object(), {"sum": 3.0, "rows": 7}, (np.zeros(3), np.zeros(2)), None])
def test_what_has_no_rows_is_not_judged(data):
    assert not check_neighbours(Worlds(world0=data, world1={"sum": 9.0}))


def test_worlds_that_may_be_read_in_two_ways_say_how_they_were_read():
    users = {f"user {number}": np.zeros((5, 2)) for number in range(4)}
    more = {**users, "user 4": np.ones((5, 2))}
    with pytest.raises(InvalidInputError, match=r"a mapping is read as columns .* such as a user, give a list"):
        check_neighbours(Worlds(world0=users, world1=more))
    assert check_neighbours(Worlds(world0=list(users.items()), world1=list(more.items())))
    with pytest.raises(InvalidInputError, match=r"tuples of 2 and 2 parts are read as so many rows: columns"):
        check_neighbours(Worlds(world0=([0.0] * 6, [0] * 6), world1=([0.0] * 6 + [1.0], [0] * 7)))
    assert check_neighbours(Worlds(world0=(np.zeros(6), np.zeros(6)), world1=(np.r_[np.zeros(6), 1.0], np.zeros(7))))


def test_what_neighbours_cannot_be_made_of_says_what_to_give():
    sparse = pytest.importorskip("scipy.sparse").csr_matrix(np.eye(3))
    with pytest.raises(InvalidInputError, match=r"dataset = <.* is not allowed: .*coalmine\.Worlds"):
        neighbours(sparse, [1, 2, 3])
    with pytest.raises(InvalidInputError, match=r"no value for \['u1', 'u2'\] and one for \['u3'\].*read as columns"):
        neighbours({"u1": np.zeros(2), "u2": np.zeros(2)}, {"u3": 1.0})
