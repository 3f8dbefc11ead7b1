"""Causal language models: a loss whose rows do not meet, and the score of token sequences as canaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine import _validate
from coalmine.errors import InvalidInputError

if TYPE_CHECKING:
    import torch

IGNORED = -100
"""The label of a token that the loss leaves out, as Transformers has it."""


def row_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean loss −ln p(next token) of each row over its own tokens; 0 for a row without any.

    The ``loss`` of a model of Transformers is the mean over all tokens of a batch. With padding, its divisor counts the
    tokens of the other rows too, so a row changes what others add. The mean of these losses over the rows does not:
    ``row_losses(model(**inputs).logits, labels).mean()``.

    Args:
        logits: ``[rows, T, vocabulary]``, as the model gives them: those at t are for the token at t + 1.
        labels: ``[rows, T]``, the tokens; −100 where the loss leaves one out.

    Returns:
        ``[rows]``.

    >>> import torch
    >>> row_losses(torch.zeros(2, 3, 8), torch.tensor([[1, 2, 3], [1, 2, -100]])).double().numpy().round(4).tolist()
    [2.0794, 2.0794]
    """
    from torch.nn import functional

    if logits.ndim != 3 or labels.shape != logits.shape[:2]:
        raise InvalidInputError(
            f"labels has shape {tuple(labels.shape)} and logits {tuple(logits.shape)}: expected (rows, T) and "
            "(rows, T, vocabulary)"
        )
    following = labels[:, 1:]
    losses = functional.cross_entropy(logits[:, :-1].transpose(1, 2), following, ignore_index=IGNORED, reduction="none")
    return losses.sum(dim=1) / (following != IGNORED).sum(dim=1).clamp(min=1)


def canary_scores(
    model: Any, tokens: ArrayLike, *, last: int | None = None, rows_at_once: int = 64
) -> NDArray[np.float64]:
    """A score for each sequence of tokens: minus the model's loss on it, so a larger one speaks for "it was in".

    The same sequences under the model as it was before the training are a good yardstick: what counts is how much
    the training lowered the loss. Take them off: ``canary_scores(model, tokens) - canary_scores(start, tokens)``.

    Args:
        model: a causal language model: ``model(input_ids=...)`` gives an object with ``logits``. It is asked in
            evaluation mode and left in the mode that it was in.
        tokens: ``[sequences, T]``, such as ``x`` of :func:`coalmine.one_run.canaries.random_tokens`.
        last: how many tokens at the end count; all but the first unless given. For ``new_tokens`` one.
        rows_at_once: sequences in one call of the model.

    Returns:
        ``[sequences]``.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> class Uniform(torch.nn.Module):
    ...     def forward(self, input_ids):
    ...         return SimpleNamespace(logits=torch.zeros(*input_ids.shape, 8))
    >>> canary_scores(Uniform(), [[1, 2, 3]]).round(4).tolist()
    [-2.0794]
    """
    import torch

    rows = np.asarray(tokens)
    if rows.ndim != 2 or rows.dtype.kind not in "iu" or rows.shape[1] < 2:
        raise InvalidInputError(
            f"tokens has shape {rows.shape} ({rows.dtype}): expected whole numbers, (sequences, two or more tokens)"
        )
    if last is not None:
        _validate.integer("last", last, at_least=1, at_most=rows.shape[1] - 1)
    at_once = _validate.integer("rows_at_once", rows_at_once, at_least=1)
    _validate.instance("model", model, torch.nn.Module)
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    inputs = torch.from_numpy(rows.astype(np.int64))
    labels = inputs.clone()
    if last is not None:
        labels[:, : rows.shape[1] - last] = IGNORED
    modes = [(one, one.training) for one in model.modules()]
    losses = []
    model.eval()
    try:
        with torch.no_grad():
            for begin in range(0, rows.shape[0], at_once):
                some = slice(begin, begin + at_once)
                logits = model(input_ids=inputs[some].to(device)).logits.float()
                losses.append(row_losses(logits, labels[some].to(device)).double().cpu())
    finally:
        for one, training in modes:
            one.training = training
    return -torch.cat(losses).numpy() if losses else np.zeros(0)
