"""Floating point against exact rational arithmetic, rounded by hand."""

from fractions import Fraction

import numpy as np
import pytest

from tests.kernels.emulator.snippet import apply

SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0**-149, -(2.0**-149), 2.0**-126]
SPECIAL += [3.4028235e38, -3.4028235e38, 1.5, 2.0**24 + 2, 1e-40, 0.1]


def floats(seed: int = 0) -> np.ndarray:
    """Special values among random ones of all sizes."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 2**32, 32, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32).copy()
    values[: len(SPECIAL)] = SPECIAL
    return random.permutation(values)


def near(seed: int = 0) -> np.ndarray:
    """Values of similar size, so that sums round."""
    random = np.random.default_rng(seed)
    return (random.standard_normal(32) * 2.0 ** random.integers(-12, 12, 32)).astype(np.float32)


def rounded(exact: Fraction, mode: str) -> np.float32:
    """The f32 next to an exact value, in a direction; inside the finite range."""
    guess = np.float32(float(exact))
    below = guess
    while Fraction(float(below)) > exact:
        below = np.nextafter(below, np.float32(-np.inf))
    above = below
    if Fraction(float(below)) < exact:
        above = np.nextafter(below, np.float32(np.inf))
    if mode == "rm":
        return below
    if mode == "rp":
        return above
    if mode == "rz":
        return below if exact >= 0 else above
    low, high = exact - Fraction(float(below)), Fraction(float(above)) - exact
    if low == high:
        return below if int(below.view(np.uint32)) % 2 == 0 else above
    return below if low < high else above


def exactly(op, mode, *arrays):
    rows = zip(*arrays, strict=True)
    return np.array([rounded(op(*(Fraction(float(x)) for x in row)), mode) for row in rows])


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(
    ("op", "python"),
    [("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("mul", lambda a, b: a * b)],
)
def test_rounding_of_two(op, python, mode):
    a, b = near(), near(1)
    b[:4] = 2.0**-30  # sums whose tail is far below

    got = apply(f"{op}.{mode}.f32 $d, $a, $b;", a, b, out="f4")

    np.testing.assert_array_equal(got, exactly(python, mode, a, b))


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_fma_rounds_once(mode):
    a, b, c = near(), near(1), near(2)

    got = apply(f"fma.{mode}.f32 $d, $a, $b, $c;", a, b, c, out="f4")

    np.testing.assert_array_equal(got, exactly(lambda x, y, z: x * y + z, mode, a, b, c))


def test_fma_of_sums_that_two_roundings_get_wrong():
    a = np.full(32, 1 + 2.0**-12, "f4")
    b = np.full(32, 1 + 2.0**-12, "f4")  # a * b = 1 + 2^-11 + 2^-24: a tie of f32
    c = np.full(32, 2.0**-60, "f4")  # which this breaks, below what f64 keeps
    c[1::2] *= -1

    got = apply("fma.rn.f32 $d, $a, $b, $c;", a, b, c, out="f4")

    twice = (a.astype("f8") * b + c).astype("f4")
    np.testing.assert_array_equal(got, exactly(lambda x, y, z: x * y + z, "rn", a, b, c))
    assert got[0] != twice[0]


def test_special_values():
    a, b = floats(), floats(1)

    for op in ("add", "sub", "mul"):
        got = apply(f"{op}.f32 $d, $a, $b;", a, b, out="f4")
        python = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[op]
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(got, python(a, b))


def test_pairs_are_two_operations():
    random = np.random.default_rng(0)
    a, b, c = (random.standard_normal((32, 2)).astype("f4") for _ in range(3))
    packed = [x.view("u8")[:, 0] for x in (a, b, c)]

    got = apply("fma.rn.f32x2 $d, $a, $b, $c;", *packed, out="u8").view("f4").reshape(32, 2)
    total = apply("add.rm.f32x2 $d, $a, $b;", *packed[:2], out="u8").view("f4").reshape(32, 2)

    for half in range(2):
        wanted = exactly(lambda x, y, z: x * y + z, "rn", a[:, half], b[:, half], c[:, half])
        np.testing.assert_array_equal(got[:, half], wanted)
        np.testing.assert_array_equal(
            total[:, half], exactly(lambda x, y: x + y, "rm", a[:, half], b[:, half])
        )


def test_flush_to_zero_takes_inputs_and_results():
    a = np.array([1e-40, -1e-40, 2.0**-126, 1.0] * 8, "f4")
    b = np.array([2.0**100, 2.0**100, 0.5, 1e-40] * 8, "f4")

    kept = apply("mul.f32 $d, $a, $b;", a, b, out="f4")
    flushed = apply("mul.ftz.f32 $d, $a, $b;", a, b, out="f4")

    np.testing.assert_array_equal(kept[:4], (a * b)[:4])
    assert flushed[:4].tolist() == [0, 0, 0, 0]
    assert np.signbit(flushed[:4]).tolist() == [False, True, False, False]
    assert kept[0] != 0


def test_saturation():
    a = np.array([-1, 0.25, 3, np.nan] * 8, "f4")

    got = apply("add.sat.f32 $d, $a, $b;", a, np.zeros(32, "f4"), out="f4")

    assert got[:4].tolist() == [0, 0.25, 1, 0]


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("three", [False, True])
def test_extremes(op, nan, three):
    a, b, c = floats(), floats(1), floats(2)
    a[:4], b[:4] = [0.0, -0.0, 0.0, -0.0], [-0.0, 0.0, 0.0, -0.0]
    inputs = (a, b, c) if three else (a, b)
    operands = "$a, $b, $c" if three else "$a, $b"

    got = apply(f"{op}{'.NaN' if nan else ''}.f32 $d, {operands};", *inputs, out="f4")

    def pick(values: list[float]) -> float:
        kept = [v for v in values if v == v]  # noqa: PLR0124 - not NaN
        if not kept or (nan and len(kept) < len(values)):
            return np.nan
        key = lambda v: (v, not np.signbit(v))
        return min(kept, key=key) if op == "min" else max(kept, key=key)

    wanted = np.array([pick([float(v) for v in row]) for row in zip(*inputs, strict=True)], "f4")
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted))


@pytest.mark.parametrize(
    ("form", "python", "error"),
    [
        ("ex2.approx.ftz", lambda x: 2.0**x, 2.0**-22),
        ("rcp.approx.ftz", lambda x: 1 / x, 2.0**-23),
        ("rcp.rn", lambda x: 1 / x, 2.0**-24),
        ("rsqrt.approx", lambda x: abs(x) ** -0.5, 2.0**-22),
        ("sqrt.rn", lambda x: abs(x) ** 0.5, 2.0**-24),
        ("sqrt.approx.ftz", lambda x: abs(x) ** 0.5, 2.0**-22),
        ("lg2.approx.ftz", lambda x: np.log2(abs(x)), 2.0**-20),
        ("tanh.approx", np.tanh, 2.0**-11),
        ("sin.approx", np.sin, 2.0**-20),
        ("cos.approx", np.cos, 2.0**-20),
    ],
)
def test_approximations_are_within_what_ptx_promises(form, python, error):
    a = near(3)
    if form.startswith(("sqrt", "rsqrt", "lg2")):
        a = np.abs(a)

    got = apply(f"{form}.f32 $d, $a;", a, out="f4").astype("f8")

    wanted = python(a.astype("f8"))
    inside = (np.abs(wanted) > 2.0**-126) & (np.abs(wanted) < 3e38)
    assert inside.sum() > 20
    assert (
        np.abs(got - wanted)[inside] <= error * np.maximum(np.abs(wanted), 2.0**-3)[inside]
    ).all()


def test_edges_of_ex2_and_rcp():
    a = np.array([-np.inf, np.inf, np.nan, -127, -126, 0, -0.0, 128] * 4, "f4")

    power = apply("ex2.approx.ftz.f32 $d, $a;", a, out="f4")
    inverse = apply("rcp.approx.ftz.f32 $d, $a;", a, out="f4")

    np.testing.assert_array_equal(power[:8], [0, np.inf, np.nan, 0, 2.0**-126, 1, 1, np.inf])
    np.testing.assert_array_equal(inverse[[0, 1, 2, 5, 6]], [0, 0, np.nan, np.inf, -np.inf])
    assert np.signbit(inverse[0])


@pytest.mark.parametrize("how", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("unordered", [False, True])
def test_comparisons_with_nan(how, unordered):
    a, b = floats(), np.where(np.arange(32) % 4 == 0, floats(), floats(1))

    got = apply(f"setp.{how}{'u' if unordered else ''}.f32 $d, $a, $b;", a, b, out=bool)

    table = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

    def one(x: float, y: float) -> bool:
        if np.isnan(x) or np.isnan(y):
            return unordered
        return bool(eval(f"x {table[how]} y", {"x": x, "y": y}))  # noqa: S307 - our own text

    assert got.tolist() == [one(float(x), float(y)) for x, y in zip(a, b, strict=True)]


def test_ordered_and_unordered():
    a, b = floats(), floats(1)

    num = apply("setp.num.f32 $d, $a, $b;", a, b, out=bool)
    nan = apply("setp.nan.f32 $d, $a, $b;", a, b, out=bool)

    np.testing.assert_array_equal(nan, np.isnan(a) | np.isnan(b))
    np.testing.assert_array_equal(num, ~nan)


def test_doubles_signs_and_divisions():
    a, b = near(), near(1)
    wide = np.random.default_rng(0).standard_normal((2, 32))

    np.testing.assert_array_equal(
        apply("mul.f64 $d, $a, $b;", wide[0], wide[1], out="f8"), wide[0] * wide[1]
    )
    np.testing.assert_array_equal(apply("neg.f32 $d, $a;", a, out="f4"), -a)
    np.testing.assert_array_equal(apply("abs.ftz.f32 $d, $a;", a, out="f4"), np.abs(a))
    np.testing.assert_array_equal(
        apply("copysign.f32 $d, $a, $b;", a, b, out="f4"), np.copysign(b, a)
    )
    np.testing.assert_array_equal(
        apply("div.rn.f32 $d, $a, $b;", a, b, out="f4"), exactly(lambda x, y: x / y, "rn", a, b)
    )


def bf16(x: np.ndarray) -> np.ndarray:
    """Raw bf16 of f32, to nearest even, by exact arithmetic."""
    result = []
    for value in x:
        bits = int(value.view("u4"))
        low, high = bits >> 16 << 16, (bits >> 16) + 1 << 16
        rest = bits - low
        up = rest > 0x8000 or (rest == 0x8000 and low >> 16 & 1)
        result.append((high if up else low) >> 16 & 0xFFFF)
    return np.array(result, "u2")


@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma.rn"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_half_arithmetic_rounds_once(op, kind):
    random = np.random.default_rng(0)
    values = [random.standard_normal(32).astype("f4") for _ in range(3)]
    raw = [bf16(v) if kind == "bf16" else v.astype("f2") for v in values]
    real = [(r.astype("u4") << 16).view("f4") if kind == "bf16" else r.astype("f4") for r in raw]
    count = 3 if op == "fma.rn" else 2
    operands = "$a, $b, $c" if count == 3 else "$a, $b"

    got = apply(f"{op}.{kind} $d, {operands};", *raw[:count], out=raw[0].dtype)

    python = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b}
    exact = [
        python.get(op, lambda a, b, c=0: a * b + c)(*(Fraction(float(v[i])) for v in real[:count]))
        for i in range(32)
    ]
    for i, value in enumerate(exact):
        if kind == "f16":
            step = [
                np.nextafter(np.float16(float(value)), np.float16(s)) for s in (-np.inf, np.inf)
            ]
            near_ = [np.float16(float(value)), *step]
            best = min(abs(Fraction(float(n)) - value) for n in near_)
            assert abs(Fraction(float(got[i])) - value) == best
        else:
            mine = Fraction(float((got[i : i + 1].astype("u4") << 16).view("f4")[0]))
            for other in (got[i] - 1, got[i] + 1):
                near_ = Fraction(float((np.array([other], "u4") << 16).view("f4")[0]))
                assert abs(mine - value) <= abs(near_ - value)


@pytest.mark.parametrize("op", ["add", "sub", "fma.rn"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_mixed_arithmetic(op, kind):
    a, b, c = near(), near(1), near(2)
    raw = [bf16(x) if kind == "bf16" else np.clip(x, -1e4, 1e4).astype("f2") for x in (a, b)]
    real = [(r.astype("u4") << 16).view("f4") if kind == "bf16" else r.astype("f4") for r in raw]

    if op == "fma.rn":
        got = apply(f"fma.rn.f32.{kind} $d, $a, $b, $c;", *raw, c, out="f4")
        wanted = exactly(lambda x, y, z: x * y + z, "rn", *real, c)
    else:
        got = apply(f"{op}.f32.{kind} $d, $a, $b;", raw[0], c, out="f4")
        python = (lambda x, y: x + y) if op == "add" else (lambda x, y: x - y)
        wanted = exactly(python, "rn", real[0], c)

    np.testing.assert_array_equal(got, wanted)
