"""Coalmine measures how much a differentially private training algorithm really leaks."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coalmine import one_run
    from coalmine.auditing.config import AuditConfig, Execution
    from coalmine.auditing.results import AdversaryResult, AuditResult
    from coalmine.auditing.run import audit
    from coalmine.auditing.stored import stored_result
    from coalmine.errors import (
        BlocksFailedError,
        CoalmineError,
        DataError,
        GameStoppedError,
        InvalidInputError,
        StoreError,
        UnsupportedError,
        WorkersDiedError,
    )
    from coalmine.evidence import Verification, bundle, verify
    from coalmine.integrations import Worlds, audit_function, neighbours
    from coalmine.probing.accountant import check_accountant
    from coalmine.probing.findings import Finding, Measurement, ProbeReport
    from coalmine.probing.private_step import PrivateStep
    from coalmine.probing.probe import probe
    from coalmine.probing.sampler import probe_sampler
    from coalmine.probing.watch import watch
    from coalmine.records import (
        Counts,
        DpSgd,
        EpsilonClaim,
        Estimate,
        Guarantee,
        Heuristic,
        LowerBound,
        MechanismClaim,
        OneRunScores,
        Outcome,
        Relation,
        Sampling,
        Scores,
        Verdict,
    )
    from coalmine.store import Store

__all__ = [
    "AdversaryResult",
    "AuditConfig",
    "AuditResult",
    "BlocksFailedError",
    "CoalmineError",
    "Counts",
    "DataError",
    "DpSgd",
    "EpsilonClaim",
    "Estimate",
    "Execution",
    "Finding",
    "GameStoppedError",
    "Guarantee",
    "Heuristic",
    "InvalidInputError",
    "LowerBound",
    "Measurement",
    "MechanismClaim",
    "OneRunScores",
    "Outcome",
    "PrivateStep",
    "ProbeReport",
    "Relation",
    "Sampling",
    "Scores",
    "Store",
    "StoreError",
    "UnsupportedError",
    "Verdict",
    "Verification",
    "WorkersDiedError",
    "Worlds",
    "__version__",
    "audit",
    "audit_function",
    "bundle",
    "check_accountant",
    "neighbours",
    "one_run",
    "probe",
    "probe_sampler",
    "stored_result",
    "verify",
    "watch",
]
__version__ = "0.1.0"

_ROOMS = {
    "coalmine.auditing.config": "AuditConfig Execution",
    "coalmine.auditing.results": "AdversaryResult AuditResult",
    "coalmine.auditing.run": "audit",
    "coalmine.auditing.stored": "stored_result",
    "coalmine.errors": "BlocksFailedError CoalmineError DataError GameStoppedError InvalidInputError StoreError "
    "UnsupportedError WorkersDiedError",
    "coalmine.evidence": "Verification bundle verify",
    "coalmine.integrations": "Worlds audit_function neighbours",
    "coalmine.probing.accountant": "check_accountant",
    "coalmine.probing.findings": "Finding Measurement ProbeReport",
    "coalmine.probing.private_step": "PrivateStep",
    "coalmine.probing.probe": "probe",
    "coalmine.probing.sampler": "probe_sampler",
    "coalmine.probing.watch": "watch",
    "coalmine.records": "Counts DpSgd EpsilonClaim Estimate Guarantee Heuristic LowerBound "
    "MechanismClaim OneRunScores Outcome Relation Sampling Scores Verdict",
    "coalmine.store": "Store",
}
_WHERE = {name: room for room, names in _ROOMS.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Names are loaded when they are asked for: the mathematics does without torch, and nobody waits for it."""
    if name in _WHERE:
        try:
            return getattr(importlib.import_module(_WHERE[name]), name)
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] != "torch":
                raise
            hint = f"coalmine.{name} needs torch: install it with pip install 'coalmine[train]'"
            raise ModuleNotFoundError(hint, name="torch") from error
    if name == "one_run":  # a room that is a door by itself
        return importlib.import_module("coalmine.one_run")
    raise AttributeError(f"module 'coalmine' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
