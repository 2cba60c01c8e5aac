"""Exact rounding: against multiple precision, and by counting bits: which outputs can come out, and how often."""

import hashlib
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import special, stats

from confide.mechanism import exact_rounding
from confide.mechanism.exact_rounding import FINE, GRID

pytestmark = [pytest.mark.optimised, pytest.mark.processor]
WORST = 2.0  # standard deviations by which neighbours are apart
CLAIMED = 1e-12 * 1e-3 / 1e9  # of the smallest delta, a thousandth; over as many coordinates


def tail(boundary, grid=GRID):
    """P[|Z| > boundary / grid]."""
    return mpmath.erfc(mpmath.mpf(boundary) / int(grid) / mpmath.sqrt(2))


def decided(words, grid=GRID):
    with jax.enable_x64(True):
        values, undecided = exact_rounding.gaussian(jnp.asarray(np.array(words, np.uint64)), grid)
        return np.asarray(values), np.asarray(undecided)


def test_the_inverse_normal_against_multiple_precision():
    """A twelfth of what is allowed, wherever words lead; the coefficients are right far beyond."""
    rng = np.random.default_rng(0)
    tails = np.concatenate(
        [2.0 ** -rng.uniform(1, 65, 1500), rng.uniform(0, 0.5, 1500), 10.0 ** -rng.uniform(19, 300, 500), [0.5, 0.075]]
    )
    with jax.enable_x64(True):
        found = np.asarray(jax.jit(exact_rounding.quantile)(jnp.asarray(tails)))
    with mpmath.workdps(50):  # Newton's correction is the error
        z = [mpmath.mpf(value) for value in found.tolist()]
        error = [
            (mpmath.erfc(a / mpmath.sqrt(2)) / 2 - p) * mpmath.sqrt(2 * mpmath.pi) * mpmath.exp(a * a / 2)
            for a, p in zip(z, tails.tolist(), strict=True)
        ]
    error = np.abs(np.array(error, np.float64)) / (1 + found)
    assert np.max(error) < exact_rounding.ERROR / 12
    assert np.max(error) > 2.0**-60  # it is no comparison with itself


def exact(word, more, grid=GRID):
    with mpmath.workdps(120):
        probability = (mpmath.mpf(((word & (2**63 - 1)) << 128) + more) + 0.5) / mpmath.mpf(2) ** 191
        z = mpmath.sqrt(2) * mpmath.erfinv(1 - probability)
        magnitude = int(mpmath.floor(z * int(grid) + mpmath.mpf(1) / 2))
    return -magnitude if word >> 63 else magnitude


def boundary_words(grid):
    """Words whose normal lies as close as 64 bits allow to where the rounding changes."""
    words = []
    with mpmath.workdps(60):
        for z in (0, 0, 1e-6, 0.3, 1, 3, 6, 8):
            rank = int(mpmath.floor(tail(int(z * grid) + mpmath.mpf(1) / 2, grid) * 2**63))
            words += [max(0, rank + shift) for shift in (-2, -1, 0, 1, 2)]
    return words


@pytest.mark.parametrize("grid", [GRID, FINE])
def test_the_rounded_gaussian_is_exact(grid):
    rng = np.random.default_rng(0)
    words = [*rng.integers(0, 2**64, 300, dtype=np.uint64).tolist(), *boundary_words(grid), 0, 1, 2, 2**63, 2**63 + 1]
    words += [2**63 - 1, 2**64 - 1]
    more = 12345678901234567890123456789
    values, undecided = decided(words, grid)
    assert np.all(undecided[300 : 300 + len(boundary_words(grid))][2::5])  # a boundary inside the word itself
    assert np.mean(undecided[:300]) < 0.1
    for word, value, unknown in zip(words, values.tolist(), undecided.tolist(), strict=True):
        truth = exact(word, more, grid)
        assert exact_rounding.finish_gaussian(grid, word, lambda number: more) == truth
        assert unknown or value == truth


def test_further_bits_are_asked_for_until_they_tell():
    asked = []

    def more(number):
        asked.append(number)
        return 0 if number < 5 else 1 << 120

    found = exact_rounding.finish_gaussian(GRID, 0, more)
    assert asked == [0, 1, 2, 3, 4, 5]
    with mpmath.workdps(400):  # a tail of 2^-(63 + 5 * 128 + 8), in between it and the next string of as many bits
        assert tail(found + mpmath.mpf(1) / 2) <= mpmath.mpf(2) ** -711 <= tail(found - mpmath.mpf(1) / 2)


def strings(magnitude, bits):
    """How many strings of so many bits prove that |Z| rounds to this, counted exactly; and the first and the last."""
    with mpmath.workprec(bits + 200):
        half = mpmath.mpf(1) / 2
        first = int(mpmath.ceil(tail(magnitude + half) * mpmath.mpf(2) ** bits))
        last = int(mpmath.floor(tail(magnitude - half) * mpmath.mpf(2) ** bits)) - 1 if magnitude else 2**bits - 1
        return max(0, last - first + 1), first, last


def impossible(bits, shift):
    """The mass of outputs with a Gaussian of so many bits that its neighbour, `shift` deviations away, cannot give."""
    low, high = 0, int(60 * GRID)
    while high - low > 1:  # strings become fewer with the magnitude
        middle = (low + high) // 2
        low, high = (middle, high) if strings(middle, bits)[0] else (low, middle)
    with mpmath.workdps(60):
        return float(tail(high - mpmath.mpf(1) / 2 - shift * int(GRID)) / 2), high


def test_no_output_rules_out_a_neighbour():
    """Counted, not simulated, for steps and for single releases, which share the rule: a mass far below any delta.

    Three times 128 further bits are looked at here; the rule itself goes on for as long as it takes.
    """
    bits = 63 + 3 * exact_rounding.MORE
    for shift in (0.0, 0.1, 1.0, WORST):
        mass, last = impossible(bits, shift)
        assert mass < CLAIMED
        assert last > 24 * GRID
        assert impossible(63, shift)[0] > CLAIMED or shift == 0  # 64 bits alone would not do: the count can tell
    assert impossible(63, WORST)[0] > 1e-12
    for z in (0, 1, 2, 5, 2**20, 3 * 2**26 + 1, 7 * 2**26 + 5, 13 * 2**26, 20 * 2**26, last - 1):
        count, *ends = strings(z, bits)
        assert count > 0
        for string in ends:  # the code agrees on the very first and last string of the cell
            word, rest = string >> (bits - 63), string & (2 ** (bits - 63) - 1)
            more = [
                (rest >> (exact_rounding.MORE * (2 - number))) & (2**exact_rounding.MORE - 1) for number in range(3)
            ]
            assert exact_rounding.finish_gaussian(GRID, word, lambda number, more=more: more[number]) == z
            (value,), (unknown,) = decided([word])
            assert unknown or value == z


@pytest.mark.parametrize("where", [0.0, 0.4, 1.3, 2.9, 4.5, 6.1, 7.7])
def test_cells_have_their_exact_probability(where):
    """The words that are decided for a cell are counted at both of its ends: none belongs to a neighbouring cell."""
    for magnitude in (int(where * GRID) + extra for extra in (0, 1, 12345)):
        with mpmath.workdps(60):
            edges = [int(mpmath.floor(tail(magnitude + mpmath.mpf(side) / 2) * 2**63)) for side in (1, -1)]
        for edge, inner in zip(edges, (1, -1), strict=True):
            few = min(2**18, strings(magnitude, 63)[0], strings(abs(magnitude + inner), 63)[0])  # within both cells
            offsets = np.unique(np.round(np.geomspace(1, max(1, few), 60))).astype(int)
            words = [edge + sign * int(k) for k in offsets for sign in (1, -1)]
            words = [word for word in words if 0 <= word < 2**63]
            values, undecided = decided([edge, *words] if edge < 2**63 else words)
            if edge < 2**63:
                assert undecided[0]  # the word that the boundary goes through
                values, undecided = values[1:], undecided[1:]
            inside = (np.array(words, object) > edge) == (inner == 1)
            right = values == np.where(inside, magnitude, magnitude + inner)
            assert np.all(undecided | right)
            assert where > 3 or not words or not np.all(undecided)  # it can tell


def old_lattice(index):
    """What jax.random.normal in double precision gives: 2^52 uniforms in (-1, 1) through erfinv, near zero."""
    return math.sqrt(2) * special.erfinv(np.asarray(index, np.float64) * 2.0**-51)


def test_the_same_count_refutes_normals_in_double_precision():
    """Noise of 2^52 values, in single precision at the end: of the outputs nearest to zero hardly any is possible for a
    neighbour half a standard deviation away. Here those of 2^17 of the values, each of probability 2^-52."""
    shift, index = 0.5, np.arange(1, 2**16)
    outputs = np.concatenate([old_lattice(index), -old_lattice(index)]).astype(np.float32)
    wanted = special.erf((outputs.astype(np.float64) - shift) / math.sqrt(2)) * 2.0**51
    possible = np.zeros(outputs.size, bool)
    for step in range(-3, 4):  # the values of the neighbour next to what it would take
        possible |= (shift + old_lattice(np.round(wanted) + step)).astype(np.float32) == outputs
    assert np.mean(~possible) > 0.9
    assert np.sum(~possible) * 2.0**-52 > 1e6 * CLAIMED


@pytest.mark.parametrize("q", [0.5, 0.01, 1e-6, 0.99])
def test_gaps_are_exact(q):
    """Random words, and those next to where the gap changes, against multiple precision."""
    rng, most = np.random.default_rng(1), 10**9
    words = rng.integers(0, 2**64, 200, dtype=np.uint64).tolist()
    with mpmath.workdps(60):
        for gap in (1, 2, 7, 40):
            edge = int(mpmath.floor((1 - mpmath.mpf(q)) ** gap * 2**64))
            words += [min(max(edge + k, 0), 2**64 - 1) for k in (-3, -2, -1, 0, 1, 2, 3)]
    words += [0, 1, 2, 3, 2**40, 2**64 - 1]
    with jax.enable_x64(True):
        found = exact_rounding.gap(jnp.asarray(np.array(words, np.uint64)), 1 / math.log1p(-q), float(most))
    more = 98765432109876543210987654321
    assert np.mean(np.asarray(found[1])[:200]) < 0.05
    for word, value, unknown in zip(words, *(np.asarray(part).tolist() for part in found), strict=True):
        with mpmath.workdps(120):
            u = (mpmath.mpf(((word >> 1) << 128) + more) + 0.5) / mpmath.mpf(2) ** 191
            truth = min(most, int(mpmath.floor(mpmath.log(u) / mpmath.log1p(-mpmath.mpf(q)))))
        assert exact_rounding.finish_gap(q, most, word, lambda number: more) == truth
        assert unknown or value == truth


def test_long_gaps_have_their_probability():
    """Of words that begin with 60 zeros, the further bits decide: a gap of 70 of probability 2^-70 is there."""
    q, counts = 0.5, np.zeros(90, int)
    for rest in range(16):
        for more in range(0, 2**128, 2**118):
            counts[min(89, exact_rounding.finish_gap(q, 10**9, rest, lambda number, more=more: more | 1))] += 1
    assert counts[:60].sum() == 0
    shares = counts[60:66] / counts.sum()
    assert shares == pytest.approx(0.5 ** np.arange(1, 7), rel=1e-9)


def stream(seed):
    def drawn(number, bits):
        return int.from_bytes(hashlib.shake_256(f"{seed} {number}".encode()).digest(bits // 8), "big")

    return drawn


@pytest.mark.parametrize("count", [1, 2, 7])
def test_spherical_noise_against_its_formula(count):
    for seed in range(20):
        uniform = [stream(seed)(number, 64) / 2.0**64 for number in range(2 * -(-count // 2) + count)]
        pairs = -(-count // 2)
        sizes, angles = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * np.pi * np.array(uniform[pairs : 2 * pairs])
        normal = np.stack([sizes * np.cos(angles), sizes * np.sin(angles)], axis=1).ravel()[:count]
        length = -np.sum(np.log(uniform[2 * pairs :]))
        found = exact_rounding.spherical(count, stream(seed))
        assert found / GRID == pytest.approx(normal / np.linalg.norm(normal) * length, rel=1e-6, abs=1e-6)
        fine = exact_rounding.spherical(count, stream(seed), FINE)
        assert np.all(np.abs(fine / FINE * GRID - found) <= 0.5 + 1e-3)


def test_spherical_noise_has_its_law_and_no_end():
    """One coordinate is a Laplace variable; bits that begin with 500 zeros are read on, to a length beyond 346."""
    drawn = np.array([exact_rounding.spherical(1, stream(seed))[0] for seed in range(3000)]) / GRID
    assert stats.kstest(drawn, "laplace").pvalue > 1e-6
    assert stats.kstest(drawn * 1.5, "laplace").pvalue < 1e-6
    asked = []

    def zeros(number, bits):
        """One half, but for the first exponential, whose bits begin with 500 zeros; the angle is an eighth."""
        asked.append(bits)
        return (1 << bits) >> {1: 3, 2: 501}.get(number, 1)

    length = exact_rounding.spherical(2, zeros) / GRID
    assert set(asked) == {256, 512, 1024}  # at 512 bits it is not known well enough
    assert np.linalg.norm(length) == pytest.approx(math.log(2) * 502, rel=1e-6)
