"""`blank-row`: one row of zeros and the final model's loss there (Annamalai and De Cristofaro 2024)."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.adversaries.attack import Attack, Scene, ThreatModel
from coalmine.adversaries.clipbkd import class_scores
from coalmine.adversaries.crafters.differentiable import Differentiable
from coalmine.adversaries.distinguishers.final import Loss, planted
from coalmine.errors import UnsupportedError
from coalmine.training import GivenWeights, takes_tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlankRow:
    """World 1 has one row of zeros more, with ``label``; the score is minus its loss at the final model.

    Without a label it is the one that is least likely there: for the model that training starts at where that is given
    (the row's gradient then stays long), else for a softmax regression on the data.
    """

    label: int | None = None

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=Loss.view,
        access="black box (its loss at one point)",
        modification="malicious sample",
        dataset="not modified",
        summary="Adds a row of zeros and asks the final model for its loss there.",
        paper="Annamalai and De Cristofaro 2024 (arXiv 2405.14106)",
    )

    def __post_init__(self) -> None:
        if self.label is not None:
            _validate.integer("label", self.label, at_least=0)

    def craft(self, scene: Scene) -> Attack:
        """Choose the label."""
        scene.require_learning("blank-row")
        if takes_tokens(scene.network):
            raise UnsupportedError("a blank row has zeros for features, and tokens have no zero: use api")
        x = np.zeros(scene.base.shape, dtype=scene.base.x.dtype)
        label = self.label
        if label is None:
            label = _least_likely(scene, x)
        elif label >= scene.classes:
            raise _validate.reject("label", label, f"a label from 0 to {scene.classes - 1}")
        return planted(scene.base, x, label, f"the canary is a row of zeros with label {label}")


def _least_likely(scene: Scene, x: NDArray[Any]) -> int:
    """The label that the first model, or a simple one, gives the least chance at this row."""
    start = scene.training.initialization
    if isinstance(start, GivenWeights):
        body = Differentiable(scene.network, device=torch.device("cpu"), dtype=torch.float64)
        model = torch.from_numpy(start.values.copy())[None]
        return int(body.logits(model, torch.from_numpy(x.astype(np.float64))[None])[0].argmin())
    flat = np.asarray(scene.base.x, dtype=np.float64).reshape(scene.base.rows, -1)
    return int(class_scores(flat, scene.base.y, np.zeros((1, flat.shape[1])), classes=scene.classes)[0].argmin())
