r"""Private Fisher scoring: what is asked of the records, question by question, and nothing that sees one.

1. The **scale** of rows (and of counts) is bought: b, the usual norm. Where it does not stand out of its noise, nobody
   knows what sums mean, and the draws are the prior's.
2. The **information** at the start tells second moments of the rows (`inference.moments`), and so a root A in whose
   coordinates u = A z all directions are alike: noise and clip act where the information is equal.
3. **Steps**: each asks for the noisy sum of bounded scores at the mode of what is known so far
   (`inference.noise_aware`), with a budget that grows by `GROWTH`: the last ones are the nearest, and count most.
4. The **information at the end**, in the same coordinates, corrects the moments.

All of it is planned from the declared number of records, the number of parameters and the budget alone. Sums that were
asked for far from the mode count less, by `MISFIT` of what they should be: there the moments have to be right.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import numpy as np

from confide.inference import moments, noise_aware
from confide.inference.moments import Shrunk
from confide.inference.noise_aware import SCORES, Rows, Told
from confide.mechanism.scale import REACH, Scale, typical_information
from confide.models.family import Family

SHARES = {
    "start": 0.12,
    "steps": 0.77,
    "end": 0.10,
}  # of what the scale leaves of the square of mu; they are scaled to 1
STEPS, GROWTH = 9, 2.2
CLIP = 0.1  # usual norms times the root of the information of a usual record
MISFIT = 0.1
COUNTED = 6  # queries that the likelihood looks at
FLOOR = 0.05  # eigenvalue of the second moments below which a direction is whitened no further, over their mean
LARGEST_MISFIT = 0.25  # of the information as a whole
LARGEST_BEND = 0.5  # of its directions, over the root of the number of parameters
ITERATIONS = 5
NOTHING = 1e200  # variance of the noise where the likelihood is to say nothing


def constants() -> tuple[float, ...]:
    """Whatever decides what is asked, beside the plan: a run that was begun with others is not gone on with."""
    return (*SHARES.values(), STEPS, GROWTH, CLIP, MISFIT, COUNTED, FLOOR, ITERATIONS, REACH)


class Frame(NamedTuple):
    """What is public before the first question about scores."""

    family: Family
    number: int  # of records, as declared
    constant: int | None  # place of the parameter whose column is 1 in all rows
    prior_scale: float
    norm: float  # b
    clip: float
    typical: float
    seen: bool  # whether the scale is: else nothing that follows tells anything, and draws are the prior's
    start: np.ndarray

    @property
    def row_bound(self) -> float:
        """In units of the clip, in which all sums are asked for."""
        return REACH * self.norm / self.clip

    @property
    def information_bound(self) -> float:
        """Of a record's information, in the same units."""
        return self.family.information_bound(REACH * self.norm, self.clip, self.typical) / self.clip**2

    @property
    def threshold(self) -> float:
        """Of a usual row."""
        return self.clip / self.norm

    @property
    def tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """w, E psi^2, and what the information is weighted by, at `SCORES`."""
        slope, variance = self.family.score_moments(SCORES, self.threshold, self.typical)
        weight = self.family.information_weight(SCORES, np.asarray(self.threshold), self.typical)
        return slope / np.maximum(self.family.slope_of_mean(SCORES), 1e-300), variance, weight


class Geometry(NamedTuple):
    """What the first information tells."""

    root: np.ndarray  # A, symmetric
    shrunk: Shrunk
    variance: float  # of the noise in second moments


class Answers(NamedTuple):
    """Positions in coordinates of the root, noisy sums there, and the variance of their noise."""

    positions: np.ndarray
    sums: np.ndarray
    variances: np.ndarray


def frame(
    family: Family, number: int, size: int, constant: int | None, prior_scale: float, scale: Scale, mu: float
) -> Frame:
    """At the scale that was bought; mu is what one record may reveal by all scores."""
    typical = typical_information(family, scale) if family.unknown_information else family.usual_residual**2
    length = CLIP
    if not family.deep_clip:
        short, fall = family.balance
        length = max(CLIP, short / (1 + fall * size / (number * mu**2)))
    clip = length * scale.norm * (math.sqrt(typical) if family.kind == "regression" else 1.0)
    start = np.zeros(size)
    if family.unknown_information and constant is not None:
        start[constant] = math.log(max(scale.outcome, 0.05))
    return Frame(family, number, constant, prior_scale, scale.norm, clip, typical, scale.seen, start)


def geometry(here: Frame, noisy: np.ndarray, deviation: float) -> Geometry:
    """From the information at the start, in units of the clip, and the standard deviation of its noise."""
    noisy, deviation = noisy * here.clip**2, deviation * here.clip**2
    score = np.array([0.0 if here.constant is None else here.start[here.constant]])
    unit = here.number * float(here.family.information_weight(score, np.asarray(here.threshold), here.typical)[0])
    variance = (deviation / unit) ** 2
    shrunk = moments.shrink(noisy / unit, variance, here.norm**2, here.constant)
    values, vectors = moments.floor_eigenvalues(shrunk.second, FLOOR)
    root = moments.rebuild(here.norm / here.clip / math.sqrt(len(noisy)) / np.sqrt(values), vectors)
    second = moments.rebuild(*moments.floor_eigenvalues(shrunk.second, 1e-6))
    if here.constant is not None:
        second = second / second[here.constant, here.constant]
    return Geometry(root, Shrunk(second, shrunk.kept), variance)


def rows_of(here: Frame, second: np.ndarray) -> Rows:
    found = moments.split(second, here.constant)
    return Rows(found.mean, found.covariance, np.eye(len(second)))


def gather(here: Frame, root: np.ndarray, rows: Rows, answers: Answers, middle: np.ndarray) -> Told:
    """The queries that count, with weights for a truth in the middle."""
    size = len(root)
    weights, variances, _ = here.tables
    known = Told(
        root, float(here.number), weights, variances, answers.positions, np.ones(1), np.zeros(size), 0.0,
        np.ones(size), np.eye(size), 1.0, root @ root / here.prior_scale**2,
    )  # fmt: skip
    expected = np.asarray(noise_aware.expect_each(here.family, known, rows, answers.positions, middle))
    total = answers.variances + MISFIT**2 * np.sum(expected**2, axis=1) / size
    taken = np.argsort(total, kind="stable")[:COUNTED]
    shares = (1 / total[taken]) / np.sum(1 / total[taken])
    spread = root @ np.asarray(noise_aware.weigh_rows(variances, rows, root @ middle)) @ root
    values, vectors = moments.decompose(here.number * spread)
    return known._replace(
        positions=answers.positions[taken],
        shares=shares,
        mean=shares @ answers.sums[taken],
        noise=float(np.sum(shares**2 * total[taken])) if here.seen else NOTHING,
        values=np.maximum(values, 0.0),
        vectors=vectors,
        level=float(noise_aware.mean_over_rows(variances, rows, root @ middle)),
    )


def locate(here: Frame, root: np.ndarray, rows: Rows, answers: Answers, middle: np.ndarray) -> np.ndarray:
    """The mode of what is known: where the next question is asked."""
    for _ in range(2):
        told = gather(here, root, rows, answers, middle)
        found, _ = noise_aware.find_mode(here.family, told, rows, middle, ITERATIONS)
        middle = np.asarray(found)
    return middle


def growing(steps: int) -> np.ndarray:
    """Shares of the steps."""
    shares = GROWTH ** np.arange(float(steps))
    return shares / shares.sum()


class Corrected(NamedTuple):
    """Rows as the information at the end leaves them: in the mean, and as often as is asked for."""

    mean: Rows
    drawn: Rows  # with a first axis


def correct(
    here: Frame, found: Geometry, end: tuple[np.ndarray, float], middle: np.ndarray, key: jax.Array, count: int
) -> Corrected:
    """Moments from both informations; what is left of the last one is a factor near 1.

    In the eigenbasis of the moments in coordinates of the root, entries of either are taken as independent.
    """
    root, theta, (noisy, deviation) = found.root, found.root @ middle, end
    size, table = len(root), here.tables[2]
    rows = rows_of(here, found.shrunk.second)
    level = float(noise_aware.mean_over_rows(table, rows, theta))
    whole = root @ np.asarray(noise_aware.weigh_rows(table, rows, theta)) @ root
    ratio = _shrunk_ratio(float(np.trace(noisy)) / here.number / float(np.trace(whole)), size, whole, here, deviation)
    second = root @ found.shrunk.second @ root
    rest = whole - level * second
    seen = (noisy / here.number / ratio - rest) / level
    _, basis = moments.decompose(second)
    stretch = np.einsum("ji,ji->i", basis, root @ root @ basis)
    before = found.shrunk.kept * found.variance * np.outer(stretch, stretch)
    after = (deviation / here.number / level / ratio) ** 2
    share = before / (before + after)
    centre = basis.T @ second @ basis
    centre = centre + share * (basis.T @ seen @ basis - centre)
    half = np.where(np.eye(size) > 0, 1.0, 0.5)
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())

    def draw(size_of_noise: float) -> np.ndarray:
        noise = np.triu(generator.standard_normal((size, size)))
        noise = size_of_noise * np.sqrt(half * share * after) * (noise + np.triu(noise, 1).T)
        held = moments.rebuild(*moments.floor_eigenvalues(centre + noise, 1e-7))
        return np.linalg.solve(root, np.linalg.solve(root, basis @ held @ basis.T).T)

    mean = rows_of(here, draw(0.0))
    bends = _bends(here, root, mean, (noisy, deviation), theta, generator, count)
    every = [rows_of(here, draw(1.0))._replace(factor=bend) for bend in bends]
    return Corrected(mean, Rows(*(np.stack(column) for column in zip(*every, strict=True))))


def _shrunk_ratio(ratio: float, size: int, whole: np.ndarray, here: Frame, deviation: float) -> float:
    variance = size * (deviation / here.number / float(np.trace(whole))) ** 2
    return max(1 + moments.keep_share((ratio - 1) ** 2, 1, variance, LARGEST_MISFIT**2) * (ratio - 1), 0.2)


def _bends(
    here: Frame,
    root: np.ndarray,
    rows: Rows,
    end: tuple[np.ndarray, float],
    theta: np.ndarray,
    generator: np.random.Generator,
    count: int,
) -> list[np.ndarray]:
    """Draws of K = T^1/2 ((1 + a) I + E) T^-1/2, T what the information should be; a and E small, of unknown scales."""
    noisy, deviation = end
    size, eye = len(root), np.eye(len(root))
    expected = here.number * root @ np.asarray(noise_aware.weigh_rows(here.tables[2], rows, theta)) @ root
    values, basis = moments.floor_eigenvalues(expected, 1e-6)
    roots = np.sqrt(values)
    away = basis.T @ noisy @ basis / np.outer(roots, roots) - eye
    variance = np.where(eye > 0, 1.0, 0.5) * deviation**2 / np.outer(values, values)
    precise = 1 / np.diag(variance)
    whole, unsure = float(np.sum(precise * np.diag(away)) / np.sum(precise)), 1 / float(np.sum(precise))
    share = moments.keep_share(whole**2, 1, unsure, LARGEST_MISFIT**2)
    upper = np.triu_indices(size)
    seen, noise = (away - share * whole * eye)[upper], variance[upper]
    half = np.where(upper[0] == upper[1], 1.0, 0.5)
    scales = np.exp(np.linspace(math.log(1e-8), math.log(LARGEST_BEND**2 / size), 60))
    total = scales[:, None] * half + noise
    density = -0.5 * np.sum(np.log(total) + seen**2 / total, axis=1)
    chances = np.exp(density - density.max())
    chances /= chances.sum()
    found = []
    for _ in range(count):
        scale = generator.choice(scales, p=chances) * half
        kept = scale / (scale + noise)
        drawn = np.zeros((size, size))
        drawn[upper] = kept * seen + np.sqrt(kept * noise) * generator.standard_normal(seen.size)
        a = share * whole + math.sqrt(share * unsure) * generator.standard_normal()
        held = moments.rebuild(*moments.floor_eigenvalues((1 + a) * eye + drawn + np.triu(drawn, 1).T, 0.1))
        found.append((basis * roots) @ held @ (basis / roots).T)
    return found
