"""The Triton kernels of one fused step; :mod:`coalmine.training.fused` prepares their arguments and says what they do.

Capital names are compile-time constants. Every program works on one model alone, with tiles of a fixed shape.
"""

import triton
import triton.language as tl


@triton.jit
def bits(key, step, purpose: tl.constexpr, lane):
    zero = lane * 0
    return tl.philox(
        key, lane.to(tl.uint32), (zero + step).to(tl.uint32), (zero + purpose).to(tl.uint32), zero.to(tl.uint32)
    )


@triton.jit
def normals(key, step, purpose: tl.constexpr, lane):
    # Four independent normals for each lane: two Box-Muller pairs of 32-bit uniforms (largest value 6.66).
    r0, r1, r2, r3 = bits(key, step, purpose, lane)
    a = tl.sqrt(tl.maximum(-2.0 * tl.log((r0.to(tl.float32) + 0.5) * 2.3283064365386963e-10), 0.0))
    b = tl.sqrt(tl.maximum(-2.0 * tl.log((r2.to(tl.float32) + 0.5) * 2.3283064365386963e-10), 0.0))
    s = r1.to(tl.float32) * 1.4629180792671596e-9
    t = r3.to(tl.float32) * 1.4629180792671596e-9
    return a * tl.cos(s), a * tl.sin(s), b * tl.cos(t), b * tl.sin(t)


@triton.jit
def noise_matrix(key, step, purpose: tl.constexpr, first, R: tl.constexpr, Q: tl.constexpr, WIDTH: tl.constexpr):
    # [R, 4Q] normals for rows 0..R-1 and columns first..first+4Q-1 of a matrix WIDTH wide (WIDTH a multiple of 4).
    lane = tl.arange(0, R)[:, None] * (WIDTH // 4) + (first // 4 + tl.arange(0, Q))[None, :]
    n0, n1, n2, n3 = normals(key, step, purpose, lane)
    return tl.reshape(tl.join(tl.join(n0, n1), tl.join(n2, n3)), (R, 4 * Q))


@triton.jit(do_not_specialize=["step"])
def add_noise(g_ptr, stride, size, quarter, keys, step, scale, LANES: tl.constexpr):
    # scale·normals onto row m of a gradient: lane i makes those of places i, i + quarter, i + 2·quarter, i + 3·quarter.
    m = tl.program_id(0)
    lane = tl.program_id(1) * LANES + tl.arange(0, LANES)
    n0, n1, n2, n3 = normals(tl.load(keys + m), step, 5, lane)
    row = g_ptr + m.to(tl.int64) * stride
    mine = lane < quarter
    for j in tl.static_range(4):
        n = n0 if j == 0 else (n1 if j == 1 else (n2 if j == 2 else n3))
        place = row + lane + j * quarter
        inside = mine & (lane + j * quarter < size)
        tl.store(place, tl.load(place, mask=inside, other=0.0) + scale * n, mask=inside)


@triton.jit(do_not_specialize=["step"])
def draw(keys, step, worlds, slots, table, width, log_miss, index, count, overflow, LANES: tl.constexpr):
    m = tl.program_id(0)
    key = tl.load(keys + m)
    world = tl.load(worlds + m)
    n = tl.load(slots + world)
    lane = tl.arange(0, LANES)
    r0, r1, _r2, _r3 = bits(key, step, 0, lane)
    # 53 bits, as the gaps must be exact for any rate.
    u = (((r0.to(tl.uint64) >> 5) * 67108864 + (r1.to(tl.uint64) >> 6)).to(tl.float64) + 0.5) / 9007199254740992.0
    gap = tl.minimum(tl.floor(tl.log(u) / tl.load(log_miss)) + 1.0, n + 1.0)
    # Gaps end at n + 1, so that the sum of a thousand of them stays within 64 bits.
    place = tl.cumsum(gap.to(tl.int64), 0) - 1
    drawn = place < n
    total = tl.sum(drawn.to(tl.int32), 0)
    tl.store(count + m, total)
    if total == LANES:
        tl.store(overflow, 1)
    row = tl.load(table + world * width + place, mask=drawn, other=0)
    tl.store(index + m * LANES + lane, row, mask=drawn)


@triton.jit
def product(a, b, acc, EXACT: tl.constexpr):
    # acc + a·b, the factors rounded to bfloat16 or as tl.dot calls it.
    if EXACT == "bf16":
        acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    else:
        acc = tl.dot(a, b, acc, input_precision=EXACT)
    return acc


@triton.jit
def forward(
    x_ptr, y_ptr, squares_ptr, index_ptr, count_ptr, p_ptr, stride, e1_ptr, e2_ptr, h_ptr, clip,
    D: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, LANES: tl.constexpr,
    ACT: tl.constexpr, EXACT: tl.constexpr, ROWS: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1).to(tl.int64)
    start = tl.program_id(0) * ROWS
    count = tl.load(count_ptr + m)
    if start >= count:
        return
    rows = start + tl.arange(0, ROWS)
    live = rows < count
    picked = tl.load(index_ptr + m * LANES + rows, mask=live, other=0)
    p = p_ptr + m * stride
    cls = tl.arange(0, CP)
    OUT: tl.constexpr = H if H > 0 else C
    OUTP: tl.constexpr = HP if H > 0 else CP
    unit = tl.arange(0, OUTP)
    acc = tl.zeros((ROWS, OUTP), dtype=tl.float32)
    for k in range(0, D, K):
        kk = k + tl.arange(0, K)
        xs = tl.load(
            x_ptr + picked[:, None].to(tl.int64) * D + kk[None, :],
            mask=live[:, None] & (kk[None, :] < D),
            other=0.0,
        )
        w = tl.load(p + unit[None, :] * D + kk[:, None], mask=(unit[None, :] < OUT) & (kk[:, None] < D), other=0.0)
        acc = product(xs, w, acc, EXACT)
    z = acc + tl.load(p + OUT * D + unit, mask=unit < OUT, other=0.0)[None, :]
    squares = tl.load(squares_ptr + picked, mask=live, other=0.0)
    base = m * LANES + rows
    if H > 0:
        if ACT == "relu":
            h = tl.maximum(z, 0.0)
            slope = tl.where(z > 0.0, 1.0, 0.0)
        elif ACT == "tanh":
            h = 1.0 - 2.0 / (tl.exp(2.0 * z) + 1.0)
            slope = 1.0 - h * h
        else:
            h = 1.0 / (1.0 + tl.exp(-z))
            slope = h * (1.0 - h)
        h = tl.where(unit[None, :] < H, h, 0.0)
        w2_at = p + H * D + H
        w2 = tl.load(w2_at + cls[None, :] * H + unit[:, None], mask=(unit[:, None] < H) & (cls[None, :] < C), other=0.0)
        logits = product(h, w2, tl.zeros((ROWS, CP), dtype=tl.float32), EXACT)
        logits += tl.load(w2_at + C * H + cls, mask=cls < C, other=0.0)[None, :]
    else:
        logits = z
    logits = tl.where(cls[None, :] < C, logits, -1e30)
    e = tl.exp(logits - tl.max(logits, 1)[:, None])
    label = tl.load(y_ptr + picked, mask=live, other=0)
    e = e / tl.sum(e, 1)[:, None] - (cls[None, :] == label[:, None]).to(tl.float32)
    if H > 0:
        e1 = product(e, tl.trans(w2), tl.zeros((ROWS, HP), dtype=tl.float32), EXACT) * slope
        norm = (squares + 1.0) * tl.sum(e1 * e1, 1) + (tl.sum(h * h, 1) + 1.0) * tl.sum(e * e, 1)
    else:
        norm = (squares + 1.0) * tl.sum(e * e, 1)
    factor = 1.0 / tl.maximum(1.0, tl.sqrt(norm) / clip)
    if H > 0:
        at = base[:, None] * H + unit[None, :]
        keep = live[:, None] & (unit[None, :] < H)
        tl.store(e1_ptr + at, e1 * factor[:, None], mask=keep)
        tl.store(h_ptr + at, h, mask=keep)
    tl.store(e2_ptr + base[:, None] * C + cls[None, :], e * factor[:, None], mask=live[:, None] & (cls[None, :] < C))


@triton.jit(do_not_specialize=["step"])
def update_first(
    x_ptr, index_ptr, count_ptr, e_ptr, p_ptr, stride, keys, step, scale, noise, decay,
    D: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, LANES: tl.constexpr, EXACT: tl.constexpr,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * COLUMNS
    count = tl.load(count_ptr + m)
    column = first + tl.arange(0, COLUMNS)
    unit = tl.arange(0, HP)
    acc = tl.zeros((HP, COLUMNS), dtype=tl.float32)
    for r in range(0, count, ROWS):
        rows = r + tl.arange(0, ROWS)
        live = rows < count
        picked = tl.load(index_ptr + m * LANES + rows, mask=live, other=0)
        xs = tl.load(
            x_ptr + picked[:, None].to(tl.int64) * D + column[None, :],
            mask=live[:, None] & (column[None, :] < D),
            other=0.0,
        )
        e = tl.load(
            e_ptr + (m * LANES + rows)[None, :] * H + unit[:, None],
            mask=live[None, :] & (unit[:, None] < H),
            other=0.0,
        )
        acc = product(e, xs, acc, EXACT)
    WIDTH: tl.constexpr = ((D + COLUMNS - 1) // COLUMNS) * COLUMNS
    z = noise_matrix(tl.load(keys + m), step, 1, first, HP, COLUMNS // 4, WIDTH)
    at = p_ptr + m * stride + unit[:, None] * D + column[None, :]
    keep = (unit[:, None] < H) & (column[None, :] < D)
    w = tl.load(at, mask=keep, other=0.0)
    tl.store(at, w - scale * (acc + noise * z) - decay * w, mask=keep)


@triton.jit(do_not_specialize=["step"])
def update_rest(
    count_ptr, e1_ptr, e2_ptr, h_ptr, p_ptr, stride, keys, step, scale, noise, decay,
    D: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, LANES: tl.constexpr,
    ROWS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0).to(tl.int64)
    count = tl.load(count_ptr + m)
    key = tl.load(keys + m)
    unit = tl.arange(0, HP)
    cls = tl.arange(0, CP)
    g1 = tl.zeros((HP,), dtype=tl.float32)
    g2 = tl.zeros((CP,), dtype=tl.float32)
    gw = tl.zeros((CP, HP), dtype=tl.float32)
    for r in range(0, count, ROWS):
        rows = r + tl.arange(0, ROWS)
        live = rows < count
        e2 = tl.load(
            e2_ptr + (m * LANES + rows)[None, :] * C + cls[:, None],
            mask=live[None, :] & (cls[:, None] < C),
            other=0.0,
        )
        g2 += tl.sum(e2, 1)
        if H > 0:
            at = (m * LANES + rows)[:, None] * H + unit[None, :]
            keep = live[:, None] & (unit[None, :] < H)
            g1 += tl.sum(tl.load(e1_ptr + at, mask=keep, other=0.0), 0)
            gw = tl.dot(e2, tl.load(h_ptr + at, mask=keep, other=0.0), gw, input_precision=EXACT)
    p = p_ptr + m * stride
    if H > 0:
        b1 = p + H * D + unit
        z1 = tl.reshape(noise_matrix(key, step, 2, 0, 1, HP // 4, HP), (HP,))
        w = tl.load(b1, mask=unit < H, other=0.0)
        tl.store(b1, w - scale * (g1 + noise * z1) - decay * w, mask=unit < H)
        w2 = p + H * D + H + cls[:, None] * H + unit[None, :]
        keep2 = (cls[:, None] < C) & (unit[None, :] < H)
        z2 = noise_matrix(key, step, 3, 0, CP, HP // 4, HP)
        w = tl.load(w2, mask=keep2, other=0.0)
        tl.store(w2, w - scale * (gw + noise * z2) - decay * w, mask=keep2)
        b2 = p + H * D + H + C * H + cls
    else:
        b2 = p + C * D + cls
    z3 = tl.reshape(noise_matrix(key, step, 4, 0, 1, CP // 4, CP), (CP,))
    w = tl.load(b2, mask=cls < C, other=0.0)
    tl.store(b2, w - scale * (g2 + noise * z3) - decay * w, mask=cls < C)
