"""assay's inputs from a seed, in numpy, to the last bit: docs/random-inputs.md is the specification.

A test runs this file over requests of every distribution and type, and compares bits.
"""
import numpy as np

u32, u64, f64 = np.uint32, np.uint64, np.float64
LOW = u64(0xFFFFFFFF)


def key_of(seed, path):
    """FNV-1a-64 of the path xor the first output of splitmix64 at `seed`."""
    z = (seed + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    h = 0xCBF29CE484222325
    for byte in path.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return h ^ z ^ z >> 31


def words(key, stream, i):
    """Word i of a stream: word i mod 4 of Philox4x32-10 at the counter (i/4 low, i/4 high, stream, 0)."""
    i = np.asarray(i, u64)
    block = i // u64(4)
    x0, x1 = block & LOW, block >> u64(32)
    x2, x3 = np.full_like(block, stream), np.zeros_like(block)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = u64(0xD2511F53) * x0, u64(0xCD9E8D57) * x2
        x0, x1, x2, x3 = p1 >> u64(32) ^ x1 ^ u64(k0), p1 & LOW, p0 >> u64(32) ^ x3 ^ u64(k1), p0 & LOW
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return np.choose((i % u64(4)).astype(int), [x0, x1, x2, x3])


def below(w, n):
    return (w * u64(n) >> u64(32)).astype(f64)

# Sums of two float64, high part first. Every + - * / below is rounded to float64; nothing is fused. A product's low part is what
# Dekker's splitting into 26 and 27 bits gives, which is not always the whole rest: fma(x, y, -high) is another number.
# log and sincospi are those of SLEEF 3.5, cinz_log_u10 and cinz_sincospi_u05.

def upper(x):
    """x without its last 27 bits."""
    return (np.asarray(x, f64).view(u64) & u64(0xFFFFFFFFF8000000)).view(f64)


def product(x, y, more=()):
    """x y + the sum of `more`, added in this order; x and y are high parts."""
    xh, yh = upper(x), upper(y)
    xl, yl = x - xh, y - yh
    high = x * y
    low = (((xh * yh - high) + xl * yh) + xh * yl) + xl * yl
    for term in more:
        low = low + term
    return high, low


def times(x, y):
    return product(x[0], y[0], (x[0] * y[1], x[1] * y[0]))


def two_sum(a, b):
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


def plus(x, y):
    s, low = two_sum(x[0], y[0])
    return s, low + (x[1] + y[1])

def log(u):
    """u in (0, 1]."""
    e = ((u * (1 / 0.75)).view(u64) >> u64(52)).astype(f64) - 1023
    m = (u.view(u64) - (e.astype(np.int64) << 52).view(u64)).view(f64)  # u 2^-e, in [0.75, 1.5)
    n, d = two_sum(f64(-1), m), two_sum(f64(1), m)
    # x = n / d
    t = 1 / d[0]
    dh, th, nh = upper(d[0]), upper(t), upper(n[0])
    dl, tl, nl = d[0] - dh, t - th, n[0] - nh
    x = n[0] * t
    left = (((1 - dh * th) - dh * tl) - dl * th) - dl * tl
    low = ((((nh * th - x) + nh * tl) + nl * th) + nl * tl) + x * left
    x_low = t * (n[1] - x * d[1]) + low
    x2 = x * x
    x4 = x2 * x2
    x8 = x4 * x4
    c = [0.6666666666667333541, 0.3999999999635251990, 0.2857142932794299317, 0.2222214519839380009,
         0.1818605932937785996, 0.1525629051003428716, 0.1532076988502701353]
    p = x8 * (x4 * c[6] + (x2 * c[5] + c[4])) + (x4 * (x2 * c[3] + c[2]) + (x2 * c[1] + c[0]))
    s, s_low = product(f64(0.693147180559945286226764), e, (f64(2.319046813846299558417771e-17) * e,))
    a, b = 2 * x, 2 * x_low
    h = s + a
    s, s_low = h, (((s - h) + a) + s_low) + b
    y = x2 * x * p
    h = s + y
    s_low = ((s - h) + y) + s_low
    return h + s_low


SIN = [0.00249039457019271850274356, -3.6576204182161551920361e-05, 3.13361688966868392878422e-07,
       -1.75724749952853179952664e-09, 6.94821830580179461327784e-12, -2.02461120785182399295868e-14]
COS = [-0.000325991886927389905997954, 3.59086044859052754005062e-06, -2.4611369501044697495359e-08,
       1.15011582539996035266901e-10, -3.89796226062932799164047e-13, 9.94480387626843774090208e-16]


def horner(c, s):
    u = f64(c[-1])
    for k in c[-2::-1]:
        u = u * s + k
    return u


def sincospi(half_turns):
    """half_turns in [0, 2)."""
    u = half_turns * 4
    q = (u.astype(np.int64) + 1) & ~1
    t = u - q
    s = t * t
    s2 = product(t, t)

    def add_constant(a, high, low):
        h, l = two_sum(a, f64(high))
        return h, l + f64(low)

    x = add_constant(horner(SIN, s) * s, -0.0807455121882807852484731, 3.61852475067037104849987e-18)
    x = plus(times(s2, x), (f64(0.785398163397448278999491), f64(3.06287113727155002607105e-17)))
    x = product(x[0], t, (x[1] * t,))
    sine = x[0] + x[1]
    x = add_constant(horner(COS, s) * s, 0.0158543442438155018914259, -1.04693272280631521908845e-18)
    x = plus(times(s2, x), (f64(-0.308425137534042437259529), f64(-1.95698492133633550338345e-17)))
    x = times(x, s2)
    h, l = two_sum(x[0], f64(1))
    cosine = h + (l + x[1])
    swap = (q & 2) != 0
    sine, cosine = np.where(swap, cosine, sine), np.where(swap, sine, cosine)
    return np.where(q & 4, -sine, sine), np.where((q + 2) & 4, -cosine, cosine)


def normals(key, i):
    i = np.asarray(i, u64)
    even = i & ~u64(1)
    a, b = words(key, 0, even), words(key, 0, even + u64(1))
    radius = np.sqrt(-2 * log((a.astype(f64) + 1) * 2.0**-32))
    sine, cosine = sincospi(b.astype(f64) * 2.0**-31)
    return radius * np.where(i & u64(1), sine, cosine)

def bells(key, i, scale, mean):
    w = words(key, 0, i)
    total = sum(w >> u64(shift) & u64(255) for shift in (0, 8, 16, 24)).astype(np.float32)
    part, exponent = np.frexp(scale / np.sqrt(21845))
    step = np.ldexp(np.rint(np.ldexp(part, 15)), exponent - 15)
    return (np.float32(mean) + np.float32(step) * (total - np.float32(510))).astype(f64)

def fill(seed, path, shape, dtype, distribution, scale=1.0, mean=0.0, low=0.0, high=1.0, values=None):
    """All elements of a tensor as float64 numbers of its type."""
    key, row = key_of(seed, path), shape[-1] if shape else 1
    i = np.arange(np.prod(shape), dtype=u64)
    column, choices = i % u64(row), int(high - low) + 1
    if distribution == "normal":
        x = mean + scale * normals(key, i)
    elif distribution == "bell":
        x = bells(key, i, scale, mean)
    elif distribution == "uniform":
        x = low + (high - low) * (words(key, 0, i).astype(f64) * 2.0**-32)
    elif distribution == "integers":
        x = mean + scale * (low + below(words(key, 0, i), choices))
    elif distribution == "constant":
        x = np.full(i.shape, mean)
    elif distribution == "values":
        x = scale * np.asarray(values, f64)[i % u64(len(values))] + mean
    elif distribution == "near_ties":
        base = round_to(dtype, np.asarray([mean or 1.0]))[0]
        digits, least, _ = TYPES[dtype]
        ulp = 2.0 ** (max(int(np.floor(np.log2(abs(base)))), least) + 1 - digits)
        x = base + ulp * (low + below(words(key, 0, i), choices))
    elif distribution in ("block_powers", "row_powers"):
        size = 128 if distribution == "block_powers" else row
        block = i // u64(row) * u64(-(-row // size)) + column // u64(size)
        power = low + below(words(key, 1, block), choices)
        x = np.ldexp(mean + scale * normals(key, i), power.astype(int))
    elif distribution == "cancel":
        before = mean + scale * normals(key, i & ~u64(1))
        part = words(key, 1, i).astype(f64) * 2.0**-31 - 1
        x = np.where(i & u64(1), -(before * (1 + 2.0**-10 * part)), before)
    elif distribution == "ramp":
        x = mean + scale * column.astype(f64)
    elif distribution == "experts":
        x = experts(key, len(i) // row, row, int(high))
    elif distribution == "group_sizes":
        x = group_sizes(key, len(i), int(high))
    else:
        x = permutation(key, len(i))
    return round_to(dtype, np.asarray(x, f64)).reshape(shape)

def word(key, stream, i):
    return int(words(key, stream, i))


def experts(key, rows, columns, high):
    chosen = []
    for row in range(rows):
        free = list(range(high + 1))
        for j in range(columns):
            chosen.append(free.pop(word(key, 0, row * columns + j) * len(free) >> 32))
    return chosen


def group_sizes(key, groups, total):
    closed = word(key, 1, groups) * groups >> 32
    left = [g for g in range(groups) if g != closed and word(key, 1, g) >= 2**30]
    left = left or [(closed + 1) % groups]
    cuts = sorted(word(key, 0, i) * (total + 1) >> 32 for i in range(len(left) - 1))
    sizes = [0] * groups
    for g, start, end in zip(left, [0] + cuts, cuts + [total]):
        sizes[g] = end - start
    return sizes


def permutation(key, count):
    p = list(range(count))
    for i in range(count - 1, 0, -1):
        j = word(key, 0, i) * (i + 1) >> 32
        p[i], p[j] = p[j], p[i]
    return p

TYPES = {  # significand bits, exponent of the least normal number, largest number
    "float64": (53, -1022, 1.7976931348623157e308), "float32": (24, -126, (2 - 2.0**-23) * 2.0**127),
    "bfloat16": (8, -126, (2 - 2.0**-7) * 2.0**127), "float16": (11, -14, 65504.0),
    "float8_e4m3fn": (4, -6, 448.0), "float8_e5m2": (3, -14, 57344.0), "float4_e2m1fn": (2, 0, 6.0), "int32": (53, -1022, 2.0**31),
}


def round_to(dtype, x):
    digits, least, largest = TYPES[dtype]
    if digits == 53:
        return x
    power = 2.0 ** np.maximum(np.frexp(x)[1] - 1, least)
    c = power * 2.0 ** (53 - digits)
    size = (np.abs(x) + c) - c
    beyond = {"float8_e4m3fn": np.nan, "float4_e2m1fn": largest}.get(dtype, np.inf)
    return np.copysign(np.where(size > largest, beyond, size), x)

def from_recipe(line):
    """The path, type and elements of a tensor."""
    path, dtype, shape, _labels, *words = line.split()
    keys = dict(zip(words[::2], words[1::2]))
    shape = tuple(int(size) for size in shape[1:-1].split(",") if size)
    numbers = {name: float(keys[name]) for name in ("scale", "mean", "low", "high")}
    values = [float(value) for value in keys["values"].split(",")] if "values" in keys else None
    return path, dtype, fill(int(keys["seed"]), path, shape, dtype, keys["distribution"], **numbers, values=values)
