"""What a tolerated belief costs: a short sweep over beliefs on the user's own data and model (bernau-2021, 5.1).

Each belief ρβ gives ε by eq. (5), ε gives the noise, and a few trainings with that noise give the accuracy.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.auditing import promises
from coalmine.auditing.config import AuditConfig, Execution
from coalmine.auditing.setting import Setting, prepare
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.identifiability import belief as beliefs
from coalmine.identifiability import choose
from coalmine.identifiability.choose import Point, Sweep
from coalmine.records import DpSgd
from coalmine.roles import Observer, Queries, View
from coalmine.training import Dataset, Neighbours, accuracy, train

GRID = (0.52, 0.6, 0.75, 0.9, 0.99)
"""The beliefs that are tried beside the one asked for; the paper's four, and one more where the curve bends."""
_TEST_ROWS = 2000


def sweep(
    settings: AuditConfig,
    *,
    belief: float | None = None,
    advantage: float | None = None,
    grid: Sequence[float] = GRID,
    trainings: int = 8,
    execution: Execution | None = None,
    progress: Callable[[str], None] | None = None,
) -> Sweep:
    """ε, σ and the accuracy that a tolerated belief (or advantage) costs on this data and model.

    δ, steps and sampling rate are those of the config, its noise is not used. All trainings share their random streams
    across beliefs, so that the points differ by the noise's size and not by its luck.
    """
    if (belief is None) == (advantage is None):
        raise InvalidInputError("give exactly one of belief and advantage")
    trainings = _validate.integer("trainings", trainings, at_least=2)
    if settings.training.noise_scale != "clip":
        raise InvalidInputError(
            "training.noise_scale = 'local' is not allowed here: expected 'clip' (noise scaled to the local "
            "sensitivity promises nothing to other people, so no belief can be promised with it)"
        )
    setting = prepare(settings, data_dir=execution.data_dir if execution else None)
    if setting.test is None:
        raise UnsupportedError(f"data set {settings.data.name!r} has no test rows: its accuracy cannot be measured")
    delta, steps, rate = settings.audit.delta, setting.training.steps, setting.sample_rate

    def for_belief(value: float) -> choose.Choice:
        return choose.from_belief(value, delta=delta, steps=steps, sample_rate=rate)

    if belief is not None:
        choice = for_belief(belief)
        asked = choice.belief
    else:
        assert advantage is not None
        choice = choose.from_advantage(advantage, delta=delta, steps=steps, sample_rate=rate)
        asked = _belief_at(choice.noise_multiplier["exact"], setting=setting)
    choices = {asked: choice}
    for one in grid:
        if all(abs(one - other) > 1e-6 for other in choices):
            choices[one] = for_belief(one)
    device = execution.device if execution else "cpu"
    points = []
    for one in sorted(choices):
        if progress is not None:
            progress(f"belief {one:.4g}: {trainings} trainings")
        sigma = choices[one].noise_multiplier["exact"]
        shares = accuracies(setting, noise_multiplier=sigma, trainings=trainings, device=device)
        points.append(
            Point(
                belief=one,
                epsilon=beliefs.to_epsilon(one),
                noise_multiplier=sigma,
                advantage=choices[one].actual_advantage["exact"],
                accuracy=float(shares.mean()),
                standard_error=float(shares.std(ddof=1)) / math.sqrt(trainings),
            )
        )
    free = accuracies(setting, noise_multiplier=0.0, trainings=trainings, device=device)
    return Sweep(
        chosen=next(point for point in points if point.belief == asked),
        points=tuple(points),
        without_noise=float(free.mean()),
        delta=delta,
        steps=steps,
        sample_rate=rate,
        trainings=trainings,
        test_rows=min(_TEST_ROWS, setting.test.rows),
        subject=f"{settings.data.name}, {setting.base.rows} rows, {settings.model.kind}",
        choice=choice,
    )


def _belief_at(sigma: float, *, setting: Setting) -> float:
    """The belief that this noise limits: that of its exact ε at the config's δ."""
    mechanism = DpSgd(
        sample_rate=setting.sample_rate,
        noise_multiplier=sigma,
        steps=setting.training.steps,
        sampling=setting.training.sampling,
    )
    return beliefs.from_epsilon(promises.epsilon(mechanism, delta=setting.config.audit.delta))


def accuracies(setting: Setting, *, noise_multiplier: float, trainings: int, device: str) -> NDArray[np.float64]:
    """The share of right answers on test rows of each training with this noise; one that broke down counts as 0."""
    assert setting.test is not None
    result = train(
        setting.network,
        neighbours=Neighbours(setting.base),
        config=dataclasses.replace(setting.training, noise_multiplier=noise_multiplier),
        fingerprint=f"choose {setting.config.audit.seed}",
        trials=np.arange(trainings),
        worlds=np.zeros(trainings, dtype=np.int64),
        observer=_Accuracy(setting.test),
        device=device,
    )
    assert result.scores is not None
    return np.nan_to_num(result.scores, nan=0.0)


class _Accuracy(Observer):
    """Asks the final models about test rows."""

    view = View.BLACK_BOX

    def __init__(self, test: Dataset) -> None:
        self._x, self._y = test.x[:_TEST_ROWS], test.y[:_TEST_ROWS]

    def finish(self, models: Queries) -> NDArray[np.float64]:
        """Shares of right answers."""
        return accuracy(models, x=self._x, y=self._y)
