"""Small stores for the view: audits of a one-step training that are played in a moment, and rows made by hand."""

import dataclasses
import functools
import json
import os
import shutil
import sqlite3
import time
from unittest import mock

import numpy as np

import coalmine
from coalmine.auditing.config import Execution
from coalmine.auditing.stored import AuditRecord, record_of
from coalmine.integrations import identity
from coalmine.store import BlockResult, Store, _audits, listing

TOKEN = "a-secret-of-this-start"
HOSTILE = '</script><script>window.owned = 1</script><img src=x onerror="window.owned=1">{{ 7*7 }}'


def train(dataset, seed):
    return np.clip(dataset, -1.0, 1.0).sum() + 2.0 * np.random.default_rng(seed).normal()


def leaky(dataset, seed):
    if seed % 23 == 0:
        raise ValueError("out of luck")
    return np.clip(dataset, -1.0, 1.0).sum() + 0.2 * np.random.default_rng(seed).normal()


def score(model):
    return model


def audited(path, training=train, *, name=None, tags=(), trials=96, seed=0, epsilon=None):
    """One audit, played and judged."""
    claim = (
        {"claim_dpsgd": coalmine.DpSgd(sample_rate=1.0, noise_multiplier=2.0, steps=1)}
        if epsilon is None
        else {"claim_epsilon": epsilon}
    )
    with mock.patch.object(identity, "followed", _by_name):
        return coalmine.audit_function(
            training,
            score,
            worlds=coalmine.neighbours(np.zeros(20), 1.0),
            trials=trials,
            seed=seed,
            confidence=0.95,
            store=path,
            execution=Execution(engine="inline"),
            name=name,
            tags=tags,
            **claim,
        )


def _by_name(name, function, *, real=identity.followed, **options):
    """Seeds follow from texts and versions: with some of them a right training, one in twenty, would be refuted."""
    return dataclasses.replace(real(name, function, **options), identity={"function": identity.label(function)})


@functools.cache
def _made(folder):
    path = os.path.join(folder, "made.db")
    audited(path, name="plain noise", tags=("nightly", "cpu"))
    audited(path, leaky, name="half the noise", tags=("nightly",), trials=192)
    audited(path, name=HOSTILE, tags=(HOSTILE,), seed=3, epsilon=8.0)
    return path


def small_store(folder, into):
    """A copy of a store with three audits: a right one, a refuted one with failures, and one with a hostile name."""
    path = os.path.join(into, "small.db")
    shutil.copy(_made(str(folder)), path)
    return path


def names(path):
    """Fingerprints of the audits by their names."""
    with Store.open(path, create=False, read_only=True) as store:
        return {one.name: one.fingerprint for one in listing.audits(store)}


def begun(path, like, *, trials, name):
    """An audit like another, with many more trials wanted, none of them there yet: its run and its fingerprint."""
    with Store.open(path) as store:
        record = record_of(store, like)
        run = f"{abs(hash(name)):016x}" * 2
        member = dataclasses.replace(record.members[0], run=run, wanted=trials)
        new: AuditRecord = dataclasses.replace(record, members=(member,))
        store.register(run, {"attack": member.attack.to_dict()})
        store.record_audit(new.name, new.to_dict(), members={run: trials}, name=name)
        return run, new.name


def block(number, *, size=16, seed=0, failed=()):
    """A block of trials: even ones in world 0; those of world 1 score 1 more."""
    trial = np.arange(number * size, (number + 1) * size)
    world = trial % 2
    values = np.random.default_rng([seed, number]).normal(size=size) + world
    lost = {int(trial[place]): "ran out of memory" for place in failed}
    values[list(failed)] = np.nan
    return BlockResult(trial=trial, world=world, score=values, elapsed=0.5, device="cpu float64", failures=lost)


def crowd(path, *, audits):
    """Many audits of one run each, written straight into the tables: as a store looks after a year."""
    with Store.open(path) as store:
        like = listing.audits(store)[0].fingerprint
        tree = json.loads(json.dumps(store.audit(like)))
    database = sqlite3.connect(path)
    now = time.time()
    with database:
        for number in range(audits):
            fingerprint = f"{number:08x}" + "ab" * 28
            run = f"{number:08x}" + "cd" * 28
            tree["subject"]["name"] = f"data {number % 7}"
            tree["members"][0]["run"] = run
            outcome = ("consistent", "refuted", "inconclusive")[number % 3]
            ended = {
                "coalmine": coalmine.__version__,
                "trials": {run: 100},
                "outcome": outcome,
                "claim": 4.0,
                "proved": {"on_data": number / 1000, "on_chosen_data": None},
                "epsilon": number / 1000,
                "ceiling": 3.0,
            }
            one = database.execute(
                "INSERT INTO run (fingerprint, description, created) VALUES (?, '{}', ?)", (run, now - number)
            ).lastrowid
            other = database.execute(
                "INSERT INTO audit (fingerprint, description, created, used) VALUES (?, ?, ?, ?)",
                (fingerprint, json.dumps(tree), now - number, now - number),
            ).lastrowid
            database.execute("INSERT INTO member VALUES (?, ?, 100)", (other, one))
            database.execute("INSERT INTO label VALUES (?, ?, ?)", (other, f"audit {number:05d}", '["crowd"]'))
            _audits.conclude(database, fingerprint, json.dumps(ended))
            database.execute(
                "INSERT INTO block (run, block, trials, failed, elapsed, device, created, columns, checksum, payload,"
                " first) VALUES (?, 0, 100, 0, 1.0, 'cpu', ?, '[]', 0, ?, 0)",
                (one, now - number, bytes(1700)),
            )
    database.close()
