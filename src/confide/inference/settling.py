"""Whether draws may be read as a posterior: a rule that looks at what was released, draws and plan, and at no record.

So it costs no budget, and anyone can repeat it. What it passes may still be off. Quantiles of what it does not pass are
no intervals, and each reason says what was seen and which way to go. In the order in which they are told:

- **runaway**: the mean of a coefficient lies more than `FURTHEST` scales of its prior from 0, or is no number at all.
- **oscillation**: at the end of the run the chain jumps from side to side: the least autocorrelation of successive
  iterates (the plan's `lag_one`) is below `SWING`. Its steps are too long, and the width of the draws is theirs. More
  budget would make them longer still.
- **bends**: the clip cuts gradients by their own length, and can be shorter than one of them. It cuts that of a wrong
  label more than that of a right one, so that the posterior moves by what its width does not tell. Where scores are
  bounded by weights that do not depend on the outcome (the plan's `clipping` is 'weighted') nothing is bent.
- **drift**: from the third to the last quarter of a variational run a mean of q has moved by more than `MOVED` of its
  standard deviations (the plan's `drift`).
- **disagreement**: R-hat of a coefficient over several chains is above `AGREED`.
- **exploration**: the draws of a coefficient are worth fewer than `ENOUGH` independent ones (ArviZ's bulk effective
  sample size): the chain has not been everywhere it would go.

The last two are about single coefficients, and leave the intervals of others alone. Coefficients are those of a
generalised linear model, or the parameters of another with at most `FEW`; scores of several labels, and where the plan
names features the categories of a column, are taken against their mean, which is all that records tell of them. Weights
of networks and of single pixels mean nothing one by one, points have no width, and fewer than `LEAST` draws of a chain
tell nothing: then there is no verdict, though there may be reasons. A regression on a table is judged by what it
released (`confide.inference.regression.convergence`). Other draws of the posterior given what was released, as
`confide.scoring` makes them, are independent and know of the noise: nothing of this is asked of them, but that there
are `ENOUGH`.
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
from confide.inference import summaries
from confide.inference.posterior_files import name_leaves
from confide.inference.regression import convergence
from confide.inference.regression.release import RegressionRelease
from confide.models import families
from confide.models.model import Model

ENOUGH = 20  # effective draws: the mean is then known to a quarter of a standard deviation, the width to a sixth
AGREED = 1.1  # R-hat
LEAST = 4  # draws of a chain, fewer of which tell nothing
SWING = -0.2  # lag-one autocorrelation
FURTHEST = 5.0  # prior scales
MOVED = 1.0  # standard deviations of q
FEW = 100  # parameters of a model that is not linear: more are not judged one by one
SPENT = 0.9  # of the budget: below it, more steps would use the rest
NETWORKS = ("mlp", "cnn", "resnet18")
ONCE = ("langevin", "ops", "output_perturbation", "objective_perturbation")  # what pays for every single draw

DRAWS = {  # what draws are that are no posterior
    "runaway": "The draws are of weights that have run away: neither their centre nor their width tells where the "
    "coefficients are.",
    "oscillation": "The draws are the ends between which the chain jumps: their width is the length of its steps, not "
    "what is unknown about the coefficients.",
    "bends": "The draws are from a posterior that the clip has bent: their centre may be further from the truth than "
    "their width says.",
    "drift": "The draws are from an approximation that was still moving when the run ended: where it was, not where it "
    "would have come to rest.",
    "disagreement": "The draws are where each chain was when the budget was spent, not where the coefficients are.",
    "exploration": "The draws are where the chain was, not where the coefficients are.",
    "release": "What was released is too little, or does not fit together: intervals of the draws may miss the "
    "coefficients.",
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
    independent: bool = False  # draws, of which there is nothing to judge

    @property
    def draws(self) -> str:
        """What the draws are, in words, where they have not settled."""
        return DRAWS[self.reasons[0].kind] if self.settled is False else ""

    @property
    def intervals(self) -> bool:
        """Whether any may be shown: of all coefficients, or of those that no reason is about."""
        return self.settled is not None and all(reason.concerns for reason in self.reasons)


class Columns(NamedTuple):
    """Draws by coefficient, (chains, draws, coefficients), and what those are called."""

    names: list[str]
    draws: np.ndarray


def judge(posterior: Released) -> Judgement:
    """Whether the draws may be read as a posterior, by the rule at the top of this module."""
    plan, family = posterior.plan, _family(posterior)
    release = getattr(posterior, "release", None)
    if isinstance(release, RegressionRelease):
        return _judge_regression(release, posterior.chains * posterior.size)
    if summaries.from_json(plan).independent:
        return Judgement(True if posterior.chains * posterior.size >= ENOUGH else None, independent=True)
    counted = sum(math.prod(leaf.shape[2:]) for leaf in jax.tree.leaves(posterior.draws))
    if family is None and (_is_network(posterior) or counted > FEW):
        return Judgement(None, tuple(_bends(posterior)))
    if posterior.point:
        return Judgement(None, (*_runaway(posterior), *_bends(posterior)))
    swings = tuple(_oscillation(plan))
    found = [*_runaway(posterior), *swings, *_bends(posterior), *_drift(plan)]
    judged, columns = posterior.size >= LEAST and "shape" not in plan, _columns(posterior)  # pictures have a shape
    if judged and np.all(np.isfinite(columns.draws)):
        found += _chains(posterior, columns, SMALLER if swings else further(plan))
    return Judgement(False if found else True if judged else None, tuple(found))


def _judge_regression(release: RegressionRelease, draws: int) -> Judgement:
    """By the rule of `inference.regression.convergence`, over what was released."""
    if draws < ENOUGH:
        return Judgement(None, independent=True)
    result = convergence.assess(release.result)
    advice = "A larger budget or more records would tell more."
    reasons = tuple(Reason("release", f"{reason[0].upper()}{reason[1:]}.", advice) for reason in result.reasons)
    return Judgement(result.converged, reasons, independent=True)


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
WEIGHTED = "clipping='weighted' bounds every record and bends nothing."


def further(plan: Mapping[str, Any]) -> str:
    """What would take a run further."""
    if _unspent(plan):
        return "More steps would take the run further: part of the budget was left unspent."
    more = "A larger budget or more records" + (", with clipping='weighted'," if _can_weigh(plan) else "")
    return f"{more} would take the run further; several chains share the budget and do not help."


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
    seen = f"the draws of {names[worst]} are not finite"
    if math.isfinite(means[worst]):
        seen = f"the mean of {names[worst]} is {means[worst] / scale:.1f} prior scales from 0, above {FURTHEST:g}"
    advice = "Bounded or rescaled features would hold them; where such coefficients are believed, a wider prior."
    if _can_weigh(posterior.plan):
        advice = WEIGHTED  # a short clip drives weights away
    yield Reason("runaway", f"Coefficients have run away ({int(away.sum())} of {len(names)}): {seen}.", advice)


def _oscillation(plan: Mapping[str, Any]) -> Iterable[Reason]:
    found = plan.get("lag_one")
    if found is not None and not found >= SWING:
        seen = f"Successive iterates jump from side to side: their correlation is {found:.2f} at the least"
        yield Reason("oscillation", f"{seen}, below {SWING:g}. The steps are too long to follow the gradient.", SMALLER)


def longest_gradient(posterior: Released) -> float:
    """Of any record, at any weights, as far as is declared; infinite where no bound is known."""
    family, linear = _family(posterior), None if posterior.model is None else posterior.model.linear
    if family is None:
        declared = posterior.plan.get("gradient_bound")
        return math.inf if declared is None else declared
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
    cut = f"up to {longest:.3g} long" if math.isfinite(longest) else "of any length"
    moved = (
        "those of wrong labels more than those of right ones, and coefficients tend to come out too large"
        if family.kind == "classification"
        else "and outcomes far from their prediction pull less than they should"
    )
    advice = WEIGHTED if _can_weigh(plan) else "A longer clip would bend less."
    yield Reason("bends", f"The clip bends: gradients {cut} are cut to {clip:.3g}, {moved}.", advice)


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
        price = ", each at its price" if posterior.plan.get("sampler") in ONCE else ": to keep more costs nothing"
        yield Reason("exploration", seen, f"Ask for more draws{price}.", tuple(few))
        return
    worst = min(few, key=lambda name: np.nan_to_num(few[name]))
    seen = f"Of {total:,} draws, {len(few)} of {count} coefficients are worth fewer than {ENOUGH} independent ones"
    yield Reason("exploration", f"{seen}: {worst} is worth {few[worst]:.0f}.", advice, tuple(few))


def _parameters(posterior: Released) -> Columns:
    """As they are drawn."""
    features, labels = posterior.plan.get("features"), posterior.plan.get("labels")
    names, columns = [], []
    for name, _, leaf in name_leaves(posterior.draws):
        if name == "noise_scale" and _family(posterior) is not None:  # no coefficient
            continue
        array = np.asarray(leaf, np.float64)
        shape = array.shape[2:]
        rows = features if name == "weights" and features and shape[:1] == (len(features),) else None
        named = labels if labels and shape[1:] == (len(labels),) else None
        for place in np.ndindex(shape):
            if rows is not None and len(shape) == 1:
                names.append(rows[place[0]])
            elif rows is not None and named is not None:
                names.append(f"{rows[place[0]]} ({named[place[1]]})")
            else:
                names.append(f"{name}{list(place) if place else ''}")
        columns.append(array.reshape(*array.shape[:2], -1))
    return Columns(names, np.concatenate(columns, axis=-1))


def _columns(posterior: Released) -> Columns:
    """What is read of them: scores of several labels against their mean, which no record tells, and categories against
    the mean of their column, which goes to the intercept."""
    names, draws = _parameters(posterior)
    family = _family(posterior)
    if family is not None and family.shared_shift:
        labels = np.shape(posterior.draws["weights"])[-1]
        grouped = draws.reshape(*draws.shape[:2], -1, labels)
        draws = (grouped - grouped.mean(axis=-1, keepdims=True)).reshape(draws.shape)
    features = posterior.plan.get("features")
    if not features or len(names) % len(features):
        return Columns(names, draws)
    made, by_column = draws.reshape(*draws.shape[:2], len(features), -1).copy(), {}
    for place, feature in enumerate(features):
        if "=" in feature:
            by_column.setdefault(feature.partition("=")[0], []).append(place)
    for places in by_column.values():
        shared = [place for place in places if not features[place].endswith(f"={MISSING}")]
        if len(shared) > 1:
            mean = made[..., shared, :].mean(axis=2, keepdims=True)
            made[..., places, :] -= mean
            if features[-1] == "intercept":
                made[..., -1:, :] += mean
    return Columns(names, made.reshape(draws.shape))
