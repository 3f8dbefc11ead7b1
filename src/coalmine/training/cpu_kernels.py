"""Compiled kernels for a CPU (numba): noise, clipped sums of perceptrons, likelihood ratios; a whole stack in one call.

:mod:`coalmine.training.backends` says when they are used.

Two register tiles do nearly all the arithmetic, written as vector code of 16 floats. They read the rows of a batch
straight from the table, so a batch is never copied. Each number is one chain of fused multiply-adds in a fixed order,
whatever the tile's shape, and nothing is left to the compiler's licence to reorder: exponential, logarithm, sine and
cosine are Taylor series of basic operations. So the same trial has the same bits beside whatever else is trained, and
no function of the machine's mathematical library is called.
"""

import math

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
"""Floats of one vector: rows of every buffer are padded to whole vectors."""
_FEATURES = llvm.get_host_cpu_features()
READY = bool(_FEATURES.get("fma") or _FEATURES.get("neon")) and not numba.config.DISABLE_JIT
"""Whether the processor has fused multiply-add, without which these kernels would crawl, and numba may compile."""
_WIDE = bool(_FEATURES.get("avx512f"))
ROWS, PAIR = (12, 2) if _WIDE else (6, 1)
"""Rows and vectors of a forward tile: as many sums as the registers hold. The shape never changes a number."""
_UNITS, _COLUMNS = (8, 3) if _WIDE else (6, 1)

_FLOAT, _WORD, _LANE = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, LANES)


def _number(value):
    return ir.Constant(_WORD, value)


def _load(builder, address):
    value = builder.load(builder.inttoptr(address, _VECTOR.as_pointer()))
    value.align = 4
    return value


def _store(builder, value, address):
    builder.store(value, builder.inttoptr(address, _VECTOR.as_pointer())).align = 4


def _spread(builder, address):
    """One float from memory in every lane."""
    value = builder.load(builder.inttoptr(address, _FLOAT.as_pointer()))
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    one = builder.insert_element(undefined, value, ir.Constant(_LANE, 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(_LANE, LANES), [0] * LANES))


def _row(builder, base, index, place, stride):
    """The address of row ``index[place]``."""
    at = builder.add(index, builder.shl(place, _number(3)))
    return builder.add(base, builder.mul(builder.load(builder.inttoptr(at, _WORD.as_pointer())), stride))


def _vector_fma(builder):
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    return cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")


def _accumulate(builder, accumulators, factors, vectors):
    """accumulators[i][j] += factors[i]·vectors[j], one rounding each."""
    fma = _vector_fma(builder)
    for factor, row in zip(factors, accumulators, strict=True):
        held = _spread(builder, factor)
        for vector, place in zip(vectors, row, strict=True):
            builder.store(builder.call(fma, [held, vector, builder.load(place)]), place)


def _make_rows(vectors):
    """out[i] = init + Σ_k a[index[i], k]·b[k] for ROWS rows i; b[k], init and out[i] are so many vectors."""

    @intrinsic
    def rows(typingctx, a, index, a_stride, b, b_stride, depth, init, out, out_stride):
        def codegen(context, builder, signature, args):
            a, index, a_stride, b, b_stride, depth, init, out, out_stride = args
            starts = [_row(builder, a, index, _number(i), a_stride) for i in range(ROWS)]
            first = [_load(builder, builder.add(init, _number(64 * j))) for j in range(vectors)]
            sums = [[cgutils.alloca_once_value(builder, one) for one in first] for _ in range(ROWS)]
            with cgutils.for_range(builder, depth) as loop:
                line = builder.add(b, builder.mul(loop.index, b_stride))
                loaded = [_load(builder, builder.add(line, _number(64 * j))) for j in range(vectors)]
                offset = builder.shl(loop.index, _number(2))
                _accumulate(builder, sums, [builder.add(start, offset) for start in starts], loaded)
            for i, row in enumerate(sums):
                place = builder.add(out, builder.mul(out_stride, _number(i)))
                for j, held in enumerate(row):
                    _store(builder, builder.load(held), builder.add(place, _number(64 * j)))
            return context.get_dummy_value()

        return types.void(*(types.int64,) * 9), codegen

    return rows


def _make_outer(vectors):
    """out[u] = Σ_r e[r, u]·x[index[r]] for _UNITS units u; the piece of x and out[u] are so many vectors."""

    @intrinsic
    def outer(typingctx, x, index, x_stride, e, e_stride, count, out):
        def codegen(context, builder, signature, args):
            x, index, x_stride, e, e_stride, count, out = args
            zero = ir.Constant(_VECTOR, [0.0] * LANES)
            sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(vectors)] for _ in range(_UNITS)]
            with cgutils.for_range(builder, count) as loop:
                row = _row(builder, x, index, loop.index, x_stride)
                loaded = [_load(builder, builder.add(row, _number(64 * j))) for j in range(vectors)]
                line = builder.add(e, builder.mul(loop.index, e_stride))
                _accumulate(builder, sums, [builder.add(line, _number(4 * u)) for u in range(_UNITS)], loaded)
            for number, held in enumerate(held for row in sums for held in row):
                _store(builder, builder.load(held), builder.add(out, _number(64 * number)))
            return context.get_dummy_value()

        return types.void(*(types.int64,) * 7), codegen

    return outer


_rows_pair, _rows_one = _make_rows(PAIR), _make_rows(1)
_outer_many, _outer_one = _make_outer(_COLUMNS), _make_outer(1)


@intrinsic
def _square(typingctx, address, size):
    """Σ a² of so many numbers (whole vectors), in sixteen partial sums that are then added in halves."""

    def codegen(context, builder, signature, args):
        address, size = args
        held = cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, [0.0] * LANES))
        with cgutils.for_range(builder, builder.lshr(size, _number(4))) as loop:
            loaded = _load(builder, builder.add(address, builder.shl(loop.index, _number(6))))
            builder.store(builder.call(_vector_fma(builder), [loaded, loaded, builder.load(held)]), held)
        total, width = builder.load(held), LANES // 2
        while width:
            moved = ir.Constant(ir.VectorType(_LANE, LANES), [(lane + width) % LANES for lane in range(LANES)])
            total = builder.fadd(total, builder.shuffle_vector(total, total, moved))
            width //= 2
        return builder.extract_element(total, ir.Constant(_LANE, 0))

    return types.float32(types.int64, types.int64), codegen


@intrinsic
def _fma(typingctx, a, b, c):
    """a·b + c with one rounding."""

    def codegen(context, builder, signature, args):
        return builder.fma(*args)

    return types.float32(*(types.float32,) * 3), codegen


def _make_cast(source, target, kind):
    @intrinsic
    def cast(typingctx, value):
        def codegen(context, builder, signature, args):
            return builder.bitcast(args[0], kind)

        return target(source), codegen

    return cast


_bits_of = _make_cast(types.float32, types.int32, _LANE)
_float_of = _make_cast(types.int32, types.float32, _FLOAT)


def compile_kernel(**options):
    """numba's compiler with the result kept on disk, or in memory alone where no folder can be written.

    numba throws away what it kept when the function's own file changes: all that builds on each other is in this one.
    """

    def decorate(function):
        try:
            return numba.njit(cache=True, error_model="numpy", **options)(function)
        except RuntimeError:
            return numba.njit(error_model="numpy", **options)(function)

    return decorate


f32 = np.float32
_LOG2_E = f32(math.log2(math.e))
_LN2_HIGH = f32(0.693359375)  # few bits, so that its small multiples are exact
_LN2_LOW = f32(math.log(2.0) - 0.693359375)
_PI = f32(math.pi)
_UNIT = f32(2.0**-31)
_HALF_UNIT = f32(2.0**-32)
_ONE, _TWO, _HALF = f32(1.0), f32(2.0), f32(0.5)
_E2, _E3, _E4, _E5, _E6, _E7 = (f32(1.0 / math.factorial(k)) for k in range(2, 8))
_S3, _S5, _S7, _S9 = (f32((-1.0) ** (k // 2) / math.factorial(k)) for k in (3, 5, 7, 9))
_C2, _C4, _C6, _C8, _C10 = (f32((-1.0) ** (k // 2) / math.factorial(k)) for k in (2, 4, 6, 8, 10))
_L3, _L5, _L7, _L9 = (f32(2.0 / k) for k in (3, 5, 7, 9))
_T3, _T5, _T7, _T9 = f32(-1 / 3), f32(2 / 15), f32(-17 / 315), f32(62 / 2835)
_ROOT_HALF_BITS = int(np.float32(math.sqrt(0.5)).view(np.int32))
_LEAST, _MOST = f32(-87.0), f32(88.0)


@compile_kernel(inline="always")
def _exp(x):
    """eˣ = 2ⁿ·eʳ with |r| ≤ ln 2/2: 0 below −87, e⁸⁸ above 88; NaN stays."""
    held = _MOST if x > _MOST else x
    held = _LEAST if held < _LEAST else held
    n = f32(math.floor(_fma(held, _LOG2_E, _HALF)))
    r = _fma(n, -_LN2_LOW, _fma(n, -_LN2_HIGH, held))
    series = _fma(r, _fma(r, _fma(r, _fma(r, _fma(r, _E7, _E6), _E5), _E4), _E3), _E2)
    power = _float_of(np.int32((np.int32(n) + np.int32(127)) << np.int32(23)))
    value = (_ONE + _fma(r * r, series, r)) * power
    return f32(0.0) if x < _LEAST else value


@compile_kernel(inline="always")
def _log(u):
    """ln u for a positive normal u = 2ᵏ·m, √½ ≤ m < √2: ln m = 2·artanh((m − 1)/(m + 1))."""
    bits = _bits_of(u)
    k = np.int32(bits - np.int32(_ROOT_HALF_BITS)) >> np.int32(23)
    m = _float_of(np.int32(bits - np.int32(k << np.int32(23))))
    s = (m - _ONE) / (m + _ONE)
    z = s * s
    series = s * z * _fma(z, _fma(z, _fma(z, _L9, _L7), _L5), _L3)
    return _fma(f32(k), _LN2_HIGH, _fma(_TWO, s, _fma(f32(k), _LN2_LOW, series)))


_LOW, _HIGH, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFF00000000), np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_BOTH = np.uint64(0x100000001)


@compile_kernel(inline="always")
def _halves(x, factor):
    """Upper and lower 32 bits of factor·x, for the two 32-bit numbers that x holds."""
    even, odd = (x & _LOW) * factor, (x >> _SHIFT) * factor
    return (even >> _SHIFT) | (odd & _HIGH), (even & _LOW) | (odd << _SHIFT)


@compile_kernel(inline="always")
def _philox(x0, x1, x2, x3, keys):
    """Philox-4x32-10 (Salmon et al. 2011) of two counters at once, one in each half of the words."""
    for i in range(10):
        high0, low0 = _halves(x0, _M0)
        high1, low1 = _halves(x2, _M1)
        x0, x1, x2, x3 = high1 ^ x1 ^ keys[0][i], low1, high0 ^ x3 ^ keys[1][i], low0
    return x0, x1, x2, x3


CHUNK = 1024
"""Normals made in one go: their raw bits stay in the first-level cache."""


@compile_kernel()
def _fill(first, second, third, fourth, block, step, key, rounds):
    """Philox words for counters (block + i, step, key), where word j holds counters 2j and 2j + 1."""
    x1, x2, x3 = step * _BOTH, (key & _LOW) * _BOTH, (key >> _SHIFT) * _BOTH
    for j in range(first.size):
        pair = block + np.uint64(2 * j)
        out = _philox(pair | ((pair + np.uint64(1)) << _SHIFT), x1, x2, x3, rounds)
        first[j], second[j], third[j], fourth[j] = out


@compile_kernel()
def add_noise(gradient, size, keys, step, scales):
    """gradient[s, :size] += scales[s]·z, z standard normal: a function of (keys[s], step, place) alone.

    A chunk of at most 1024 numbers takes pairs (u, t) of 32-bit words; Box-Muller makes each of them
    √(−2·ln |u|)·(cos πt, sin πt), all cosines before all sines. One counter of the generator gives two u and two t.
    The two words of ``keys`` are key and upper half of the counter, so all 128 bits tell trials apart.
    """
    us, ts = np.empty(CHUNK // 4, dtype=np.uint64), np.empty(CHUNK // 4, dtype=np.uint64)
    u_words, t_words = us.view(np.int32), ts.view(np.int32)
    cosines, sines = np.empty(CHUNK // 2, dtype=np.float32), np.empty(CHUNK // 2, dtype=np.float32)
    rounds = np.empty((2, 10), dtype=np.uint64)
    for s in range(gradient.shape[0]):
        row, scale = gradient[s], scales[s]
        for i in range(10):
            rounds[0, i] = (((keys[s, 0] & _LOW) + np.uint64(i) * np.uint64(0x9E3779B9)) & _LOW) * _BOTH
            rounds[1, i] = (((keys[s, 0] >> _SHIFT) + np.uint64(i) * np.uint64(0xBB67AE85)) & _LOW) * _BOTH
        block = np.uint64(0)
        for start in range(0, size, CHUNK):
            pairs = (min(CHUNK, size - start) + 1) // 2
            each = (pairs + 3) // 4
            first_u, second_u, first_t, second_t = us[:each], us[each : 2 * each], ts[:each], ts[each : 2 * each]
            _fill(first_u, second_u, first_t, second_t, block, np.uint64(step), keys[s, 1], rounds)
            block += np.uint64(2 * each)
            for i in range(pairs):
                # |integer| keeps every small u apart; half a unit keeps u above 0, and 1 plus half a unit rounds to 1.
                u = _fma(abs(f32(u_words[i])), _UNIT, _HALF_UNIT)
                radius = math.sqrt(-_TWO * _log(u)) * scale
                # πt = π·(quarter/2 + f) with |f| ≤ 1/4.
                t = t_words[i]
                quarter = np.int32(np.int32(t >> np.int32(29)) + np.int32(1)) >> np.int32(1)
                f = _PI * (f32(np.int32(t - np.int32(quarter << np.int32(30)))) * _UNIT)
                z = f * f
                sine = _fma(f * z, _fma(z, _fma(z, _fma(z, _S9, _S7), _S5), _S3), f)
                cosine = _fma(z, _fma(z, _fma(z, _fma(z, _fma(z, _C10, _C8), _C6), _C4), _C2), _ONE)
                odd = (quarter & np.int32(1)) != 0
                first, second = (sine, cosine) if odd else (cosine, sine)
                first = -first if ((quarter + np.int32(1)) & np.int32(2)) != 0 else first
                second = -second if (quarter & np.int32(2)) != 0 else second
                cosines[i], sines[i] = radius * first, radius * second
            for i in range(pairs):
                row[start + i] += cosines[i]
            for i in range(min(CHUNK, size - start) - pairs):
                row[start + pairs + i] += sines[i]


RELU, TANH, SIGMOID = 0, 1, 2
_CUT = f32(0.25)


@compile_kernel()
def _activate(values, kind):
    """The activation of every number, in place; NaN stays."""
    zero = f32(0.0)
    if kind == RELU:
        for i in range(values.size):
            values[i] = zero if values[i] <= zero else values[i]
    elif kind == SIGMOID:
        for i in range(values.size):
            values[i] = _ONE / (_ONE + _exp(-values[i]))
    else:
        for i in range(values.size):
            x = values[i]
            z = x * x
            near = _fma(x * z, _fma(z, _fma(z, _fma(z, _T9, _T7), _T5), _T3), x)
            e = _exp(-_TWO * abs(x))
            far = (_ONE - e) / (_ONE + e)
            far = -far if x < zero else far
            values[i] = near if abs(x) < _CUT else far


@compile_kernel()
def _deactivate(errors, outputs, kind):
    """errors·f′, from the activation's outputs, in place."""
    zero = f32(0.0)
    if kind == RELU:
        for i in range(errors.size):
            errors[i] = zero if outputs[i] <= zero else errors[i]
    elif kind == SIGMOID:
        for i in range(errors.size):
            errors[i] = errors[i] * (outputs[i] * (_ONE - outputs[i]))
    else:
        for i in range(errors.size):
            errors[i] = errors[i] * _fma(-outputs[i], outputs[i], _ONE)


@compile_kernel()
def _address(array):
    """Where its numbers begin."""
    return np.int64(array.ctypes.data)


@compile_kernel()
def _affine(a, index, a_stride, b, b_stride, depth, init, out, out_stride, count):
    """out[i] = init + Σ_k a[index[i], k]·b[k] for count rows and whatever fills up the last tile; all are addresses."""
    for i in range(0, count, ROWS):
        at, place = index + 8 * i, out + i * out_stride
        done = 0
        while done + 64 * PAIR <= out_stride:
            _rows_pair(a, at, a_stride, b + done, b_stride, depth, init + done, place + done, out_stride)
            done += 64 * PAIR
        while done < out_stride:
            _rows_one(a, at, a_stride, b + done, b_stride, depth, init + done, place + done, out_stride)
            done += 64


@compile_kernel()
def _outer(x, index, x_stride, e, e_stride, count, gradient, units, columns, tile, accumulate):
    """gradient[u, c] (+)= Σ_r e[r, u]·x[index[r], c]."""
    start = 0
    while start < columns:
        many = start + LANES * _COLUMNS <= x_stride // 4
        width = LANES * _COLUMNS if many else LANES
        live = min(width, columns - start)
        for unit in range(0, units, _UNITS):
            if many:
                _outer_many(x + 4 * start, index, x_stride, e + 4 * unit, e_stride, count, _address(tile))
            else:
                _outer_one(x + 4 * start, index, x_stride, e + 4 * unit, e_stride, count, _address(tile))
            for u in range(min(_UNITS, units - unit)):
                to = gradient[(unit + u) * columns + start : (unit + u) * columns + start + live]
                new = tile[u * width : u * width + live]
                if accumulate:
                    for c in range(live):
                        to[c] += new[c]
                else:
                    for c in range(live):
                        to[c] = new[c]
        start += width


@compile_kernel()
def _errors(logits, errors, stride, count, classes, index, labels):
    """Softmax minus one-hot label, row by row: ∂ℓ/∂logits of softmax cross-entropy."""
    for r in range(count):
        z, e = logits[r * stride : r * stride + classes], errors[r * stride : r * stride + classes]
        top = z[0]
        for c in range(1, classes):
            top = z[c] if z[c] > top else top
        total = f32(0.0)
        for c in range(classes):
            e[c] = _exp(z[c] - top)
            total += e[c]
        for c in range(classes):
            e[c] /= total
        e[labels[index[r]]] -= _ONE


@compile_kernel()
def _pack(p, plan, work):
    """A model's weights and biases in the shapes that the tiles read; the padding around them is never written."""
    for layer in range(plan.shape[0]):
        inputs, outputs, weight_at, bias_at, turned, bias, straight, _h, _e, wide_in, wide_out, _k = plan[layer]
        weights = p[weight_at : weight_at + inputs * outputs]
        for i in range(inputs):
            for o in range(outputs):
                work[turned + i * wide_out + o] = weights[o * inputs + i]
        for o in range(outputs):
            work[bias + o] = p[bias_at + o]
        if layer:
            for o in range(outputs):
                for i in range(inputs):
                    work[straight + o * wide_in + i] = p[weight_at + o * inputs + i]


@compile_kernel()
def _forward(x, index, own, count, plan, work):
    """The outputs of every layer."""
    base = _address(work)
    rows, rows_at, stride = _address(x), _address(index), 4 * x.shape[1]
    for layer in range(plan.shape[0]):
        inputs, outputs, _wa, _ba, turned, bias, _st, h, _e, _wi, wide_out, kind = plan[layer]
        out = base + 4 * h
        _affine(
            rows, rows_at, stride, base + 4 * turned, 4 * wide_out, inputs, base + 4 * bias, out, 4 * wide_out, count
        )
        if layer < plan.shape[0] - 1:
            _activate(work[h : h + count * wide_out], kind)
            if kind == SIGMOID:  # of 0 is not 0: the padding must stay empty
                for r in range(count):
                    for o in range(outputs, wide_out):
                        work[h + r * wide_out + o] = f32(0.0)
        rows, rows_at, stride = out, _address(own), 4 * wide_out


@compile_kernel()
def _backward(index, own, count, squares, plan, work, norms):
    """From the errors of the last layer to those of all others, and the squared norm of each example's gradient."""
    base = _address(work)
    for r in range(count):
        norms[r] = f32(0.0)
    for layer in range(plan.shape[0] - 1, -1, -1):
        _i, outputs, _wa, _ba, _tu, _bi, straight, _h, e, wide_in, wide_out, _k = plan[layer]
        for r in range(count):
            error = _square(base + 4 * (e + r * wide_out), wide_out)
            before = squares[index[r]]
            if layer:
                before = _square(base + 4 * (plan[layer - 1, 7] + r * wide_in), wide_in)
            norms[r] += _fma(error, before, error)
        if layer:
            h, below, kind = plan[layer - 1, 7], plan[layer - 1, 8], plan[layer - 1, 11]
            _affine(
                base + 4 * e, _address(own), 4 * wide_out, base + 4 * straight, 4 * wide_in, outputs, base,
                base + 4 * below, 4 * wide_in, count,
            )  # fmt: skip
            _deactivate(work[below : below + count * wide_in], work[h : h + count * wide_in], kind)


@compile_kernel()
def _sum(g, x, index, own, count, plan, work, factors, tile, accumulate):
    """g (+)= Σ_r factors[r]·(gradient of row r)."""
    base = _address(work)
    rows, rows_at, stride = _address(x), _address(index), 4 * x.shape[1]
    for layer in range(plan.shape[0]):
        inputs, outputs, weight_at, bias_at, _tu, _bi, _st, h, e, _wi, wide_out, _k = plan[layer]
        total = g[bias_at : bias_at + outputs]
        if not accumulate:
            for o in range(outputs):
                total[o] = f32(0.0)
        for r in range(count):
            line = work[e + r * wide_out : e + r * wide_out + outputs]
            for o in range(outputs):
                line[o] *= factors[r]
                total[o] += line[o]
        weights = g[weight_at : weight_at + inputs * outputs]
        _outer(rows, rows_at, stride, base + 4 * e, 4 * wide_out, count, weights, outputs, inputs, tile, accumulate)
        rows, rows_at, stride = base + 4 * h, _address(own), 4 * wide_out


@compile_kernel()
def add_clipped_sums(parameters, gradient, drawn, counts, x, labels, squares, plan, work, width, clip, weight):
    """gradient[s] = weight·Σ_j clip_C(∇ℓ(m_s, x[drawn[s, j]])), flat clipping over all parameters together.

    ``plan`` has a row for every linear layer: inputs, outputs, where its weight, bias, transposed weight, padded bias,
    padded weight, outputs and errors begin (the first two in a parameter vector, the others in ``work``), both padded
    sizes, and the activation after it. ``work`` begins with zeros, as many as the widest row. A batch of more than
    ``width`` rows goes through in several passes. ``drawn`` has room for ROWS more numbers than any batch.
    """
    last = plan[plan.shape[0] - 1]
    own = np.arange(width + ROWS)
    tile = np.empty(_UNITS * _COLUMNS * LANES, dtype=np.float32)
    norms = np.empty(width, dtype=np.float32)
    for s in range(parameters.shape[0]):
        p, g = parameters[s], gradient[s]
        if counts[s] == 0:
            for i in range(g.size):
                g[i] = f32(0.0)
            continue
        _pack(p, plan, work)
        for r in range(counts[s], counts[s] + ROWS):  # what fills up the last tile: any row will do
            drawn[s, r] = drawn[s, 0]
        for start in range(0, counts[s], width):
            count = min(width, counts[s] - start)
            index = drawn[s, start : start + count + ROWS]
            _forward(x, index, own, count, plan, work)
            _errors(work[last[7] :], work[last[8] :], last[10], count, last[1], index, labels)
            _backward(index, own, count, squares, plan, work, norms)
            for r in range(count):
                norm = math.sqrt(norms[r]) / clip
                norms[r] = weight if norm <= _ONE else weight / norm
            _sum(g, x, index, own, count, plan, work, norms, tile, start > 0)


PIECE = 4096
"""Steps in one go: a power of two, and few enough for the cache."""


@compile_kernel()
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
