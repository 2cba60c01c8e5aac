r"""The design of the records, as noisy informations tell it: moments of rows, a root that whitens them, and the doubt.

The information at the start is about a multiple of the second moments. Where its noise is large, whitening by it would
stretch directions that are nothing but noise: eigenvalues are raised by as much as the noise that is left can be long,
so that rows are as long through the root as they are told to be. The information at the end, through the root, corrects
the moments, and what it says beyond them is a factor near 1. What is left open of either is a `Doubt`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import numpy as np

from confide.inference import expected_scores, moments
from confide.inference.expected_scores import Rows
from confide.inference.frames import Frame, expand
from confide.inference.moments import Shrunk
from confide.mechanism import query_grid
from confide.mechanism.query_grid import OnGrid
from confide.models.family import Family

FLOOR = 0.05  # eigenvalue of the second moments below which a direction is whitened no further, over their mean
LEAST_CONSTANT = 1e-3  # square of a constant column whose size is not known, over that of a row
LARGEST_MISFIT = 0.25  # of the information as a whole
LARGEST_BEND = 0.5  # of its directions, over the root of the number of parameters

mean_information = jax.jit(expected_scores.mean_information, static_argnames="family")
information = jax.jit(expected_scores.information, static_argnames="family")


class Geometry(NamedTuple):
    """What the first information tells."""

    root: np.ndarray  # A, symmetric, on its grid
    rounding: OnGrid  # of the root
    shrunk: Shrunk
    rows: Rows  # their moments
    basis: np.ndarray  # eigenvectors of the second moments in coordinates of the root, in which
    spread: np.ndarray  # what is left open of them has entries of these variances


class Doubt(NamedTuple):
    """Variances of the entries of an information in coordinates of the root, taken as independent in this basis."""

    variances: np.ndarray
    basis: np.ndarray


def geometry(here: Frame, noisy: np.ndarray, deviation: float, root: np.ndarray | None = None) -> Geometry:
    """From the information at the start, in units of the clip, and the standard deviation of its noise. `root` is the
    one that a run took, on whatever processor; None: it follows from the information."""
    noisy, deviation = noisy * here.clip**2, deviation * here.clip**2
    scores = here.start.reshape(len(noisy), -1)[0 if here.constant is None else here.constant]
    scores = scores if here.family.outputs else scores[:1]
    unit = here.number * float(
        np.ravel(here.family.information_weight(scores, np.asarray(here.threshold), here.typical))[0]
    )
    variance = (deviation / unit) ** 2
    shrunk = _shrink(here, noisy / unit, variance)
    values, vectors = moments.floor_eigenvalues(shrunk.second, FLOOR)
    raised = values + math.sqrt(max(0.0, float(np.max(np.sum(shrunk.variances, axis=1)))))
    rounding = query_grid.round_root(
        moments.rebuild(here.norm / here.clip / np.sqrt(raised * np.sum(values / raised)), vectors)
    )
    root = rounding.value if root is None else root
    second = moments.shrink_eigenvalues(shrunk.second, shrunk.variances)
    if here.constant is not None:
        second = second / second[here.constant, here.constant]
    _, basis = moments.decompose(root @ second @ root)
    turned = np.square(basis.T @ root)
    spread = turned @ shrunk.variances @ turned.T
    return Geometry(root, rounding, Shrunk(second, shrunk.variances), rows_of(here, second), basis, spread)


def _shrink(here: Frame, noisy: np.ndarray, variance: float) -> Shrunk:
    """Where rows have a space, by the columns as they are: their moments have a structure that others have not."""
    space = here.space
    if space is None:
        return moments.shrink(noisy, variance, here.norm**2, here.constant)
    whole = space.keep_structure(space.outward @ noisy @ space.outward.T)
    unit, norm = 1.0, here.norm**2 + space.shortened
    if here.constant is None and space.constant is not None:  # it is the same for all, and not known
        unit = float(np.clip(whole[space.constant, space.constant], LEAST_CONSTANT * norm, norm))
    found = moments.shrink(whole / unit, variance / unit**2, norm / unit, space.constant)
    squares = unit**2 * space.inward**2
    return Shrunk(unit * space.inward.T @ found.second @ space.inward, squares.T @ found.variances @ space.inward**2)


def rows_of(here: Frame, second: np.ndarray) -> Rows:
    found = moments.split(second, here.constant)
    return Rows(found.mean, found.covariance, np.eye(len(second)))


def first_doubt(here: Frame, found: Geometry, middle: np.ndarray) -> Doubt:
    """What the first information leaves open."""
    theta = expand(found.root, middle.size) @ middle
    level = float(mean_information(here.family, here.tables, found.rows, theta))
    return Doubt((here.number * level) ** 2 * found.spread, found.basis)


def halve(variances: np.ndarray) -> np.ndarray:
    """Symmetric noise has half its variance beside the diagonal."""
    return np.where(np.eye(len(variances)) > 0, variances, variances / 2)


def correct(
    here: Frame, found: Geometry, end: tuple[np.ndarray, float], middle: np.ndarray
) -> tuple[Rows, list[Doubt]]:
    """Moments from both informations, and a factor near 1 for what is left of the last one.

    In the eigenbasis of the moments in coordinates of the root, entries of either are taken as independent.
    """
    root, (noisy, deviation) = found.root, end
    size, theta = len(root), expand(root, middle.size) @ middle
    rows = found.rows
    level = float(mean_information(here.family, here.tables, rows, theta))
    whole = root @ np.asarray(information(here.family, here.tables, rows, theta)) @ root
    ratio = _shrunk_ratio(float(np.trace(noisy)) / here.number / float(np.trace(whole)), size, whole, here, deviation)
    second = root @ found.shrunk.second @ root
    rest = whole - level * second
    seen = (noisy / here.number / ratio - rest) / level
    basis, before = found.basis, found.spread
    after = halve(np.full((size, size), (deviation / here.number / level / ratio) ** 2))
    share = before / (before + after)
    centre = basis.T @ second @ basis
    centre = centre + share * (basis.T @ seen @ basis - centre)
    held = moments.shrink_eigenvalues(centre, share * after)
    held = basis @ held @ basis.T
    mean = rows_of(here, np.linalg.solve(root, np.linalg.solve(root, held).T))
    factor, bend = _bend(here, root, mean, end, theta)
    left = Doubt((here.number * level * ratio) ** 2 * (share * after), basis)
    return mean._replace(factor=factor), [left, bend]


def _shrunk_ratio(ratio: float, size: int, whole: np.ndarray, here: Frame, deviation: float) -> float:
    variance = size * (deviation / here.number / float(np.trace(whole))) ** 2
    return max(1 + moments.keep_share((ratio - 1) ** 2, 1, variance, LARGEST_MISFIT**2) * (ratio - 1), 0.2)


def _bend(
    here: Frame, root: np.ndarray, rows: Rows, end: tuple[np.ndarray, float], theta: np.ndarray
) -> tuple[np.ndarray, Doubt]:
    """K = T^1/2 ((1 + a) I + E) T^-1/2, T what the information should be; a and E small, of unknown scales."""
    noisy, deviation = end
    size, eye = len(root), np.eye(len(root))
    expected = here.number * root @ np.asarray(information(here.family, here.tables, rows, theta)) @ root
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
    kept = (chances / chances.sum()) @ (scales[:, None] * half / total)
    bent, left = np.zeros((size, size)), np.zeros((size, size))
    bent[upper], left[upper] = kept * seen, kept * noise
    left = left + np.triu(left, 1).T + share * unsure * eye
    held = moments.rebuild(*moments.floor_eigenvalues((1 + share * whole) * eye + bent + np.triu(bent, 1).T, 0.1))
    return (basis * roots) @ held @ (basis / roots).T, Doubt(left * np.outer(values, values), basis)


def turn(family: Family, doubts: list[Doubt], vectors: np.ndarray) -> np.ndarray:
    """The sum of variances in another basis."""
    k = math.prod(family.outputs)
    slopes = np.square(np.eye(k) - 1 / k) / k**2 if k > 1 else np.eye(1)
    total = np.zeros_like(vectors)
    for doubt in doubts:
        turned = np.square(vectors.T @ np.kron(doubt.basis, np.eye(k)))
        total += turned @ np.kron(doubt.variances, slopes) @ turned.T
    return total
