"""Neighbours of a pandas frame: the index stays what it is, and the canary may be a frame, a Series or a mapping."""

import datetime

import numpy as np
import pytest

from coalmine import neighbours
from coalmine.errors import InvalidInputError
from coalmine.integrations import Worlds
from coalmine.integrations.content import content_hash
from coalmine.integrations.rows import check_neighbours

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
DATES = pandas.date_range("2024-01-01", periods=3)


def frame(index=None):
    return pandas.DataFrame({"age": [1, 2, 3], "name": ["a", "b", "c"]}, index=index)


def canary(label):
    return pandas.DataFrame({"age": [9], "name": ["z"]}, index=[label])


ROW = {"age": 9, "name": "z"}


@pytest.mark.parametrize(
    ("index", "row", "labels"),
    [
        (None, ROW, [0, 1, 2, 3, 4]),
        (pandas.RangeIndex(10, 16, 2), ROW, [10, 12, 14, 16, 18]),
        ([50, 70, 60], ROW, [50, 70, 60, 71, 72]),
        ([50, 70, 60], pandas.Series(ROW, name=70), [50, 70, 60, 71, 72]),
        ([50, 70, 60], canary(7), [50, 70, 60, 7, 7]),
        (["x", "y", "z"], pandas.Series(ROW, name="w"), ["x", "y", "z", "w", "w"]),
        (["x", "y", "z"], canary("w"), ["x", "y", "z", "w", "w"]),
        (DATES, pandas.Series(ROW, name="2024-02-01"), [*DATES, *pandas.to_datetime(["2024-02-01"] * 2)]),
        (
            pandas.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)]),
            pandas.Series(ROW, name=("b", 2)),
            [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("b", 2)],
        ),
    ],
)
def test_the_index_of_a_frame_goes_on_in_world_1(index, row, labels):
    """A right training that reads it would else be refuted by the index alone."""
    data = frame(index).rename_axis(index="who") if not isinstance(index, pandas.MultiIndex) else frame(index)
    worlds = neighbours(data, row, copies=2)
    assert worlds.world0 is data
    assert worlds.world1.index.tolist() == labels
    assert (type(worlds.world1.index), worlds.world1.index.names) == (type(data.index), data.index.names)
    assert worlds.world1.iloc[:3].equals(data)
    assert worlds.world1["age"].tolist() == [1, 2, 3, 9, 9]
    assert check_neighbours(worlds)


@pytest.mark.parametrize(
    ("index", "row", "labels"),
    [
        (None, ROW, [0, 1, 2]),
        ([50, 70, 60], ROW, [50, 70, 60]),
        (["x", "y", "z"], ROW, ["x", "y", "z"]),
        (["x", "y", "z"], canary("y"), ["x", "y", "z"]),
        (["x", "y", "z"], canary("w"), ["x", "w", "z"]),
    ],
)
def test_a_row_that_is_replaced_leaves_its_label_unless_the_canary_has_one(index, row, labels):
    worlds = neighbours(frame(index), row, relation="replace", row=1)
    assert (worlds.world1.index.tolist(), worlds.world1["age"].tolist()) == (labels, [1, 9, 3])


@pytest.mark.parametrize(
    ("index", "row", "words"),
    [
        (["x", "y", "z"], ROW, r"no label for the index .* frame of one row .*like 'z'.*reset_index"),
        (["x", "y", "z"], canary("y"), "has the label 'y', which another row"),
        (DATES, pandas.Series(ROW, name="soon"), "label 'soon' does not fit the index"),
        (DATES, canary("soon"), "label 'soon' does not fit the index"),
        (pandas.CategoricalIndex(["x", "y", "z"]), canary("w"), "label 'w' does not fit the index"),
        (None, pandas.concat([canary(1), canary(2)]), "a frame of 2 rows: expected one row"),
        (None, {**ROW, "height": 1}, r"it has one for \['height'\]: expected a value for each of"),
        (None, ["z", 9], r"canary = \['z', 9\] does not fit .* mapping from columns"),
        (None, {**ROW, "age": "old"}, r"canary\['age'\] = 'old' does not fit a column of int64"),
        (None, {**ROW, "age": float("nan")}, r"canary\['age'\] = nan does not fit a column of int64"),
    ],
)
def test_a_canary_that_does_not_fit_is_refused_on_one_line(index, row, words):
    with pytest.raises(InvalidInputError, match=words) as raised:
        neighbours(frame(index), row)
    assert "\n" not in str(raised.value)


def test_dates_and_missing_values():
    data = pandas.DataFrame({"day": DATES, "note": ["a", None, "c"], "size": [0.5, 1.0, np.nan]})
    worlds = neighbours(data, {"day": "2024-05-01", "note": None, "size": float("nan")})
    assert worlds.world1["day"].iloc[3] == pandas.Timestamp("2024-05-01")
    assert worlds.world1.iloc[3][["note", "size"]].isna().all()
    with pytest.raises(InvalidInputError, match=r"canary\['day'\] = '2024-02-31' does not fit a column of datetime64"):
        neighbours(data, {"day": "2024-02-31", "note": "d", "size": 1.0})


def test_what_a_frame_keeps_beside_its_columns_stays_and_counts():
    data = frame()
    data.attrs["clip"] = 2.0
    assert neighbours(data, ROW).world1.attrs == {"clip": 2.0}
    assert content_hash(data) != content_hash(frame())


def test_indexes_that_differ_are_rows_that_differ():
    more = pandas.concat([frame(), canary(3)])
    assert check_neighbours(Worlds(world0=frame(), world1=more))
    assert check_neighbours(Worlds(world0=more.drop(1).reset_index(drop=True), world1=more.reset_index(drop=True)))
    assert check_neighbours(
        Worlds(world0=frame(["x", "y", "z"]), world1=pandas.concat([frame(["x", "y", "z"]), canary("w")]))
    )
    days = [datetime.date(2024, 1, day) for day in (1, 2, 3)]  # labels without a content are not compared
    assert check_neighbours(Worlds(world0=frame(days), world1=pandas.concat([frame(days), canary(days[0])])))
    for others in ([100, 101, 102], ["x", "y", "z"]):
        with pytest.raises(
            InvalidInputError, match=r"3 rows are only in world 0.*differ in their indexes.*reset_index"
        ):
            check_neighbours(Worlds(world0=frame(others), world1=more))
    with pytest.raises(InvalidInputError, match="differ in their indexes"):
        check_neighbours(Worlds(world0=(frame([7, 8, 9]), np.zeros(3)), world1=(more, np.zeros(4))))
