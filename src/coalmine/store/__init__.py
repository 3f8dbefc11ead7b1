"""Trials on disk. A run is known by its fingerprint; a block of its trials is one transaction: done means committed.

The store knows no game: it keeps numbers under a fingerprint and gives them back in the order of the trial index.
"""

from coalmine.store.records import BlockResult, Failure, Run, Trials
from coalmine.store.sqlite import SCHEMA_VERSION, Store

__all__ = ["SCHEMA_VERSION", "BlockResult", "Failure", "Run", "Store", "Trials"]
