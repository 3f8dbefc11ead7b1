"""A paper's table or figure as cells: config, published value, tolerance, our value, verdict."""

from coalmine.studies.cells import Cell, Scale, Study, find, names
from coalmine.studies.measures import Bench, Measure, Measured
from coalmine.studies.run import CellResult, run_cell, run_cells, train_cell

__all__ = [
    "Bench",
    "Cell",
    "CellResult",
    "Measure",
    "Measured",
    "Scale",
    "Study",
    "find",
    "names",
    "run_cell",
    "run_cells",
    "train_cell",
]
