"""Whether draws may be read as a posterior: a rule that looks at what was released, draws and plan, and at nothing else.

So it costs no budget, anyone can repeat it, and it says no more than can be known: a chain that passes may still be off,
one that fails is. Where it fails, quantiles of the draws are no interval, and each reason says what was seen, and which
way to go. In the order in which they are told:

- **runaway**: the mean of a coefficient lies more than `FURTHEST` scales of its prior from 0, or is no number at all.
- **oscillation**: at the end of the run, each iterate lies on the other side of the last one: the least autocorrelation
  of successive iterates (the plan's `lag_one`) is below `SWING`. The steps are too long, and the width of the draws is
  theirs. More budget would make them longer still.
- **bends**: the clip cuts gradients by their own length, and can be shorter than one of them. It cuts a wrong label more
  than a right one, so that the posterior moves and its width does not tell. Where a plan says that scores are bounded
  by weights that do not depend on the outcome (`clipping` is 'weighted'), nothing is bent.
- **drift**: between the third and the last quarter of a variational run a mean of q has moved by more than `MOVED` of
  its standard deviations (the plan's `drift`).
- **disagreement**: R-hat of a coefficient over several chains is above `AGREED`.
- **exploration**: the draws of a coefficient are worth fewer than `ENOUGH` independent ones (bulk effective sample size
  of ArviZ): the chain has not been everywhere it would go.

The last two are about single coefficients, and leave the intervals of others alone. Coefficients are those of a
generalised linear model, or the parameters of a model of at most `FEW`; where the plan names features, categories of a
column are taken against their mean, which is all that records tell of them. The weights of networks and of single
pixels mean nothing one by one, points have no width, and of fewer than `LEAST` draws a chain nothing can be told:
there is no verdict then, though reasons may be given.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from confide.data.schema import MISSING
from confide.inference.posterior_files import name_leaves
from confide.models import families
from confide.models.model import Model

ENOUGH = 20  # effective draws: the mean is then known to a quarter of a standard deviation, the width to a sixth
AGREED = 1.1  # R-hat
LEAST = 4  # draws of a chain, fewer of which tell nothing
SWING = -0.2  # lag-one autocorrelation
FURTHEST = 5.0  # prior scales
MOVED = 0.5  # standard deviations of q
FEW = 100  # parameters of a model that is not linear: more are not judged one by one
SPENT = 0.9  # of the budget: below it, more steps would use the rest
NETWORKS = ("mlp", "cnn", "resnet18")
ONCE = ("langevin", "ops", "output_perturbation", "objective_perturbation")  # what pays for every single draw

DRAWS = {  # what draws are that are no posterior
    "runaway": "The draws are of weights that have run away from what was believed of them: neither their centre nor "
    "their width tells where the coefficients are.",
    "oscillation": "The draws are the two ends between which the chain jumps: their width is the length of its steps, "
    "not what is unknown about the coefficients.",
    "bends": "The draws are from a posterior that the clip has bent: their centre may be further from the truth than "
    "their width says.",
    "drift": "The draws are from an approximation that was still moving when the run ended: where it was, not where it "
    "would have come to rest.",
    "disagreement": "The draws are where each chain was when the budget was spent, not where the coefficients are.",
    "exploration": "The draws are where the chain was, not where the coefficients are.",
}


class Released(Protocol):
    """What is judged, and all that is looked at: a `Posterior`."""

    @property
    def draws(self) -> Any: ...
    @property
    def plan(self) -> dict[str, Any]: ...
    @property
    def model(self) -> Model | None: ...
    @property
    def chains(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def point(self) -> bool: ...


@dataclass(frozen=True)
class Reason:
    """Why draws are no posterior: what was seen, and what would help."""

    kind: str  # of DRAWS
    sentence: str
    advice: str
    concerns: tuple[str, ...] = ()  # the names of coefficients; all of them where none is named


@dataclass(frozen=True)
class Judgement:
    """Whether quantiles of the draws are intervals; None where there is nothing to judge by."""

    settled: bool | None
    reasons: tuple[Reason, ...] = ()

    @property
    def draws(self) -> str:
        """What the draws are, in words, where they have not settled."""
        return DRAWS[self.reasons[0].kind] if self.settled is False else ""

    @property
    def in_parts(self) -> bool:
        """Whether intervals may be read at all: of all coefficients, or of those that no reason is about."""
        return self.settled is not None and all(reason.concerns for reason in self.reasons)


class Columns(NamedTuple):
    """Draws by coefficient, (chains, draws, coefficients), and what those are called."""

    names: list[str]
    draws: np.ndarray


def judge(posterior: Released) -> Judgement:
    """Whether the draws may be read as a posterior, by the rule at the top of this module."""
    plan, family = posterior.plan, _family(posterior)
    counted = sum(math.prod(leaf.shape[2:]) for leaf in jax.tree.leaves(posterior.draws))
    if family is None and (_is_network(posterior) or counted > FEW):
        return Judgement(None, tuple(_bends(posterior)))
    found = [*_runaway(posterior)]
    if not posterior.point:
        found += _oscillation(plan)
    found += _bends(posterior)
    if posterior.point:
        return Judgement(None, tuple(found))
    found += _drift(plan)
    judged = posterior.size >= LEAST and "shape" not in plan  # which pictures have
    if judged:
        swings = any(reason.kind == "oscillation" for reason in found)
        found += _chains(posterior, _columns(posterior), SMALLER if swings else further(plan))
    return Judgement(False if found else True if judged else None, tuple(found))


def load_arviz() -> Any:
    with warnings.catch_warnings():  # it announces version 1 at every import
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


def diagnose(draws: np.ndarray) -> tuple[np.ndarray, list[float | None]]:
    """Effective sample size and R-hat of every column of draws (chains, draws, columns), by ArviZ."""
    columns = draws.shape[-1]
    if draws.shape[1] < LEAST:
        return np.full(columns, math.nan), [None] * columns
    arviz = load_arviz()
    data = arviz.convert_to_dataset({"x": draws})
    effective = np.atleast_1d(arviz.ess(data)["x"].values)
    if draws.shape[0] < 2:
        return effective, [None] * columns
    found = np.atleast_1d(arviz.rhat(data)["x"].values)
    return effective, [float(value) if math.isfinite(value) else None for value in found]


SMALLER = "A smaller step_size would end it, or more steps, each of which is then smaller."
WEIGHTED = "clipping='weighted' bounds every record and bends nothing"


def further(plan: Mapping[str, Any]) -> str:
    """What would take a run further."""
    if _unspent(plan):
        return "More steps would take it further: part of the budget was left, since no step may be longer."
    weighted = ", with clipping='weighted'," if _can_weigh(plan) else ""
    return f"A larger budget or more records{weighted} would take it further; several chains only share the budget."


def _unspent(plan: Mapping[str, Any]) -> bool:
    limit, spent = (plan.get("budget") or {}).get("epsilon"), plan.get("epsilon")
    return limit is not None and spent is not None and spent < SPENT * limit


def _can_weigh(plan: Mapping[str, Any]) -> bool:
    """Whether the clip cuts gradients by their own length, and need not."""
    plain = plan.get("clip") is not None and plan.get("clipping", "plain") == "plain"
    return plain and plan.get("model") in families.BY_NAME and plan.get("sampler") not in ONCE


def _family(posterior: Released) -> type[families.Family] | None:
    return families.BY_NAME.get(posterior.plan.get("model", ""))


def _is_network(posterior: Released) -> bool:
    model = posterior.model
    return posterior.plan.get("model") in NETWORKS or (model is not None and model.layered is not None)


def _runaway(posterior: Released) -> Iterable[Reason]:
    names, draws = _parameters(posterior)
    scale = posterior.plan.get("prior_scale") or math.inf
    with np.errstate(invalid="ignore"):
        means = np.abs(draws.mean(axis=(0, 1)))
    away = ~(means <= FURTHEST * scale) | ~np.isfinite(means)
    if not away.any():
        return
    worst = int(np.argmax(np.where(np.isfinite(means), means, np.inf)))
    if math.isfinite(means[worst]):
        seen = f"{names[worst]} lies {means[worst] / scale:,.0f} prior scales from 0, more than {FURTHEST:g}"
    else:
        seen = f"the draws of {names[worst]} are not finite"
    advice = "Bounded or rescaled features would hold them; where such coefficients are believed, a wider prior."
    if _can_weigh(posterior.plan):
        advice = f"A short clip drives weights away: {WEIGHTED}."
    several = f"{int(away.sum())} of {len(names)} coefficients have run away" if len(names) > 1 else "It has run away"
    yield Reason("runaway", f"{several}: {seen}.", advice)


def _oscillation(plan: Mapping[str, Any]) -> Iterable[Reason]:
    found = plan.get("lag_one")
    if found is not None and not found >= SWING:
        seen = f"Successive iterates jump from side to side: their correlation is {found:.2f} at the least"
        yield Reason("oscillation", f"{seen}, below {SWING:g}. The steps are too long to follow the gradient.", SMALLER)


def longest_gradient(posterior: Released) -> float:
    """Of any record, at any weights; infinite where no bound is known."""
    family, linear = _family(posterior), None if posterior.model is None else posterior.model.linear
    if family is None:
        return math.inf
    bounds = [posterior.plan.get("norm_bound"), None if linear is None else linear.norm_bound]
    bound = min((each for each in bounds if each is not None), default=math.inf)
    return family.residual_bound * (math.hypot(bound, 1.0) if linear is not None and linear.intercept else bound)


def _bends(posterior: Released) -> Iterable[Reason]:
    plan, longest, family = posterior.plan, longest_gradient(posterior), _family(posterior)
    clip = plan.get("clip")
    if clip is None or plan.get("clipping", "plain") != "plain" or clip >= longest * (1 - 1e-9):
        return
    if family is None:
        seen = f"The clip bends: gradients longer than {clip:.3g} are cut, those of badly predicted records most."
        yield Reason("bends", seen, "A longer clip would bend less; a larger budget pays for one.")
        return
    least = f"up to {longest:.3g}" if math.isfinite(longest) else "of any length"
    moved = (
        "a wrong label is cut more than a right one, and coefficients come out too large"
        if family.kind == "classification"
        else "outcomes far from their prediction pull less than they should"
    )
    advice = f"{WEIGHTED}." if _can_weigh(plan) else "A longer clip would bend less."
    yield Reason("bends", f"The clip of {clip:.3g} bends: gradients are {least}, {moved}.", advice)


def _drift(plan: Mapping[str, Any]) -> Iterable[Reason]:
    found = plan.get("drift")
    if found is not None and not found <= MOVED:
        seen = f"Over the second half of the run a mean of q moved by {found:.2g} of its standard deviations"
        yield Reason("drift", f"{seen}, more than {MOVED:g}.", further(plan))


def _chains(posterior: Released, columns: Columns, advice: str) -> Iterable[Reason]:
    """What the draws themselves show, coefficient by coefficient."""
    effective, ratios = diagnose(columns.draws)
    effective = np.where(np.ptp(columns.draws, axis=(0, 1)) > 0, effective, 1.0)  # it has not moved at all
    names, count = columns.names, len(columns.names)
    apart = {name: ratio for name, ratio in zip(names, ratios, strict=True) if ratio is not None and ratio > AGREED}
    if apart:
        worst = max(apart, key=apart.__getitem__)
        seen = f"The {posterior.chains} chains do not agree on {len(apart)} of {count} coefficients"
        yield Reason("disagreement", f"{seen}: R-hat is {apart[worst]:.2f} for {worst}.", advice, tuple(apart))
    few = {name: worth for name, worth in zip(names, effective, strict=True) if not worth >= ENOUGH}
    if not few:
        return
    total = posterior.chains * posterior.size
    if total < ENOUGH:
        seen = f"There are {total} draws, and fewer than {ENOUGH} have no quantiles to speak of."
        free = "Ask for more draws: each iterate is paid for already, and keeping it costs nothing."
        each = "Ask for more draws, each at its price."
        yield Reason("exploration", seen, each if posterior.plan.get("sampler") in ONCE else free, tuple(few))
        return
    worst = min(few, key=lambda name: np.nan_to_num(few[name]))
    seen = f"Of {total:,} draws, {len(few)} of {count} coefficients are worth fewer than {ENOUGH} independent ones"
    yield Reason("exploration", f"{seen}: {worst} is worth {few[worst]:.0f}.", advice, tuple(few))


def _parameters(posterior: Released) -> Columns:
    """As they are drawn."""
    features, labels = posterior.plan.get("features"), posterior.plan.get("labels") or []
    names, columns = [], []
    for name, _, leaf in name_leaves(posterior.draws):
        array = np.asarray(leaf, np.float64)
        shape = array.shape[2:]
        parts: list[str] = [name if not shape else f"{name}[{','.join(map(str, place))}]" for place in np.ndindex(shape)]
        if name == "weights" and features and shape[:1] == (len(features),):
            parts = list(features)
            if len(shape) == 2:
                called = labels if len(labels) == shape[1] else [str(k) for k in range(shape[1])]
                parts = [f"{feature} ({label})" for feature in features for label in called]
        names += parts
        columns.append(array.reshape(*array.shape[:2], -1))
    return Columns(names, np.concatenate(columns, axis=-1))


def _columns(posterior: Released) -> Columns:
    """What is read of them: categories against the mean of their column, which goes to the intercept."""
    names, draws = _parameters(posterior)
    features, width = posterior.plan.get("features") or [], 1
    if _family(posterior) is None or not features or names[: len(features)] == []:
        return Columns(names, draws)
    width = draws.shape[-1] // len(features)
    if draws.shape[-1] != width * len(features):
        return Columns(names, draws)
    made = draws.reshape(*draws.shape[:2], len(features), width).copy()
    by_column: dict[str, list[int]] = {}
    for place, feature in enumerate(features):
        column, named, _ = feature.partition("=")
        if named:
            by_column.setdefault(column, []).append(place)
    for places in by_column.values():
        shared = [place for place in places if not features[place].endswith(f"={MISSING}")]
        if len(shared) < 2:
            continue
        mean = made[..., shared, :].mean(axis=2, keepdims=True)
        made[..., places, :] -= mean
        if features[-1] == "intercept":
            made[..., -1:, :] += mean
    return Columns(names, made.reshape(draws.shape))
