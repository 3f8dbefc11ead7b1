"""What tests of evidence share: a small audit, and a look into a bundle."""

import zipfile

from coalmine.auditing.config import Execution
from coalmine.evidence import archive

INLINE = Execution(engine="inline", workers=1)
SETTINGS = {
    "data": {"name": "synthetic", "rows": 60},
    "model": {"kind": "logistic"},
    "training": {"steps": 4, "sample_rate": 0.5, "noise_multiplier": 1.0},
    "audit": {"trials": 64},
    "adversary": [{"name": "clipbkd", "copies": 2}, {"name": "malicious-dataset"}],
}


def members(path):
    """Every member of a bundle but its manifest."""
    with zipfile.ZipFile(path) as bundle:
        return {name: bundle.read(name) for name in bundle.namelist() if name != archive.MANIFEST}
