"""The steps of the malicious data set as one compiled loop: normal numbers, factors, products, logarithms.

Imported only where numba is (see :mod:`coalmine.training.compiled`). The normal numbers are the trainer's own.
"""

import numpy as np

from coalmine.training.cpu_kernels import _compile, _exp, _fma, _log, add_noise

PIECE = 4096
"""Steps in one go: a power of two, and few enough for the cache."""
f32 = np.float32


@_compile()
def log_ratios(keys, steps, drawn, sigma, rate, few, out):
    """out[i] = Σ over steps of ln((1 − q) + q·exp(z/σ − 1/(2σ²) + b/σ²)), b = 1 in the first drawn[i] steps.

    ``few`` factors, a power of two, are multiplied before a logarithm is taken.
    """
    row = np.empty((1, PIECE), dtype=np.float32)
    scales = np.empty(1, dtype=np.float32)
    scales[0] = f32(1.0 / sigma)
    shift, lift = f32(-0.5 / sigma**2), f32(1.0 / sigma**2)
    q, rest = f32(rate), f32(1.0 - rate)
    for i in range(keys.shape[0]):
        total = 0.0
        for first in range(0, steps, PIECE):
            count = min(PIECE, steps - first)
            exponents = row[0]
            exponents[:] = shift
            for j in range(min(max(drawn[i] - first, 0), count)):
                exponents[j] += lift
            add_noise(row, count, keys[i : i + 1], first // PIECE + 1, scales)
            for j in range(count):
                exponents[j] = _fma(q, _exp(exponents[j]), rest)
            for j in range(count, PIECE):
                exponents[j] = f32(1.0)
            width, left = PIECE, few
            while left > 1:
                width, left = width // 2, left // 2
                for j in range(width):
                    exponents[j] *= exponents[width + j]
            for j in range(width):
                exponents[j] = _log(exponents[j])
            for j in range(width):
                total += exponents[j]
        out[i] = total
