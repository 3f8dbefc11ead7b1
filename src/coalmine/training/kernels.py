"""The Triton kernels of one fused step; :mod:`coalmine.training.fused` prepares their arguments and says what they do.

Capital names are compile-time constants. Every program works on one model alone, with tiles of a fixed shape. A unit's
D weights of the first layer have WIDE places, a row of the data (and of weights as halves) has DP: whole cache lines.
"""

import triton
import triton.language as tl

OWN = tl.constexpr(6)
"""Numbers that each model has of its own: clipping norm, units of errors and of sums, learning rate over batch size,
standard deviation of the noise, and what is taken off each weight."""


@triton.jit
def bits(key, step, purpose: tl.constexpr, lane):
    zero = lane * 0
    return tl.philox(
        key, lane.to(tl.uint32), (zero + step).to(tl.uint32), (zero + purpose).to(tl.uint32), zero.to(tl.uint32)
    )


@triton.jit
def radius(r):
    # √(−2·ln u) for a 32-bit uniform u (largest value 6.66).
    return tl.sqrt(tl.maximum(-2.0 * tl.log((r.to(tl.float32) + 0.5) * 2.3283064365386963e-10), 0.0))


@triton.jit
def direction(r):
    # A point of the unit circle: 29 bits say where in an eighth of it, the other three in which one. Cosine and sine
    # up to π/4 by the polynomials of Cephes, with errors of about 1e-7: a library's way round any angle takes longer.
    x = ((r & 0x1FFFFFFF).to(tl.float32) + 0.5) * 1.462918079267159e-9
    y = x * x
    s = x + x * y * (-1.6666654611e-1 + y * (8.3321608736e-3 - y * 1.9515295891e-4))
    c = 1.0 - 0.5 * y + y * y * (4.166664568298827e-2 + y * (y * 2.443315711809948e-5 - 1.388731625493765e-3))
    swap = (r & 0x20000000) != 0
    u = tl.where(swap, s, c).to(tl.uint32, bitcast=True) ^ (r & 0x80000000)
    v = tl.where(swap, c, s).to(tl.uint32, bitcast=True) ^ ((r << 1) & 0x80000000)
    return u.to(tl.float32, bitcast=True), v.to(tl.float32, bitcast=True)


@triton.jit
def normals(key, step, purpose: tl.constexpr, lane):
    # Four independent normals for each lane: a length and a direction for each pair (Box and Muller 1958).
    r0, r1, r2, r3 = bits(key, step, purpose, lane)
    a = radius(r0)
    b = radius(r2)
    u0, v0 = direction(r1)
    u1, v1 = direction(r3)
    return a * u0, a * v0, b * u1, b * v1


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
def draw(
    keys, step, worlds, slots, table, width, base, log_miss, index, count, times, overflow,
    LANES: tl.constexpr, ROOM: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    # LANES: a power of 2 of at least ROOM rows. APART: rows from number ``base`` on are not listed but counted.
    m = tl.program_id(0)
    key = tl.load(keys + m)
    world = tl.load(worlds + m)
    n = tl.load(slots + world)
    lane = tl.arange(0, LANES)
    r0, r1, _r2, _r3 = bits(key, step, 0, lane)
    # 53 bits, as the gaps must be exact for any rate.
    u = (((r0.to(tl.uint64) >> 5) * 67108864 + (r1.to(tl.uint64) >> 6)).to(tl.float64) + 0.5) / 9007199254740992.0
    gap = tl.minimum(tl.floor(tl.log(u) / tl.load(log_miss + world)) + 1.0, n + 1.0)
    # Gaps end at n + 1, so that the sum of a thousand of them stays within 64 bits.
    place = tl.cumsum(gap.to(tl.int64), 0) - 1
    drawn = (place < n) & (lane < ROOM)
    if tl.sum(drawn.to(tl.int32), 0) == ROOM:
        tl.store(overflow, 1)
    row = tl.load(table + world * width + place, mask=drawn, other=0)
    at = lane
    if APART:
        tl.store(times + m, tl.sum((drawn & (row >= base)).to(tl.int32), 0))
        drawn = drawn & (row < base)
        at = tl.cumsum(drawn.to(tl.int32), 0) - 1
    tl.store(count + m, tl.sum(drawn.to(tl.int32), 0))
    tl.store(index + m * ROOM + at, row, mask=drawn)


@triton.jit
def product(a, b, acc, EXACT: tl.constexpr):
    # acc + a·b, the factors rounded to bfloat16 or as tl.dot calls it.
    if EXACT == "bf16":
        acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    else:
        acc = tl.dot(a, b, acc, input_precision=EXACT)
    return acc


@triton.jit
def put_halves(to_ptr, plane, value, at, keep, PARTS: tl.constexpr):
    # value as one number of 16 bits, or as the sum of two, the second of them 2¹¹ times its share: 22 bits and a sign.
    high = value.to(to_ptr.dtype.element_ty)
    tl.store(to_ptr + at, high, mask=keep)
    if PARTS == 2:
        low = (value - high.to(tl.float32)) * 2048.0
        tl.store(to_ptr + plane + at, low.to(to_ptr.dtype.element_ty), mask=keep)


@triton.jit
def both(sums, OUTP: tl.constexpr, PARTS: tl.constexpr):
    # Sums [R, PARTS·OUTP] of products with both parts of something, as sums of products with the whole.
    if PARTS == 2:
        pairs = tl.permute(tl.reshape(sums, (sums.shape[0], 2, OUTP)), (0, 2, 1))
        high, low = tl.split(pairs)
        sums = high + low * (1.0 / 2048.0)
    return sums


@triton.jit
def put_weights(
    w_ptr, unit_ptr, m, block, blocks, w, unit, column,
    OUT: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    # The weights of one block of columns, [OUT, columns], as halves in a unit of their own, a power of 2.
    largest = tl.max(tl.max(tl.abs(w), 1), 0)
    exponent = tl.minimum(tl.maximum((largest.to(tl.int32, bitcast=True) >> 23) - 126, -100), 100)
    one = ((127 + exponent - 12) << 23).to(tl.float32, bitcast=True)
    tl.store(unit_ptr + m * blocks + block, one)
    at = m * (PARTS * OUT * DP) + unit[:, None] * DP + column[None, :]
    put_halves(w_ptr, OUT * DP, w * (1.0 / one), at, (unit[:, None] < OUT) & (column[None, :] < D), PARTS)


@triton.jit
def halve(
    p_ptr, stride, w_ptr, unit_ptr,
    D: tl.constexpr, DP: tl.constexpr, WIDE: tl.constexpr, OUT: tl.constexpr, OUTP: tl.constexpr, PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    # The first layer's weights of models that were not updated yet, as halves.
    m = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    unit = tl.arange(0, OUTP)
    keep = (unit[:, None] < OUT) & (column[None, :] < D)
    w = tl.load(p_ptr + m * stride + unit[:, None] * WIDE + column[None, :], mask=keep, other=0.0)
    put_weights(w_ptr, unit_ptr, m, tl.program_id(0), tl.num_programs(0), w, unit, column, OUT, D, DP, PARTS)


@triton.jit
def forward(
    x_ptr, plane, whole, y_ptr, squares_ptr, index_ptr, count_ptr, p_ptr, stride, w_ptr, unit_ptr,
    e_ptr, rest_ptr, own_ptr, x_unit,
    D: tl.constexpr, DP: tl.constexpr, WIDE: tl.constexpr,
    H: tl.constexpr, HP: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, LANES: tl.constexpr, ACT: tl.constexpr,
    EXACT: tl.constexpr, PARTS: tl.constexpr, WHOLE: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, K: tl.constexpr,
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
    clip = tl.load(own_ptr + m * OWN)
    e_unit = tl.load(own_ptr + m * OWN + 1)
    cls = tl.arange(0, CP)
    OUT: tl.constexpr = H if H > 0 else C
    OUTP: tl.constexpr = HP if H > 0 else CP
    BLOCKS: tl.constexpr = (D + COLUMNS - 1) // COLUMNS
    unit = tl.arange(0, OUTP)
    # Both parts of the weights side by side, so that each row is read once for both.
    u = tl.arange(0, PARTS * OUTP)
    x_at = x_ptr + picked.to(tl.int64)[:, None] * DP
    w_at = w_ptr + m * (PARTS * OUT * DP) + (u // OUTP * OUT + u % OUTP)[None, :] * DP
    sums = tl.zeros((ROWS, PARTS * OUTP), dtype=tl.float32)
    nothing = tl.zeros((ROWS, PARTS * OUTP), dtype=tl.float32)
    for k in range(0, D, K):
        kk = k + tl.arange(0, K)
        inside = live[:, None] & (kk[None, :] < D)
        xs = tl.load(x_at + kk[None, :], mask=inside, other=0.0)
        w = tl.load(w_at + kk[:, None], mask=(u % OUTP < OUT)[None, :] & (kk[:, None] < D), other=0.0)
        acc = tl.dot(xs, w, nothing)
        if (PARTS == 2) & (not WHOLE):
            acc += tl.dot(tl.load(x_at + plane + kk[None, :], mask=inside, other=0.0), w, nothing) * (1.0 / 2048.0)
        sums += acc * (tl.load(unit_ptr + m * BLOCKS + k // COLUMNS) * x_unit)
    if WHOLE & (PARTS == 2):  # noqa: SIM102 (known when it is compiled)
        # Rows before number ``whole`` have no second part.
        if tl.max(picked, 0) >= whole:
            for k in range(0, D, K):
                kk = k + tl.arange(0, K)
                inside = (live & (picked >= whole))[:, None] & (kk[None, :] < D)
                xs = tl.load(x_at + plane + kk[None, :], mask=inside, other=0.0)
                w = tl.load(w_at + kk[:, None], mask=(u % OUTP < OUT)[None, :] & (kk[:, None] < D), other=0.0)
                acc = tl.dot(xs, w, nothing)
                sums += acc * (tl.load(unit_ptr + m * BLOCKS + k // COLUMNS) * x_unit * (1.0 / 2048.0))
    z = both(sums, OUTP, PARTS)
    z += tl.load(p + OUT * WIDE + unit, mask=unit < OUT, other=0.0)[None, :]
    squares = tl.load(squares_ptr + picked, mask=live, other=0.0)
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
        w2_at = p + H * WIDE + H
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
        e1 = e
        norm = (squares + 1.0) * tl.sum(e * e, 1)
    factor = 1.0 / tl.maximum(1.0, tl.sqrt(norm) / clip)
    keep = live[:, None] & (unit[None, :] < OUT)
    at = (m * LANES + rows)[:, None] * (PARTS * OUT) + unit[None, :]
    e1 = tl.where(live[:, None], e1 * factor[:, None], 0.0)
    scaled = e1 * e_unit
    if PARTS == 1:
        # What 16 bits hold with fewer digits is left out: rounded up, it could make a gradient longer than its bound.
        scaled = tl.where(tl.abs(scaled) < 6.103515625e-5, 0.0, scaled)
    put_halves(e_ptr, OUT, scaled, at, keep, PARTS)
    # The sums of these rows for all other parameters, in their order: biases, then the second layer.
    REST: tl.constexpr = OUT + (C * H + C if H > 0 else 0)
    rest = rest_ptr + (m * ((LANES + ROWS - 1) // ROWS) + tl.program_id(0)) * REST
    tl.store(rest + unit, tl.sum(e1, 0), mask=unit < OUT)
    if H > 0:
        e = tl.where(live[:, None], e * factor[:, None], 0.0)
        gw = tl.dot(tl.trans(e), h, input_precision="tf32x3")
        keep2 = (cls[:, None] < C) & (unit[None, :] < H)
        tl.store(rest + H + cls[:, None] * H + unit[None, :], gw, mask=keep2)
        tl.store(rest + H + C * H + cls, tl.sum(e, 0), mask=cls < C)


@triton.jit(do_not_specialize=["step"])
def update_first(
    x_ptr, plane, whole, index_ptr, count_ptr, e_ptr, p_ptr, stride, w_ptr, unit_ptr, keys, step, own_ptr,
    D: tl.constexpr, DP: tl.constexpr, WIDE: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, LANES: tl.constexpr,
    PARTS: tl.constexpr, WHOLE: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * COLUMNS
    count = tl.load(count_ptr + m)
    column = first + tl.arange(0, COLUMNS)
    unit = tl.arange(0, HP)
    e_at = e_ptr + m * (LANES * PARTS * H) + unit[None, :]
    acc = tl.zeros((COLUMNS, HP), dtype=tl.float32)
    low = tl.zeros((COLUMNS, HP), dtype=tl.float32)
    for r in range(0, count, ROWS):
        rows = r + tl.arange(0, ROWS)
        live = rows < count
        picked = tl.load(index_ptr + m * LANES + rows, mask=live, other=0)
        at = x_ptr + picked[:, None].to(tl.int64) * DP + column[None, :]
        inside = live[:, None] & (column[None, :] < D)
        keep = live[:, None] & (unit < H)[None, :]
        xs = tl.load(at, mask=inside, other=0.0)
        e = tl.load(e_at + rows[:, None] * (PARTS * H), mask=keep, other=0.0)
        acc = tl.dot(tl.trans(xs), e, acc)
        if PARTS == 2:
            low = tl.dot(tl.trans(xs), tl.load(e_at + rows[:, None] * (PARTS * H) + H, mask=keep, other=0.0), low)
            if not WHOLE:
                low = tl.dot(tl.trans(tl.load(at + plane, mask=inside, other=0.0)), e, low)
    if WHOLE & (PARTS == 2):
        for r in range(0, count, ROWS):
            rows = r + tl.arange(0, ROWS)
            picked = tl.load(index_ptr + m * LANES + rows, mask=rows < count, other=0)
            if tl.max(picked, 0) >= whole:
                live = (rows < count) & (picked >= whole)
                at = x_ptr + plane + picked[:, None].to(tl.int64) * DP + column[None, :]
                xs = tl.load(at, mask=live[:, None] & (column[None, :] < D), other=0.0)
                e = tl.load(e_at + rows[:, None] * (PARTS * H), mask=live[:, None] & (unit < H)[None, :], other=0.0)
                low = tl.dot(tl.trans(xs), e, low)
    if PARTS == 2:
        acc += low * (1.0 / 2048.0)
    own = own_ptr + m * OWN
    g = tl.trans(acc) * tl.load(own + 2)
    WIDTH: tl.constexpr = ((D + COLUMNS - 1) // COLUMNS) * COLUMNS
    z = noise_matrix(tl.load(keys + m), step, 1, first, HP, COLUMNS // 4, WIDTH)
    at = p_ptr + m * stride + unit[:, None] * WIDE + column[None, :]
    keep = (unit[:, None] < H) & (column[None, :] < D)
    w = tl.load(at, mask=keep, other=0.0)
    w = w - tl.load(own + 3) * (g + tl.load(own + 4) * z) - tl.load(own + 5) * w
    tl.store(at, w, mask=keep)
    w = tl.where(keep, w, 0.0)
    put_weights(w_ptr, unit_ptr, m, tl.program_id(0), tl.num_programs(0), w, unit, column, H, D, DP, PARTS)


@triton.jit(do_not_specialize=["step"])
def update_rest(
    count_ptr, rest_ptr, p_ptr, stride, keys, step, own_ptr,
    FIRST: tl.constexpr, REST: tl.constexpr, PROGRAMS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # All parameters from FIRST on, from the sums that the programs of ``forward`` left, added up in their order.
    m = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = f < REST
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for program in range(0, (tl.load(count_ptr + m) + ROWS - 1) // ROWS):
        total += tl.load(rest_ptr + (m * PROGRAMS + program) * REST + f, mask=keep, other=0.0)
    z = tl.reshape(noise_matrix(tl.load(keys + m), step, 2, tl.program_id(1) * BLOCK, 1, BLOCK // 4, BLOCK), (BLOCK,))
    own = own_ptr + m * OWN
    at = p_ptr + m * stride + FIRST + f
    w = tl.load(at, mask=keep, other=0.0)
    w = w - tl.load(own + 3) * (total + tl.load(own + 4) * z) - tl.load(own + 5) * w
    tl.store(at, w, mask=keep)
