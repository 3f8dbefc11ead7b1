"""Compiled kernels for a CPU (numba): what a convolution network's stages do beside matrix products.

:mod:`coalmine.training.compiled_stages` calls them. Pictures lie place by place, as in
:mod:`coalmine.training.stages`. Loops run along the channels, which lie side by side, so that they become vector code.
"""

import numpy as np

from coalmine.training.cpu_kernels import compile_kernel


@compile_kernel()
def cut_patches(x, rows, out, wide, room, high_kernel, run, down, right, high_out, wide_out):
    """Row after row of each patch of the examples ``rows``: ``run`` numbers that lie side by side."""
    for n in range(rows.size):
        picture = x[rows[n]]
        for i in range(high_out):
            for j in range(wide_out):
                patch = out[(n * high_out + i) * wide_out + j]
                for k in range(high_kernel):
                    at = ((i * down + k) * wide + j * right) * room
                    source, target = picture[at : at + run], patch[k * run : k * run + run]
                    for c in range(run):
                        target[c] = source[c]


@compile_kernel()
def put_back(columns, d, examples, wide, room, high_kernel, run, down, right, high_out, wide_out):
    """Errors of patches, added up where the patches were cut."""
    for n in range(examples):
        picture = d[n]
        picture[:] = np.float32(0.0)
        for i in range(high_out):
            for j in range(wide_out):
                patch = columns[(n * high_out + i) * wide_out + j]
                for k in range(high_kernel):
                    at = ((i * down + k) * wide + j * right) * room
                    target, source = picture[at : at + run], patch[k * run : k * run + run]
                    for c in range(run):
                        target[c] += source[c]


@compile_kernel()
def add_squares(gradients, examples, squares):
    """Squared norm of each example's numbers, in sixteen sums side by side."""
    parts = np.zeros(16, dtype=np.float32)
    for n in range(examples):
        row = gradients[n]
        parts[:] = np.float32(0.0)
        whole = row.size // 16
        for k in range(whole):
            piece = row[16 * k : 16 * k + 16]
            for c in range(16):
                parts[c] += piece[c] * piece[c]
        for k in range(16 * whole, row.size):
            parts[0] += row[k] * row[k]
        squares[n] += parts.sum()


@compile_kernel()
def rectified(y, bias, places):
    """Outputs of a stage, biases added, negative ones 0."""
    zero = np.float32(0.0)
    for p in range(places):
        row = y[p]
        for o in range(bias.size):
            value = row[o] + bias[o]
            row[o] = value if value > zero else zero


@compile_kernel()
def pool_largest(y, examples, high, wide, window, step, high_out, wide_out, x, which, size_wide, room, top, left):
    """The largest number of each window into the next picture, and its (first) place in the window."""
    channels = y.shape[1]
    for n in range(examples):
        for i in range(high_out):
            for j in range(wide_out):
                to = ((i + top) * size_wide + j + left) * room
                best = x[n, to : to + channels]
                place = which[(n * high_out + i) * wide_out + j]
                first = y[(n * high + i * step) * wide + j * step]
                for o in range(channels):
                    best[o] = first[o]
                    place[o] = 0
                for k in range(1, window * window):
                    other = y[(n * high + i * step + k // window) * wide + j * step + k % window]
                    for o in range(channels):
                        larger = other[o] > best[o]
                        best[o] = other[o] if larger else best[o]
                        place[o] = np.int8(k) if larger else place[o]


@compile_kernel()
def unpool_largest(y, examples, high, wide, window, step, high_out, wide_out, d, which, size_wide, room, top, left):
    """Errors of the next picture back to the places of the maxima, over the outputs ``y`` that are no longer needed."""
    channels = y.shape[1]
    zero = np.float32(0.0)
    for n in range(examples):
        for p in range(high * wide):
            row = y[n * high * wide + p]
            for o in range(channels):
                row[o] = zero
        for i in range(high_out):
            for j in range(wide_out):
                at = ((i + top) * size_wide + j + left) * room
                error = d[n, at : at + channels]
                place = which[(n * high_out + i) * wide_out + j]
                for k in range(window * window):
                    target = y[(n * high + i * step + k // window) * wide + j * step + k % window]
                    for o in range(channels):
                        target[o] += error[o] if place[o] == k else zero


@compile_kernel()
def _share(sums, groups, width, places):
    """The mean over a group's channels and places, for each of its channels."""
    for g in range(groups):
        total = np.float32(0.0)
        for o in range(g * width, (g + 1) * width):
            total += sums[o]
        for o in range(g * width, (g + 1) * width):
            sums[o] = total / np.float32(width * places)


@compile_kernel()
def normalize(y, bias, examples, places, groups, epsilon, scale, shift, normed, spreads):
    """Outputs to mean 0 and variance 1 in each group of channels of an example, then scaled and shifted."""
    channels = y.shape[1]
    width = channels // groups
    sums = np.zeros(channels, dtype=np.float32)
    for n in range(examples):
        rows, hats = y[n * places : (n + 1) * places], normed[n * places : (n + 1) * places]
        sums[:] = np.float32(0.0)
        for p in range(places):
            row = rows[p]
            for o in range(channels):
                row[o] += bias[o]
                sums[o] += row[o]
        _share(sums, groups, width, places)
        means = sums.copy()
        sums[:] = np.float32(0.0)
        for p in range(places):
            row, hat = rows[p], hats[p]
            for o in range(channels):
                hat[o] = row[o] - means[o]
                sums[o] += hat[o] * hat[o]
        _share(sums, groups, width, places)
        spread = spreads[n]
        for o in range(channels):
            spread[o] = np.sqrt(sums[o] + epsilon)
        for p in range(places):
            row, hat = rows[p], hats[p]
            for o in range(channels):
                hat[o] = hat[o] / spread[o]
                row[o] = hat[o] * scale[o] + shift[o]


@compile_kernel()
def normalize_back(e, examples, places, groups, scale, normed, spreads, scales, shifts):
    """Errors of a norm's input, over those of its output; each example's gradient in scale and shift."""
    channels = e.shape[1]
    width = channels // groups
    for n in range(examples):
        rows, hats, spread = e[n * places : (n + 1) * places], normed[n * places : (n + 1) * places], spreads[n]
        tilts, totals = scales[n], shifts[n]
        tilts[:] = np.float32(0.0)
        totals[:] = np.float32(0.0)
        for p in range(places):
            row, hat = rows[p], hats[p]
            for o in range(channels):
                tilts[o] += row[o] * hat[o]
                totals[o] += row[o]
        tilt, mean = tilts * scale, totals * scale
        _share(tilt, groups, width, places)
        _share(mean, groups, width, places)
        for p in range(places):
            row, hat = rows[p], hats[p]
            for o in range(channels):
                row[o] = (row[o] * scale[o] - mean[o] - hat[o] * tilt[o]) / spread[o]
