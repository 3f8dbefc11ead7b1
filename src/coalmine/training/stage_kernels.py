"""The Triton kernels of a step by stages; :mod:`coalmine.training.stages` says what a stage is and prepares their
arguments.

A picture lies in memory place by place, CP channels each (its C channels, and zeros up to a round number), zeros of its
padding included. The inputs of one place of the stage's output, its patch, are K = KH·KW·CP numbers, read where they
lie. ``pack`` puts the weights w, [O, K], into the same order, with the biases after them, and ``collect`` puts sums of
gradients back into the order of the parameter vector. Capital names are compile-time constants. Every program works on
one model alone, with tiles of a fixed shape.
"""

import triton
import triton.language as tl

from coalmine.training.kernels import product


@triton.jit
def corner(x_ptr, index_ptr, m, example, place, live, LANES: tl.constexpr, GATHER: tl.constexpr, SIZE: tl.constexpr,
           OW: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr):  # fmt: skip
    # Where the patch of this place begins: in the row of the data set that was drawn, or in the model's own picture.
    if GATHER:
        row = tl.load(index_ptr + m * LANES + example, mask=live, other=0).to(tl.int64)
    else:
        row = m * LANES + example
    return x_ptr + row * SIZE + (place // OW) * DOWN + (place % OW) * RIGHT


@triton.jit
def activated(z, ACT: tl.constexpr):
    if ACT == "relu":
        z = tl.maximum(z, 0.0)
    elif ACT == "tanh":
        z = 1.0 - 2.0 / (tl.exp(2.0 * z) + 1.0)
    elif ACT == "sigmoid":
        z = 1.0 / (1.0 + tl.exp(-z))
    return z


@triton.jit
def slope(y, ACT: tl.constexpr):
    # The derivative of the activation, from its output.
    s = y * 0.0 + 1.0
    if ACT == "relu":
        s = tl.where(y > 0.0, 1.0, 0.0)
    elif ACT == "tanh":
        s = 1.0 - y * y
    elif ACT == "sigmoid":
        s = y * (1.0 - y)
    return s


@triton.jit
def forward(
    x_ptr, index_ptr, count_ptr, label_ptr, w_ptr, y_ptr,
    GATHER: tl.constexpr, LANES: tl.constexpr, SIZE: tl.constexpr, W: tl.constexpr, CP: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, OW: tl.constexpr, P: tl.constexpr,
    O: tl.constexpr, OP: tl.constexpr, BIAS: tl.constexpr, ACT: tl.constexpr,
    EXACT: tl.constexpr, ROWS: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    # Outputs of a stage, before pooling; for the last one (ACT = "softmax") the errors softmax − one-hot.
    m = tl.program_id(1).to(tl.int64)
    used = tl.load(count_ptr + m) * P
    start = tl.program_id(0) * ROWS
    if start >= used:
        return
    rows = start + tl.arange(0, ROWS)
    live = rows < used
    at = corner(x_ptr, index_ptr, m, rows // P, rows % P, live, LANES, GATHER, SIZE, OW, SH * W * CP, SW * CP)
    unit = tl.arange(0, OP)
    K: tl.constexpr = KH * KW * CP
    w_at = w_ptr + m * (O * (K + 1))
    acc = tl.zeros((ROWS, OP), dtype=tl.float32)
    for k in range(0, K, KB):
        kk = k + tl.arange(0, KB)
        tap = kk // CP
        inside = live[:, None]
        there = (unit < O)[None, :]
        if K % KB != 0:
            inside = inside & (kk < K)[None, :]
            there = there & (kk < K)[:, None]
        xs = tl.load(at[:, None] + ((tap // KW) * W * CP + (tap % KW) * CP + kk % CP)[None, :], mask=inside, other=0.0)
        w = tl.load(w_at + unit[None, :] * K + kk[:, None], mask=there, other=0.0)
        acc = product(xs, w, acc, EXACT)
    if BIAS:
        acc += tl.load(w_at + O * K + unit, mask=unit < O, other=0.0)[None, :]
    if ACT == "softmax":
        acc = tl.where((unit < O)[None, :], acc, -1e30)
        acc = tl.exp(acc - tl.max(acc, 1)[:, None])
        row = tl.load(index_ptr + m * LANES + rows, mask=live, other=0)
        label = tl.load(label_ptr + row, mask=live, other=0)
        acc = acc / tl.sum(acc, 1)[:, None] - (unit[None, :] == label[:, None]).to(tl.float32)
    else:
        acc = activated(acc, ACT)
    to = y_ptr + m * (LANES * P * O) + rows[:, None] * O + unit[None, :]
    tl.store(to, acc, mask=live[:, None] & (unit < O)[None, :])


@triton.jit
def pool(
    y_ptr, count_ptr, x_ptr, which_ptr,
    LANES: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, O: tl.constexpr, ACT: tl.constexpr, KIND: tl.constexpr,
    PK: tl.constexpr, PS: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, SIZE: tl.constexpr, W: tl.constexpr,
    CP: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # Outputs, pooled, into the next stage's picture; which place of a window was its (first) maximum. No error comes
    # back through a rectifier that is shut: then it is none, and going back need not look at the outputs again.
    m = tl.program_id(1).to(tl.int64)
    used = tl.load(count_ptr + m) * (PH * PW * O)
    start = tl.program_id(0) * BLOCK
    if start >= used:
        return
    f = start + tl.arange(0, BLOCK)
    live = f < used
    o = f % O
    j = f // O % PW
    i = f // (O * PW) % PH
    example = f // (O * PW * PH)
    at = y_ptr + m * (LANES * OH * OW * O) + ((example * OH + i * PS) * OW + j * PS) * O + o
    best = tl.load(at, mask=live, other=0.0)
    if PK > 1:
        which = tl.zeros((BLOCK,), dtype=tl.int8)
        for n in tl.static_range(1, PK * PK):
            v = tl.load(at + (n // PK * OW + n % PK) * O, mask=live, other=0.0)
            if KIND == "max":
                which = tl.where(v > best, n, which).to(tl.int8)
                best = tl.maximum(best, v, propagate_nan=tl.PropagateNan.ALL)
            else:
                best += v
        if KIND == "max":
            if ACT == "relu":
                which = tl.where(best > 0.0, which, -1).to(tl.int8)
            tl.store(which_ptr + m * (LANES * PH * PW * O) + f, which, mask=live)
        else:
            best = best / (PK * PK)
    to = x_ptr + m * (LANES * SIZE) + example * SIZE + ((i + TOP) * W + j + LEFT) * CP + o
    tl.store(to, best, mask=live)


@triton.jit
def errors(
    y_ptr, count_ptr, d_ptr, which_ptr,
    LANES: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, O: tl.constexpr, ACT: tl.constexpr, KIND: tl.constexpr,
    PK: tl.constexpr, PS: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, SIZE: tl.constexpr, W: tl.constexpr,
    CP: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # Errors of a stage before its activation, from those of the next stage's picture, written over its outputs.
    m = tl.program_id(1).to(tl.int64)
    used = tl.load(count_ptr + m) * (OH * OW * O)
    start = tl.program_id(0) * BLOCK
    if start >= used:
        return
    f = start + tl.arange(0, BLOCK)
    live = f < used
    o = f % O
    j = f // O % OW
    i = f // (O * OW) % OH
    example = f // (O * OW * OH)
    d = d_ptr + m * (LANES * SIZE) + example * SIZE + (TOP * W + LEFT) * CP + o
    which = which_ptr + m * (LANES * PH * PW * O) + example * (PH * PW * O) + o
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for n in tl.static_range(0, PK * PK):
        # The window in which this is place n.
        a = i - n // PK
        b = j - n % PK
        inside = live & (a >= 0) & (b >= 0) & (a // PS < PH) & (b // PS < PW) & (a % PS == 0) & (b % PS == 0)
        v = tl.load(d + ((a // PS) * W + b // PS) * CP, mask=inside, other=0.0)
        if (KIND == "max") & (PK > 1):
            v = tl.where(tl.load(which + ((a // PS) * PW + b // PS) * O, mask=inside, other=-1) == n, v, 0.0)
        total += v
    if (KIND == "avg") & (PK > 1):
        total = total / (PK * PK)
    at = y_ptr + m * (LANES * OH * OW * O) + f
    if not ((KIND == "max") & (PK > 1) & (ACT == "relu")):
        total = total * slope(tl.load(at, mask=live, other=0.0), ACT)
    tl.store(at, total, mask=live)


@triton.jit
def back(
    e_ptr, count_ptr, w_ptr, d_ptr,
    LANES: tl.constexpr, SIZE: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, CP: tl.constexpr,
    NP: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, OH: tl.constexpr,
    OW: tl.constexpr, O: tl.constexpr, EXACT: tl.constexpr, ROWS: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    # Errors of a stage's picture. Places whose remainders by the strides agree are reached by the same places of the
    # kernel: for each such class of places this is one product, without a step that multiplies by zeros.
    m = tl.program_id(2).to(tl.int64)
    first = tl.program_id(1) // SW
    second = tl.program_id(1) % SW
    HC: tl.constexpr = (H + SH - 1) // SH
    WC: tl.constexpr = (W + SW - 1) // SW
    TH: tl.constexpr = (KH + SH - 1) // SH
    TW: tl.constexpr = (KW + SW - 1) // SW
    used = tl.load(count_ptr + m) * (HC * WC)
    start = tl.program_id(0) * ROWS
    if start >= used:
        return
    rows = start + tl.arange(0, ROWS)
    i = rows // WC % HC
    j = rows % WC
    example = rows // (WC * HC)
    live = (rows < used) & (first + SH * i < H) & (second + SW * j < W)
    e = e_ptr + m * (LANES * OH * OW * O) + example * (OH * OW * O)
    w_at = w_ptr + m * (O * (KH * KW * CP + 1))
    channel = tl.arange(0, NP)
    BLOCKS: tl.constexpr = (O + KB - 1) // KB
    acc = tl.zeros((ROWS, NP), dtype=tl.float32)
    for k in range(0, TH * TW * BLOCKS):
        o = k % BLOCKS * KB + tl.arange(0, KB)
        down = k // BLOCKS // TW
        right = k // BLOCKS % TW
        a = i - down
        b = j - right
        inside = live & (a >= 0) & (a < OH) & (b >= 0) & (b < OW)
        ki = first + SH * down
        kj = second + SW * right
        there = (o < O) & (ki < KH) & (kj < KW)
        es = tl.load(
            e[:, None] + ((a * OW + b) * O)[:, None] + o[None, :], mask=inside[:, None] & (o < O)[None, :], other=0.0
        )
        w = tl.load(
            w_at + (((o * KH + ki) * KW + kj) * CP)[:, None] + channel[None, :],
            mask=there[:, None] & (channel < C)[None, :],
            other=0.0,
        )
        acc = product(es, w, acc, EXACT)
    to = example * SIZE + ((first + SH * i) * W + second + SW * j) * CP
    to = d_ptr + m * (LANES * SIZE) + to[:, None] + channel[None, :]
    tl.store(to, acc, mask=live[:, None] & (channel < C)[None, :])


@triton.jit
def example_gradient(
    x_ptr, index_ptr, e_ptr, m, example, kk,
    GATHER: tl.constexpr, LANES: tl.constexpr, SIZE: tl.constexpr, W: tl.constexpr, CP: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, OW: tl.constexpr, P: tl.constexpr,
    O: tl.constexpr, OP: tl.constexpr, EXACT: tl.constexpr, PB: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    # Σ_places e·aᵀ of one example for the inputs kk of a patch, [OP, KB], and Σ_places e, not yet added up.
    unit = tl.arange(0, OP)
    K: tl.constexpr = KH * KW * CP
    tap = kk // CP
    offset = (tap // KW) * W * CP + (tap % KW) * CP + kk % CP
    acc = tl.zeros((OP, KB), dtype=tl.float32)
    total = tl.zeros((OP, PB), dtype=tl.float32)
    at = corner(x_ptr, index_ptr, m, example, 0, True, LANES, GATHER, SIZE, OW, 0, 0)
    e_at = e_ptr + m * (LANES * P * O) + example * (P * O)
    for q in range(0, P, PB):
        place = q + tl.arange(0, PB)
        live = place < P
        e = tl.load(e_at + place[None, :] * O + unit[:, None], mask=live[None, :] & (unit < O)[:, None], other=0.0)
        inside = live[:, None]
        if K % KB != 0:
            inside = inside & (kk < K)[None, :]
        patch = (place // OW) * (SH * W * CP) + (place % OW) * (SW * CP)
        xs = tl.load(at + patch[:, None] + offset[None, :], mask=inside, other=0.0)
        acc = product(e, xs, acc, EXACT)
        total += e
    return acc, total


@triton.jit
def norms_of_places(
    x_ptr, index_ptr, count_ptr, e_ptr, norms_ptr,
    GATHER: tl.constexpr, LANES: tl.constexpr, SIZE: tl.constexpr, W: tl.constexpr, CP: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, OW: tl.constexpr, P: tl.constexpr,
    O: tl.constexpr, OP: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, EXACT: tl.constexpr,
    PB: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    # Squared norm of each example's gradient in the stage's parameters: the gradient is built, a block at a time.
    m = tl.program_id(1).to(tl.int64)
    example = tl.program_id(0)
    if example >= tl.load(count_ptr + m):
        return
    K: tl.constexpr = KH * KW * CP
    squares = tl.zeros((OP, KB), dtype=tl.float32)
    errors = tl.zeros((OP, PB), dtype=tl.float32)
    for k in range(0, K, KB):
        acc, errors = example_gradient(
            x_ptr, index_ptr, e_ptr, m, example, k + tl.arange(0, KB),
            GATHER, LANES, SIZE, W, CP, KH, KW, SH, SW, OW, P, O, OP, EXACT, PB, KB,
        )  # fmt: skip
        squares += acc * acc
    total = tl.sum(tl.sum(squares, 1), 0)
    if BIAS:
        bias = tl.sum(errors, 1)
        total += tl.sum(bias * bias, 0)
    to = norms_ptr + m * LANES + example
    if ADD:
        total += tl.load(to)
    tl.store(to, total)


@triton.jit
def norms_of_one(
    x_ptr, index_ptr, count_ptr, e_ptr, norms_ptr,
    GATHER: tl.constexpr, LANES: tl.constexpr, SIZE: tl.constexpr, O: tl.constexpr, OP: tl.constexpr,
    BIAS: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    # The same for a stage with one place, whose patch is its picture: ‖e‖²·(‖a‖² + 1).
    m = tl.program_id(1).to(tl.int64)
    start = tl.program_id(0) * ROWS
    count = tl.load(count_ptr + m)
    if start >= count:
        return
    rows = start + tl.arange(0, ROWS)
    live = rows < count
    unit = tl.arange(0, OP)
    at = corner(x_ptr, index_ptr, m, rows, 0, live, LANES, GATHER, SIZE, 1, 0, 0)
    squares = tl.zeros((ROWS,), dtype=tl.float32)
    for k in range(0, SIZE, KB):
        kk = k + tl.arange(0, KB)
        xs = tl.load(at[:, None] + kk[None, :], mask=live[:, None] & (kk < SIZE)[None, :], other=0.0)
        squares += tl.sum(xs * xs, 1)
    e = tl.load(
        e_ptr + m * (LANES * O) + rows[:, None] * O + unit[None, :],
        mask=live[:, None] & (unit < O)[None, :],
        other=0.0,
    )
    if BIAS:
        squares += 1.0
    total = squares * tl.sum(e * e, 1)
    to = norms_ptr + m * LANES + rows
    if ADD:
        total += tl.load(to, mask=live, other=0.0)
    tl.store(to, total, mask=live)


@triton.jit
def sums(
    x_ptr, index_ptr, count_ptr, e_ptr, norms_ptr, clip, out_ptr,
    GATHER: tl.constexpr, LANES: tl.constexpr, SIZE: tl.constexpr, W: tl.constexpr, CP: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, OW: tl.constexpr, P: tl.constexpr,
    O: tl.constexpr, OP: tl.constexpr, PARTS: tl.constexpr, EXACT: tl.constexpr, PB: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    # Sum of the clipped gradients of one part of the batch, for one block of a patch's inputs.
    m = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1)
    count = tl.load(count_ptr + m)
    share = (count + PARTS - 1) // PARTS
    begin = part * share
    end = tl.minimum(begin + share, count)
    kk = tl.program_id(0) * KB + tl.arange(0, KB)
    unit = tl.arange(0, OP)
    K: tl.constexpr = KH * KW * CP
    acc = tl.zeros((OP, KB), dtype=tl.float32)
    errors = tl.zeros((OP, PB), dtype=tl.float32)
    if P > 1:
        # The factor comes after the product, so that what is added is exactly what the norm was taken of.
        for example in range(begin, end):
            factor = 1.0 / tl.maximum(1.0, tl.sqrt(tl.load(norms_ptr + m * LANES + example)) / clip)
            g, b = example_gradient(
                x_ptr, index_ptr, e_ptr, m, example, kk,
                GATHER, LANES, SIZE, W, CP, KH, KW, SH, SW, OW, P, O, OP, EXACT, PB, KB,
            )  # fmt: skip
            acc += factor * g
            errors += factor * b
    else:
        for r in range(begin, end, PB):
            rows = r + tl.arange(0, PB)
            live = rows < end
            norm = tl.load(norms_ptr + m * LANES + rows, mask=live, other=0.0)
            factor = 1.0 / tl.maximum(1.0, tl.sqrt(norm) / clip)
            at = corner(x_ptr, index_ptr, m, rows, 0, live, LANES, GATHER, SIZE, 1, 0, 0)
            xs = tl.load(at[:, None] + kk[None, :], mask=live[:, None] & (kk < K)[None, :], other=0.0)
            e = tl.load(
                e_ptr + m * (LANES * O) + rows[None, :] * O + unit[:, None],
                mask=live[None, :] & (unit < O)[:, None],
                other=0.0,
            )
            e = e * factor[None, :]
            acc = product(e, xs, acc, EXACT)
            errors += e
    out = out_ptr + (m * PARTS + part) * (O * (K + 1))
    tl.store(out + unit[:, None] * K + kk[None, :], acc, mask=(unit < O)[:, None] & (kk < K)[None, :])
    if tl.program_id(0) == 0:
        tl.store(out + O * K + unit, tl.sum(errors, 1), mask=unit < O)


@triton.jit
def pack(p_ptr, stride, order_ptr, w_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    # Weights in the order of a patch; zeros where there is no weight.
    m = tl.program_id(1).to(tl.int64)
    f = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    order = tl.load(order_ptr + f, mask=f < SIZE, other=-1)
    tl.store(w_ptr + m * SIZE + f, tl.load(p_ptr + m * stride + order, mask=order >= 0, other=0.0), mask=f < SIZE)


@triton.jit
def collect(
    parts_ptr, order_ptr, g_ptr, stride, scale,
    SIZE: tl.constexpr, PARTS: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # The parts of a batch, added up in their order, scaled and put in their places.
    m = tl.program_id(1).to(tl.int64)
    f = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    order = tl.load(order_ptr + f, mask=f < SIZE, other=-1)
    there = order >= 0
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in tl.static_range(0, PARTS):
        total += tl.load(parts_ptr + (m * PARTS + part) * SIZE + f, mask=there, other=0.0)
    total = total * scale
    to = g_ptr + m * stride + order
    if ADD:
        total += tl.load(to, mask=there, other=0.0)
    tl.store(to, total, mask=there)
