"""Observers that keep what they see, for tests."""

from __future__ import annotations

import numpy as np

from coalmine.roles import Observer, View


class Final(Observer):
    """Keeps the final parameters, by trial."""

    view = View.FINAL_MODEL

    def __init__(self):
        self.parameters = {}

    def start(self, trials):
        self.started = trials

    def observe(self, iterate):
        raise AssertionError("a final_model observer must not be shown steps")

    def finish(self, models):
        for i, trial in enumerate(models.trials.tolist()):
            self.parameters[trial] = models.parameters[i].cpu().numpy().copy()


class Everything(Final):
    """Keeps every step, by trial."""

    view = View.ALL_ITERATES

    def __init__(self):
        super().__init__()
        self.gradients = {}
        self.before = {}
        self.after = {}

    def observe(self, iterate):
        for i, trial in enumerate(iterate.trials.tolist()):
            for kept, tensor in (
                (self.gradients, iterate.private_gradient),
                (self.before, iterate.previous),
                (self.after, iterate.parameters),
            ):
                kept.setdefault(trial, []).append(tensor[i].cpu().numpy().copy())


class Total(Final):
    """Keeps the sum of the private gradients, ``[trials, P]``."""

    view = View.ALL_ITERATES

    def __init__(self):
        super().__init__()
        self.totals = []

    def start(self, trials):
        self.totals.append(0.0)

    def observe(self, iterate):
        self.totals[-1] = self.totals[-1] + iterate.private_gradient.double()

    def total(self):
        return np.concatenate([t.cpu().numpy() for t in self.totals])


def stacked(kept, trials):
    """``[trials, steps, P]``."""
    return np.asarray([kept[t] for t in trials])
