"""What ε and δ promise a person: belief ρβ and advantage ρα, from theory alone (bernau-2021, Section 4)."""

from __future__ import annotations

from coalmine import _validate
from coalmine.identifiability import advantage, belief
from coalmine.studies.cells import Cell, Scale, Study
from coalmine.studies.measures import Bench, Measure, Measured


def measure(study: Study, cell: Cell, scale: Scale, bench: Bench) -> Measured:
    """A cell gives δ and either ``epsilon`` or ``belief``."""
    delta = float(cell.tree["delta"])
    epsilon = float(cell.tree["epsilon"]) if "epsilon" in cell.tree else belief.to_epsilon(cell.tree["belief"])
    columns: dict[str, float | str | None] = {
        "ε": epsilon,
        "ρβ": belief.from_epsilon(epsilon),
        "ρα": advantage.from_epsilon(epsilon, delta=delta),
        "ρα of any mechanism": advantage.generic(epsilon, delta=delta),
    }
    ours = columns[_validate.choice("ours", study.options.get("ours", "ρα"), columns)]
    assert isinstance(ours, float)
    return Measured(ours=ours, columns=columns, delta=delta)


MEASURE = Measure(
    measure=measure,
    columns={
        "ρβ": "1/(1 + e^−ε): how sure an adversary can become (Theorem 2)",
        "ρα": "advantage of the classically calibrated Gaussian mechanism (Theorem 3)",
        "ρα of any mechanism": "the most that (ε, δ) alone allows",
    },
)
