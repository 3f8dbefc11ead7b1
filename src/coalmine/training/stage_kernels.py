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
    # Outputs of a stage, before pooling, OP of them; for the last one (ACT = "softmax") the errors softmax − one-hot.
    m = tl.program_id(1).to(tl.int64)
    used = tl.load(count_ptr + m) * P
    start = tl.program_id(0) * ROWS
    if start >= used:
        return
    rows = start + tl.arange(0, ROWS)
    live = rows < used
    at = corner(x_ptr, index_ptr, m, rows // P, rows % P, live, LANES, GATHER, SIZE, OW, SH * W * CP, SW * CP)
    unit = tl.program_id(2) * OP + tl.arange(0, OP)
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
def group_sums(values, OC: tl.constexpr, GROUP: tl.constexpr):
    # For each channel the sum over the channels of its group.
    channel = tl.arange(0, OC)
    same = (channel // GROUP)[:, None] == (channel // GROUP)[None, :]
    return tl.sum(tl.where(same, values[None, :], 0.0), 1)


@triton.jit
def normalize(
    y_ptr, count_ptr, p_ptr, stride, hat_ptr, spread_ptr, epsilon,
    LANES: tl.constexpr, P: tl.constexpr, O: tl.constexpr, OC: tl.constexpr, GROUP: tl.constexpr, ACT: tl.constexpr,
    PB: tl.constexpr,
):  # fmt: skip
    # An example's outputs, each group of GROUP channels to mean 0 and variance 1 (kept in hat), then scale, shift and
    # activation, in place. The scales and shifts begin at p_ptr.
    m = tl.program_id(1).to(tl.int64)
    example = tl.program_id(0)
    if example >= tl.load(count_ptr + m):
        return
    o = tl.arange(0, OC)
    begin = (m * LANES + example) * (P * O)
    total = tl.zeros((OC,), dtype=tl.float32)
    for q in range(0, P, PB):
        at, live = tile(q, o, P, O, PB)
        total += tl.sum(tl.load(y_ptr + begin + at, mask=live, other=0.0), 0)
    mean = group_sums(total, OC, GROUP) / (P * GROUP)
    total = tl.zeros((OC,), dtype=tl.float32)
    for q in range(0, P, PB):
        at, live = tile(q, o, P, O, PB)
        z = tl.where(live, tl.load(y_ptr + begin + at, mask=live, other=0.0) - mean[None, :], 0.0)
        total += tl.sum(z * z, 0)
    spread = tl.sqrt(group_sums(total, OC, GROUP) / (P * GROUP) + epsilon)
    tl.store(spread_ptr + (m * LANES + example) * O + o, spread, mask=o < O)
    scale = tl.load(p_ptr + m * stride + o, mask=o < O, other=0.0)
    shift = tl.load(p_ptr + m * stride + O + o, mask=o < O, other=0.0)
    for q in range(0, P, PB):
        at, live = tile(q, o, P, O, PB)
        z = (tl.load(y_ptr + begin + at, mask=live, other=0.0) - mean[None, :]) / spread[None, :]
        tl.store(hat_ptr + begin + at, z, mask=live)
        tl.store(y_ptr + begin + at, activated(z * scale[None, :] + shift[None, :], ACT), mask=live)


@triton.jit
def tile(q, o, P: tl.constexpr, O: tl.constexpr, PB: tl.constexpr):
    # Where the outputs of PB places from q on lie, and which of them there are.
    place = q + tl.arange(0, PB)
    return place[:, None] * O + o[None, :], (place < P)[:, None] & (o < O)[None, :]


@triton.jit
def norm_errors(
    y_ptr, count_ptr, p_ptr, stride, hat_ptr, spread_ptr, norms_ptr, kept_ptr,
    LANES: tl.constexpr, P: tl.constexpr, O: tl.constexpr, OC: tl.constexpr, GROUP: tl.constexpr, PB: tl.constexpr,
):  # fmt: skip
    # Back through scale, shift and norm, in place: an example's gradient in scales and shifts is written down, its
    # square added to the norms, and e becomes (ê − mean ê − hat·mean(ê·hat)) / spread with ê = e·scale.
    m = tl.program_id(1).to(tl.int64)
    example = tl.program_id(0)
    if example >= tl.load(count_ptr + m):
        return
    o = tl.arange(0, OC)
    begin = (m * LANES + example) * (P * O)
    shifts = tl.zeros((OC,), dtype=tl.float32)
    scales = tl.zeros((OC,), dtype=tl.float32)
    for q in range(0, P, PB):
        at, live = tile(q, o, P, O, PB)
        e = tl.load(y_ptr + begin + at, mask=live, other=0.0)
        shifts += tl.sum(e, 0)
        scales += tl.sum(e * tl.load(hat_ptr + begin + at, mask=live, other=0.0), 0)
    kept = kept_ptr + (m * LANES + example) * (2 * O) + o
    tl.store(kept, scales, mask=o < O)
    tl.store(kept + O, shifts, mask=o < O)
    norm = norms_ptr + m * LANES + example
    tl.store(norm, tl.load(norm) + tl.sum(scales * scales + shifts * shifts, 0))
    scale = tl.load(p_ptr + m * stride + o, mask=o < O, other=0.0)
    spread = tl.load(spread_ptr + (m * LANES + example) * O + o, mask=o < O, other=1.0)
    shift = group_sums(scale * shifts, OC, GROUP) / (P * GROUP)
    tilt = group_sums(scale * scales, OC, GROUP) / (P * GROUP)
    for q in range(0, P, PB):
        at, live = tile(q, o, P, O, PB)
        e = tl.load(y_ptr + begin + at, mask=live, other=0.0) * scale[None, :]
        e = e - shift[None, :] - tl.load(hat_ptr + begin + at, mask=live, other=0.0) * tilt[None, :]
        tl.store(y_ptr + begin + at, e / spread[None, :], mask=live)


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
    TH: tl.constexpr, TW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    O: tl.constexpr, WEIGHTS: tl.constexpr, EXACT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    KB: tl.constexpr,
):  # fmt: skip
    # Errors of a stage's picture. A block of SH·SW places of the picture is a row, and its places' channels are the
    # columns: the same errors reach all places of a block, so this is one product, without a step that multiplies
    # by zeros. TH·TW places of the output reach a block; the weights, [TH·TW, O, SH·SW·CP], are in that order.
    m = tl.program_id(2).to(tl.int64)
    HC: tl.constexpr = (H + SH - 1) // SH
    WC: tl.constexpr = (W + SW - 1) // SW
    ALL: tl.constexpr = SH * SW * CP
    used = tl.load(count_ptr + m) * (HC * WC)
    start = tl.program_id(0) * ROWS
    if start >= used:
        return
    rows = start + tl.arange(0, ROWS)
    i = rows // WC % HC
    j = rows % WC
    example = rows // (WC * HC)
    live = rows < used
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    e = e_ptr + m * (LANES * OH * OW * O) + example * (OH * OW * O)
    w_at = w_ptr + m * WEIGHTS
    BLOCKS: tl.constexpr = (O + KB - 1) // KB
    acc = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for k in range(0, TH * TW * BLOCKS):
        o = k % BLOCKS * KB + tl.arange(0, KB)
        tap = k // BLOCKS
        a = i - tap // TW
        b = j - tap % TW
        inside = live & (a >= 0) & (a < OH) & (b >= 0) & (b < OW)
        there = (column < ALL)[None, :]
        if O % KB != 0:
            there = there & (o < O)[:, None]
        es = tl.load(
            e[:, None] + ((a * OW + b) * O)[:, None] + o[None, :], mask=inside[:, None] & (o < O)[None, :], other=0.0
        )
        w = tl.load(w_at + (tap * O + o)[:, None] * ALL + column[None, :], mask=there, other=0.0)
        acc = product(es, w, acc, EXACT)
    first = column // (SW * CP)
    along = column % (SW * CP)
    to = d_ptr + m * (LANES * SIZE) + (example * SIZE + (SH * i * W + SW * j) * CP)[:, None]
    keep = live[:, None] & (column < ALL)[None, :]
    if H % SH != 0:
        keep = keep & ((SH * i)[:, None] + first[None, :] < H)
    if W % SW != 0:
        keep = keep & ((SW * CP * j)[:, None] + along[None, :] < W * CP)
    if C != CP:
        keep = keep & (column % CP < C)[None, :]
    tl.store(to + (first * (W * CP) + along)[None, :], acc, mask=keep)


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
    x_ptr, index_ptr, count_ptr, e_ptr, norms_ptr, kept_ptr,
    GATHER: tl.constexpr, LANES: tl.constexpr, SIZE: tl.constexpr, W: tl.constexpr, CP: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, OW: tl.constexpr, P: tl.constexpr,
    O: tl.constexpr, OP: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, KEEP: tl.constexpr, EXACT: tl.constexpr,
    PB: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    # Squared norm of each example's gradient in the stage's parameters: the gradient is built, a block at a time, and
    # written down if there is room for it (KEEP).
    m = tl.program_id(1).to(tl.int64)
    example = tl.program_id(0)
    if example >= tl.load(count_ptr + m):
        return
    K: tl.constexpr = KH * KW * CP
    squares = tl.zeros((OP, KB), dtype=tl.float32)
    errors = tl.zeros((OP, PB), dtype=tl.float32)
    unit = tl.arange(0, OP)
    kept = kept_ptr + (m * LANES + example) * (O * (K + 1))
    for k in range(0, K, KB):
        kk = k + tl.arange(0, KB)
        acc, errors = example_gradient(
            x_ptr, index_ptr, e_ptr, m, example, kk,
            GATHER, LANES, SIZE, W, CP, KH, KW, SH, SW, OW, P, O, OP, EXACT, PB, KB,
        )  # fmt: skip
        squares += acc * acc
        if KEEP:
            tl.store(kept + unit[:, None] * K + kk[None, :], acc, mask=(unit < O)[:, None] & (kk < K)[None, :])
    total = tl.sum(tl.sum(squares, 1), 0)
    if BIAS:
        bias = tl.sum(errors, 1)
        total += tl.sum(bias * bias, 0)
        if KEEP:
            tl.store(kept + O * K + unit, bias, mask=unit < O)
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
    at = corner(x_ptr, index_ptr, m, rows, 0, live, LANES, GATHER, SIZE, 1, 0, 0)
    squares = tl.zeros((ROWS,), dtype=tl.float32)
    for k in range(0, SIZE, KB):
        kk = k + tl.arange(0, KB)
        xs = tl.load(at[:, None] + kk[None, :], mask=live[:, None] & (kk < SIZE)[None, :], other=0.0)
        squares += tl.sum(xs * xs, 1)
    errors = tl.zeros((ROWS,), dtype=tl.float32)
    for o in range(0, O, OP):
        unit = o + tl.arange(0, OP)
        e = tl.load(
            e_ptr + m * (LANES * O) + rows[:, None] * O + unit[None, :],
            mask=live[:, None] & (unit < O)[None, :],
            other=0.0,
        )
        errors += tl.sum(e * e, 1)
    if BIAS:
        squares += 1.0
    total = squares * errors
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
    # Sum of the clipped gradients of one part of the batch, for one block of a patch's inputs and one of outputs.
    m = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1)
    count = tl.load(count_ptr + m)
    share = (count + PARTS - 1) // PARTS
    begin = part * share
    end = tl.minimum(begin + share, count)
    BLOCKS: tl.constexpr = (O + OP - 1) // OP
    kk = tl.program_id(0) // BLOCKS * KB + tl.arange(0, KB)
    unit = tl.program_id(0) % BLOCKS * OP + tl.arange(0, OP)
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
    if tl.program_id(0) < BLOCKS:
        tl.store(out + O * K + unit, tl.sum(errors, 1), mask=unit < O)


@triton.jit
def sums_of_kept(
    count_ptr, norms_ptr, clip, kept_ptr, out_ptr,
    LANES: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # The same where the gradients of all examples were written down.
    m = tl.program_id(1).to(tl.int64)
    count = tl.load(count_ptr + m)
    f = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for r in range(0, count, ROWS):
        rows = r + tl.arange(0, ROWS)
        live = rows < count
        norm = tl.load(norms_ptr + m * LANES + rows, mask=live, other=0.0)
        factor = 1.0 / tl.maximum(1.0, tl.sqrt(norm) / clip)
        at = kept_ptr + (m * LANES + rows)[:, None] * SIZE + f[None, :]
        acc += factor[:, None] * tl.load(at, mask=live[:, None] & (f < SIZE)[None, :], other=0.0)
    tl.store(out_ptr + m * SIZE + f, tl.sum(acc, 0), mask=f < SIZE)


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
