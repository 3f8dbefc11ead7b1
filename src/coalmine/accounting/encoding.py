"""What data that writes the whole training into the final model reveals: last-iterate-2024, Section 4.4 and Appendix C.

With chosen data one parameter a step holds what the step did, N(A_t, σ²) with A_t ~ Bernoulli(q) (see the adversary
``encoding``). Kept as they are (``linear``), the T values are what one who sees every iterate has: the last iterate
then leaks what the standard analysis says, and the heuristic means nothing. Kept as one bit each (``one_bit``, the
paper's form), they leak less, and for large q·√T less than the heuristic: the paper's Figure 6 shows more than this
form has.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from coalmine import _validate
from coalmine.accounting import last_iterate, standard
from coalmine.accounting._common import check_counterexample
from coalmine.errors import UnsupportedError
from coalmine.records import DpSgd, plain
from coalmine.theory import bits

_MOST_WORK = 80_000.0
"""(1 + 6σ)·T at tenths: thresholds to try, times steps. It takes seconds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoded:
    """ε at δ of a final model that holds the whole training, beside the heuristic and the standard analysis.

    ``epsilon`` is never above what such data leaks: only then may it refute. ``standard`` is never below. ``threshold``
    is the test of the one-bit form, in units of the clipping norm.
    """

    form: str
    epsilon: float
    delta: float
    heuristic: float
    standard: float
    threshold: float | None = None

    @property
    def refutes_heuristic(self) -> bool:
        """Whether such data provably leaks more than the heuristic says."""
        return self.epsilon > self.heuristic + 1e-6

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {"kind": "encoding", **plain(dataclasses.asdict(self)), "refutes_heuristic": self.refutes_heuristic}


def one_bit(mechanism: DpSgd, *, delta: float, threshold: float | None = None, step: float = bits.TENTHS) -> Encoded:
    """Each step kept as the bit [A_t + N(0, σ²) ≥ τ], in exact arithmetic (:mod:`coalmine.theory.bits`).

    Without a ``threshold`` the best multiple of ``step`` is taken.

    >>> mechanism = DpSgd(sample_rate=0.1, noise_multiplier=0.611994, steps=10)
    >>> found = one_bit(mechanism, delta=1e-5)
    >>> found.threshold, round(found.epsilon, 3)
    (2.5, 6.464)
    """
    check_counterexample(mechanism)
    delta = _validate.open_unit("delta", delta)
    q, sigma, steps = mechanism.sample_rate, mechanism.noise_multiplier, mechanism.steps
    if threshold is None:
        step = _validate.positive("step", step)
        if (1.0 + 6.0 * sigma) * steps * (bits.TENTHS / step) > _MOST_WORK:
            raise UnsupportedError(
                f"the best threshold is not searched at noise_multiplier = {sigma:g} and {steps} steps, which takes "
                "long: expected fewer steps or less noise, or the form that keeps the values, linear (in Python, "
                "one_bit takes a threshold of your own too)"
            )
        threshold, value = bits.best_threshold(
            sample_rate=q, noise_multiplier=sigma, steps=steps, delta=delta, step=step
        )
    else:
        threshold = _validate.between("threshold", threshold, -1e6, 1e6)
        p0, p1 = bits.rates(threshold, sample_rate=q, noise_multiplier=sigma)
        value = bits.epsilon(delta, p0=p0, p1=p1, bits=steps)
    return _encoded("one-bit", mechanism, value=value, delta=delta, threshold=threshold)


def linear(mechanism: DpSgd, *, delta: float) -> Encoded:
    """Each step's value kept, with so large a gain that later noise is nothing to it: the standard analysis, tight.

    ``epsilon`` is :func:`coalmine.accounting.standard.epsilon_at_least`, which is never above what leaks, and
    ``standard`` the guarantee, which is never below: what leaks lies between them.

    >>> found = linear(DpSgd(sample_rate=0.1, noise_multiplier=0.611994, steps=10), delta=1e-5)
    >>> round(found.epsilon, 2), round(found.heuristic, 2)
    (8.0, 5.32)
    """
    check_counterexample(mechanism)
    delta = _validate.open_unit("delta", delta)
    return _encoded("linear", mechanism, value=standard.epsilon_at_least(mechanism, delta=delta), delta=delta)


def _encoded(form: str, mechanism: DpSgd, *, value: float, delta: float, threshold: float | None = None) -> Encoded:
    return Encoded(
        form=form,
        epsilon=value,
        delta=delta,
        heuristic=last_iterate.epsilon(mechanism, delta=delta).epsilon,
        standard=standard.epsilon(mechanism, delta=delta).epsilon,
        threshold=threshold,
    )
