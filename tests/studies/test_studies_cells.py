"""Studies as data: every cell of every study is a valid audit, and verdicts are what they say."""

import pytest

from coalmine.adversaries import adversary
from coalmine.errors import InvalidInputError
from coalmine.studies import find, names
from coalmine.studies.run import VERDICTS, verdict


@pytest.mark.parametrize("name", names())
def test_every_cell_is_a_valid_audit(name):
    study = find(name)
    assert len({cell.name for cell in study.cells}) == len(study.cells)
    for cell in study.cells:
        for settings in cell.configs(copies=(1, 8), trials=100):
            assert settings.audit.trials == 100
            adversary(settings.adversary[0].name, **settings.adversary[0].options)
    for scale in ("quick", "paper"):
        assert study.chosen(scale)
        assert study.scale(scale).trials >= 4
    assert study.citation
    assert all(scale.tolerance > 0 for scale in study.scales.values())


def test_cells_carry_the_published_values_of_table_2():
    study = find("jagielski-2020/table-2")
    cell = study.cell("sigma=1.55,init=0,clip=1")
    assert cell.published == 0.75
    assert [s.adversary[0].options["copies"] for s in cell.configs(copies=(1, 2, 4, 8), trials=2000)] == [1, 2, 4, 8]
    assert cell.configs(copies=(1,), trials=4)[0].training.noise_multiplier == 1.55


def test_an_adversary_without_copies_is_run_once():
    study = find("jagielski-2020/figure-2")
    cell = next(cell for cell in study.cells if cell.tree["adversary"][0]["name"] == "membership")
    assert len(cell.configs(copies=(1, 2, 4, 8), trials=100)) == 1


@pytest.mark.parametrize(
    ("ours", "published", "proved", "expected"),
    [(0.70, 0.75, 1.0, "matches"), (1.0, 0.75, 1.0, "tighter"), (0.5, 0.75, 1.0, "falls short"),
     (0.75, 0.75, 3.5, "INVALID"), (0.5, None, 1.0, "no published value"), (0.5, None, 4.0, "INVALID")],
)  # fmt: skip
def test_verdicts(ours, published, proved, expected):
    assert verdict(ours, published=published, tolerance=0.15, proved=proved, guarantee=3.17) == expected
    assert expected in VERDICTS


def test_unknown_names():
    with pytest.raises(InvalidInputError, match="did you mean"):
        find("jagielski-2020/table-22")
    with pytest.raises(InvalidInputError, match="did you mean"):
        find("jagielski-2020/table-2").cell("sigma=1.55,init=0,clip=3")
