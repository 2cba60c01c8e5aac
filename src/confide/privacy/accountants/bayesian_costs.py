"""Costs c_t of every order and step for the Bayesian accountant, from checked settings."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from confide import validation
from confide.privacy.accountants import bayesian_distances as divergences
from confide.privacy.accountants.bayesian_confidence import bounded_mean, published_bound
from confide.validation import Refused

Estimator = Literal["published", "bounded", "worst"]
Direction = Literal["both", "printed"]
ORDERS = range(1, 65)
LARGEST_ORDER = 4096  # every term of the binomial sum is held at once


class SpreadWarning(UserWarning):
    """All distances are one number, so nothing is known of their spread."""


class Setting(NamedTuple):
    """Everything that was asked for, checked; `steps` are those of all runs together."""

    distances: np.ndarray
    clip: float | None
    orders: list[int]
    failure_probability: float
    steps: int
    blocks: Iterable[divergences.Block]


def setting(
    distances: Any,
    *,
    noise_scale: Any = None,
    sampling_probability: float = 1.0,
    failure_probability: float = 1e-15,
    orders: Iterable[int] = ORDERS,
    clip: float | None = None,
    renyi: divergences.Renyi | None = None,
    direction: Direction = "both",
    steps: int | None = None,
) -> Setting:
    """The settings of `bayesian_epsilon`, each refused where it makes no sense; nothing is computed yet."""
    clip = None if clip is None else validation.positive(clip=clip)
    gamma = validation.probability(failure_probability=failure_probability)
    if gamma >= 0.5:
        raise Refused(f"failure_probability = {gamma:g} would fail as often as not: give far less, such as 1e-15")
    table = divergences.check_distances(distances, clip)
    picked = check_orders(orders)
    validation.one_of(("both", "printed"), direction=direction)
    if (noise_scale is None) == (renyi is None):
        raise Refused("noise_scale and renyi are two ways to say the noise: give one of them")
    if renyi is not None and not callable(renyi):
        raise Refused("renyi is no function: give one of an order and an array of distances")
    if renyi is None:
        q = validation.probability(one=True, sampling_probability=sampling_probability)
        scale = validation.positive_vector(noise_scale=np.atleast_1d(noise_scale))
        if scale.size not in (1, len(table)):
            raise Refused(f"noise_scale has {scale.size} numbers for {len(table)} steps: give one, or one per step")
        noise = np.broadcast_to(scale, len(table))
        blocks = divergences.gaussian_blocks(table, clip, picked, noise, q, direction == "printed")
    else:
        blocks = divergences.renyi_blocks(table, clip, picked, renyi)
    total = len(table) if steps is None else validation.count(steps=steps)
    if total < len(table):
        raise Refused(f"steps = {total} is fewer than the {len(table)} rows of distances: give the steps of all runs")
    return Setting(table, clip, picked, gamma, total, blocks)


def check_orders(orders: Iterable[int]) -> list[int]:
    try:
        picked = [validation.count(order=order) for order in orders]
    except TypeError:
        raise Refused(f"orders = {orders!r} is not a list: give whole numbers from 1") from None
    if not picked or max(picked) > LARGEST_ORDER:
        raise Refused(f"orders has {max(picked, default='nothing')}: give whole numbers from 1 to {LARGEST_ORDER}")
    return picked


def alike(known: Setting) -> np.ndarray:
    """Which steps have distances that are all one number, below what is possible: they say nothing of the spread."""
    table = known.distances
    return (table == table[:, :1]).all(axis=1) & (table[:, 0] != (math.nan if known.clip is None else known.clip))


def _refuse_alike(known: Setting, stacklevel: int) -> None:
    table, clip, same = known.distances, known.clip, alike(known)
    if not same.any():
        return
    if clip is None and table[0, 0] > 0 and (table == table[0, 0]).all():
        warnings.warn(
            f"all distances are {table[0, 0]:g}: the spread is unknown, epsilon is the moments accountant's for it",
            SpreadWarning,
            stacklevel=stacklevel,
        )
        return
    step = int(np.argmax(same))
    raise Refused(f"distances of step {step} are all {table[step, 0]:g}: sample pairs that differ, or use 'bounded'")


def costs(
    known: Setting, estimators: Sequence[str], *, refuse_alike: bool = True, stacklevel: int = 4
) -> dict[str, np.ndarray]:
    """(orders, rows) for each estimator, from one pass over the distances."""
    for name in estimators:
        validation.one_of(("published", "bounded", "worst"), estimator=name)
        if name != "published" and known.clip is None:
            raise Refused(f"estimator = {name!r} needs the clip, the largest distance possible: give clip")
    if "published" in estimators and refuse_alike:
        _refuse_alike(known, stacklevel)
    found = {name: np.zeros((len(known.orders), len(known.distances))) for name in estimators}
    for block in known.blocks:
        for name, costs in found.items():
            if block.most is None or name == "published":
                part = published_bound(block.values, known.steps, known.failure_probability)
            elif name == "bounded":
                share = known.failure_probability / len(known.orders)
                part = bounded_mean(block.values, block.most, known.steps, share)
            else:
                part = block.most
            costs[block.orders, block.steps] = part.T
    return found
