"""An independent truth for the composition of Poisson-sampled Gaussian steps: a contour integral, no convolution.

With the privacy loss L of one step under P and k(z) = log E[e^{zL}],

    δ(ε) = (1/2πi)·∫ exp(T·k(z) − z·ε)/(z·(z + 1)) dz   along Re z = θ > 0,

since (1 − e^{ε−L})₊ has that Laplace transform. Along the saddle θ the integrand decays like a Gaussian and the
trapezium rule converges geometrically, so δ has many right digits for hundreds of steps and more, however small it is.
E[e^{zL}] − 1 is integrated as such, so that T·k keeps its digits for T = 10⁷.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize


class OneStep:
    """P and Q of one step on a fine grid: (1 − q)·N(0, σ²) + q·N(1, σ²) and N(0, σ²), or the other way round."""

    def __init__(self, q: float, sigma: float, *, remove: bool) -> None:
        x = np.linspace(-14.0 * sigma - 1.0, 14.0 * sigma + 2.0, 6001)
        # log of (1 − q) + q·exp((2x − 1)/(2σ²)), without cancellation for small q
        shift = (2.0 * x - 1.0) / (2.0 * sigma**2)
        low = np.log1p(q * np.expm1(np.minimum(shift, 30.0)))
        high = np.log(q) + shift + np.log1p((1.0 / q - 1.0) * np.exp(-np.maximum(shift, 30.0)))
        ratio = np.where(shift < 30.0, low, high)
        base = np.exp(-(x**2) / (2.0 * sigma**2)) / (sigma * math.sqrt(2.0 * math.pi)) * (x[1] - x[0])
        self.loss = ratio if remove else -ratio
        self.weight = base * np.exp(ratio) if remove else base

    def cumulant(self, z: np.ndarray) -> np.ndarray:
        """k(z) = log E[e^{zL}], from E[e^{zL} − 1]."""
        return np.log1p(np.array([np.sum(self.weight * np.expm1(one * self.loss)) for one in z]))


def delta(q: float, sigma: float, steps: int, epsilon: float) -> float:
    """The larger of both directions."""
    return max(_one_way(OneStep(q, sigma, remove=way), steps, epsilon) for way in (True, False))


def _one_way(step: OneStep, steps: int, epsilon: float) -> float:
    def exponent(theta: float) -> float:
        k = float(step.cumulant(np.array([theta]))[0].real)
        return steps * k - theta * epsilon - math.log(theta) - math.log1p(theta)

    found = optimize.minimize_scalar(lambda t: exponent(math.exp(t)), bounds=(-12.0, 8.0), method="bounded")
    theta = math.exp(found.x)
    top = exponent(theta)
    width = 1e-3 * theta
    curvature = (exponent(theta + width) - 2.0 * top + exponent(theta - width)) / width**2
    u = np.linspace(0.0, 14.0 / math.sqrt(curvature), 601)
    z = theta + 1j * u
    values = np.exp(steps * step.cumulant(z) - z * epsilon - np.log(z) - np.log1p(z) - top).real
    integral = float(np.sum(values[1:]) + 0.5 * values[0]) * (u[1] - u[0])
    return math.exp(top) * integral / math.pi
