"""A paper's table or figure as cells: config, published value, tolerance, our value, verdict."""

from coalmine.studies.cells import Cell, Study, find, names
from coalmine.studies.run import CellResult, run_cell

__all__ = ["Cell", "CellResult", "Study", "find", "names", "run_cell"]
