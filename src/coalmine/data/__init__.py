"""Data sets by name: found on disk or fetched from their official source, checked, and given back as plain arrays.

>>> digits = load("digits")
>>> digits.x_train.shape, digits.classes
((1442, 64), 10)
"""

from coalmine.data.loaded import LoadedData, standardize, subset
from coalmine.data.registry import Status, fetch, load, names, status, verify

__all__ = ["LoadedData", "Status", "fetch", "load", "names", "standardize", "status", "subset", "verify"]
