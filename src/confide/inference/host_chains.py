"""Hamiltonian chains on the host, over one compiled program: the log density, its slope and what is wanted of a place.

The programs of densities here are large and their chains are short, so that compiling costs more than running: nothing
but the density is compiled, once, and its curvature is taken by differences of slopes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

CHAINS = 40  # places that are looked at together
WARMUP, ROUNDS, LEAPS, STEP, ACCEPTED = 60, 4, 8, 0.3, 0.85
CLIMBS = 25  # steps towards the mode
NARROW = 1e-4  # half the distance of a difference
LEAST = 0.3  # curvature, of coordinates that have a spread of about 1 before anything is known

Program = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]  # of `CHAINS` places: height, slope, more


class Moving(NamedTuple):
    """Where chains are, with the log density there, its slope, and what is wanted of the place."""

    x: np.ndarray
    height: np.ndarray
    slope: np.ndarray
    wanted: np.ndarray


def climb(program: Program, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mode, by Newton steps of several lengths at once, and a root of the covariance that its curvature tells."""
    lengths = 2.0 ** -np.arange(CHAINS, dtype=float)
    values, vectors, slope = _curve(program, x)
    best = program(np.tile(x, (CHAINS, 1)))[0][0]
    for _ in range(CLIMBS):
        step = vectors @ ((vectors.T @ slope) / values)
        tried = x + lengths[:, None] * step
        heights = np.nan_to_num(program(tried)[0], nan=-np.inf)
        found = int(np.argmax(heights))
        gained = heights[found] - best
        if not gained > 0:
            break
        x, best = tried[found], heights[found]
        values, vectors, slope = _curve(program, x)
        if gained < 1e-3:
            break
    return x, vectors / np.sqrt(values)


def _curve(program: Program, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eigenvalues, made positive, and eigenvectors of the negative curvature, and the slope."""
    size = x.size
    places = np.concatenate([x + NARROW * np.eye(size), x - NARROW * np.eye(size), x[None]])
    count = len(places)
    places = np.concatenate([places, np.tile(x, (-count % CHAINS, 1))])
    slopes = np.concatenate([program(part)[1] for part in places.reshape(-1, CHAINS, size)])[:count]
    curved = -(slopes[:size] - slopes[size : 2 * size]) / (2 * NARROW)
    values, vectors = np.linalg.eigh(np.nan_to_num((curved + curved.T) / 2))
    return np.maximum(np.abs(values), LEAST), vectors, np.nan_to_num(slopes[-1])


def sample(program: Program, centre: np.ndarray, root: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """What is wanted of so many places of each chain, (draws, chains, ...).

    Chains move in coordinates of the root. While they warm up its columns take the lengths that chains have found: at
    the mode of a prior with an edge there, the curvature says nothing of the width.
    """
    rng = np.random.default_rng(seed)
    length, kept = STEP * (20 / centre.size) ** 0.25, []
    with np.errstate(invalid="ignore", over="ignore"):
        state = _look(program, centre, root, 0.5 * rng.standard_normal((CHAINS, centre.size)))
        lost = ~np.isfinite(state.height)
        if lost.any():  # begin at the mode
            state = _look(program, centre, root, np.where(lost[:, None], 0.0, state.x))
        for _ in range(ROUNDS):
            seen = []
            for _ in range(WARMUP // ROUNDS):
                state, taken = _move(program, centre, root, state, length, rng)
                length *= float(np.exp(0.4 * (np.mean(taken) - ACCEPTED)))
                seen.append(state.x)
            found = np.clip(np.std(np.concatenate(seen), axis=0), 0.3, 10.0)
            root = root * found
            state = _look(program, centre, root, state.x / found)
        for _ in range(draws):
            state, _ = _move(program, centre, root, state, length, rng)
            kept.append(state.wanted)
    return np.stack(kept)


def _look(program: Program, centre: np.ndarray, root: np.ndarray, x: np.ndarray) -> Moving:
    height, slope, wanted = program(centre + x @ root.T)
    return Moving(x, height, slope @ root, wanted)


def _move(
    program: Program,
    centre: np.ndarray,
    root: np.ndarray,
    state: Moving,
    length: float,
    rng: np.random.Generator,
) -> tuple[Moving, np.ndarray]:
    """Every chain by a few leaps, and which of them were accepted."""
    first = push = rng.standard_normal(state.x.shape)
    step = length * (0.6 + 0.8 * rng.random((CHAINS, 1)))
    there = state
    for _ in range(LEAPS):
        push = push + 0.5 * step * there.slope
        there = _look(program, centre, root, there.x + step * push)
        push = push + 0.5 * step * there.slope
    gain = there.height - state.height - 0.5 * (np.sum(push**2, axis=1) - np.sum(first**2, axis=1))
    taken = np.log(rng.random(CHAINS)) < gain  # never where it is not a number
    pairs = zip(there, state, strict=True)
    return Moving(*(np.where(taken.reshape(-1, *[1] * (old.ndim - 1)), new, old) for new, old in pairs)), taken
