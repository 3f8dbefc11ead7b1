"""Evidence that others can check: an audit as one file, and the check of such a file by somebody who trusts nobody.

:func:`bundle` writes config, claim, versions, fingerprints, the score of every trial, all that they prove, and the
report, with checksums; :func:`verify` computes everything again from the scores and trains a sample of the trials anew.
Nothing that a bundle holds is ever executed.
"""

from coalmine.evidence.bundling import bundle
from coalmine.evidence.verification import Check, Verification
from coalmine.evidence.verifying import verify

__all__ = ["Check", "Verification", "bundle", "verify"]
