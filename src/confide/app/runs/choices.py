"""The model, the sampler and the clip that go with what is asked of a run on a table or on images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from confide import models, samplers, validation
from confide.app.runs.options import Request
from confide.data import features
from confide.data.image_schema import Pictures
from confide.data.model_words import OtherWords, explain_word
from confide.data.schema import Column, Schema
from confide.inference import plans
from confide.inference.regression import plan as regression
from confide.models import families
from confide.models.family import Family
from confide.models.model import Model, from_family
from confide.privacy import pricing
from confide.privacy.budget import Budget
from confide.privacy.events import SENSITIVITY
from confide.privacy.extra_accounts import Accounts, Individual, accounts
from confide.validation import Refused

NETWORKS = ("mlp", "cnn")
MODELS = (*families.BY_WORD, *NETWORKS)
CONVEX = ("langevin", "ops", "hybrid")
ASKING = ("scoring", "sufficient-statistics")  # all records, a few times
SAMPLERS = (*ASKING, *samplers.STEPPING, *samplers.DESCENTS, *CONVEX)
HIDDEN = (32,)


def extra_accounts(request: Request) -> Accounts:
    """The accounts that are asked for, with the settings of individual ones."""
    kept = accounts(list(request.account))
    given = {"stretch": request.stretch, "histogram": request.histogram}
    settings = {name: value for name, value in given.items() if value is not None}
    if settings and kept.individual is None:
        raise Refused(f"--{next(iter(settings))} goes with --account individual: add that, or leave it out")
    return kept if not settings else replace(kept, individual=Individual(**settings))


def model_word(described: Schema | Pictures, request: Request) -> str:
    """What the command line calls the model: the one that is asked for, or that goes with the target.

    Refused where the data or the other options do not go with it. Nothing is built yet, so that this can be asked
    before a record is read.
    """
    if isinstance(described, Pictures):
        return word_for_images(described.shape, len(described.classes), request)
    target = described.column(described.target)
    name = request.model or _usual(len(target.labels))
    validation.one_of(MODELS, model=name)
    family = families.BY_WORD.get(name)
    if family is not None:
        _check_target(family, target)
    if name == "cnn":
        raise Refused("--model cnn needs images, an .npz file or a folder, and this is a table: choose mlp")
    _check_options(request, name)
    scaled = not target.labels and (family is None or _takes(family, "noise_scale"))
    if request.noise_scale is not None and not scaled:
        raise Refused(
            f"--noise-scale goes with a numeric target and a linear model or an mlp, not with {name}: leave it out"
        )
    return name


def explain_model(described: Schema | Pictures, request: Request) -> str:
    """Which model a run fits and why, in one line; all of it is public."""
    return _explain(described, model_word(described, request), request.model is not None)


def _explain(described: Schema | Pictures, word: str, given: bool) -> str:
    if isinstance(described, Pictures):
        how = "--model names it" if given else "it is the usual model"
        return f"{word}: {how} of {'images' if len(described.shape) == 3 else 'rows of numbers'} with classes"
    counts = next(family.word for family in families.FAMILIES if family.outcome == "count")
    return explain_word(word, described.column(described.target), given, OtherWords(_usual(2), counts))


def model_reasons(described: Schema | Pictures, name: str) -> list[str]:
    """What a run on such data may say of why it fitted the model of this name: as it was asked for, or as the usual."""
    word = families.BY_NAME[name].word if name in families.BY_NAME else name
    if isinstance(described, Pictures):
        usual = "cnn" if len(described.shape) == 3 else _usual(len(described.classes))
    else:
        usual = _usual(len(described.column(described.target).labels))
    return [_explain(described, word, True), *([_explain(described, word, False)] if word == usual else [])]


def word_for_images(shape: tuple[int, ...], classes: int, request: Request) -> str:
    """The same for images: as asked for, or a cnn, or for rows of numbers a linear one."""
    name = request.model or ("cnn" if len(shape) == 3 else _usual(classes))
    validation.one_of(MODELS, model=name)
    family = families.BY_WORD.get(name)
    if family is not None and family.kind == "regression":
        raise Refused(f"--model {name} predicts numbers, and images have classes: choose cnn, mlp or softmax")
    if family is not None and family.outcome == "two labels" and classes != 2:
        raise Refused(f"--model {name} needs two classes, and --classes has {classes}: choose softmax")
    if name == "cnn" and len(shape) != 3:
        raise Refused(f"--model cnn needs images, and x has {shape[0]} columns: store it as (n, height, width), or mlp")
    _check_options(request, name)
    return name


def build_model(
    described: Schema | Pictures, request: Request, prior_scale: float = 1.0, bounded: bool = False
) -> Model:
    """The model of that word; `bounded` as the convex samplers need it."""
    name = model_word(described, request)
    prior_scale = prior_scale if request.prior_scale is None else request.prior_scale
    if isinstance(described, Pictures):
        return _for_images(name, described, request, prior_scale, bounded)
    target, dimension = described.column(described.target), len(described.features)
    labels = len(target.labels)
    noise = families.NOISE_SHARE if labels else _noise(target, request.noise_scale)
    if name in families.BY_WORD:
        known = {"classes": labels, "noise_scale": noise, "dispersion": request.dispersion}
        known |= {"learnt": request.noise_scale is None or None}
        known |= {"largest_mean": target.high if bounded else None}
        family = families.with_known(families.BY_WORD[name], known)
        return from_family(family, dimension, prior_scale, norm_bound=described.bound if bounded else None)
    sizes = (dimension, *(request.hidden or HIDDEN), labels or 1)
    return models.mlp(sizes, dropout=request.dropout or 0.0, prior_scale=prior_scale, noise_scale=noise)


def _for_images(name: str, described: Pictures, request: Request, prior_scale: float, bounded: bool) -> Model:
    size, classes, dropout = described.numbers, len(described.classes), request.dropout or 0.0
    if name == "cnn":
        return models.cnn(described.shape, classes, request.convolutions, dropout, prior_scale)
    if name == "mlp":
        return models.mlp((size, *(request.hidden or HIDDEN), classes), dropout=dropout, prior_scale=prior_scale)
    family = families.with_known(families.BY_WORD[name], {"classes": classes})
    return from_family(family, size, prior_scale, intercept=True, norm_bound=math.sqrt(size) if bounded else None)


def _usual(labels: int) -> str:
    """The family that goes with a target of so many labels; 0 for a number."""
    wanted = "number" if not labels else "two labels" if labels == 2 else "labels"
    return next(family.word for family in families.FAMILIES if family.outcome == wanted)


def _check_target(family: type[Family], target: Column) -> None:
    """Refuse a target that the family cannot have."""
    name, labels = family.word, len(target.labels)
    if family.kind == "regression" and labels:
        raise Refused(f"--model {name} needs a numeric target, and {target.name!r} is {target.kind}: choose softmax")
    if family.kind == "classification" and not labels:
        raise Refused(f"--model {name} needs a target with labels, and {target.name!r} is numeric: choose linear")
    if family.outcome == "two labels" and labels != 2:
        raise Refused(f"--model {name} needs two labels, and {target.name!r} has {labels}: choose softmax")
    if family.outcome != "count":
        return
    if not (float(target.low or 0).is_integer() and float(target.high or 0).is_integer()):
        raise Refused(f"--model {name} needs counts, and the bounds of {target.name!r} are not whole: make them so")
    if target.low is None or target.low < 0:
        raise Refused(
            f"--model {name} needs counts, and {target.name!r} may be below 0: raise its bound, or choose linear"
        )


def _takes(family: type[Family], parameter: str) -> bool:
    return parameter in {field.name for field in fields(family)}


def _check_options(request: Request, name: str) -> None:
    """Refuse what the model has no use for."""
    uses = {"hidden": ("mlp",), "convolutions": ("cnn",), "dropout": NETWORKS, "microbatch": NETWORKS}
    uses["dispersion"] = tuple(word for word, family in families.BY_WORD.items() if _takes(family, "dispersion"))
    for option, those in uses.items():
        if getattr(request, option) is not None and name not in those:
            raise Refused(f"--{option} goes with --model {' or '.join(those)}, not with {name}: leave it out")


def _noise(target: Column, given: float | None) -> float:
    """The standard deviation of the outcomes on the scale of [-1, 1]."""
    if given is None:
        return families.NOISE_SHARE
    if target.scale == "log":
        raise Refused("--noise-scale has no unit where the target has scale = 'log': leave it out")
    assert target.low is not None
    assert target.high is not None
    return 2.0 * validation.positive(noise_scale=given) / (target.high - target.low)


class Choice(NamedTuple):
    """The model and the sampler of a run, and its clip."""

    model: Model
    sampler: samplers.Sampler
    clip: float | None
    reason: str  # why this model, in one line


def choose(described: Schema | Pictures, request: Request, budget: Budget, records: int) -> Choice:
    """What goes with the request. Only sizes and the schema decide, never a value."""
    reason = explain_model(described, request)
    family = families.BY_WORD.get(model_word(described, request))
    numbers = family is not None and family.outcome == "number"
    columns = features.features_of(described, scaled_outcome=numbers) if isinstance(described, Schema) else ()
    name = request.sampler or samplers.default_sampler(build_model(described, request)).name
    validation.one_of(SAMPLERS, sampler=name)
    if name in CONVEX:
        mu = pricing.gdp_mu(budget.epsilon, budget.delta) if budget.delta else budget.epsilon / 4
        scale = affordable_scale(mu / SENSITIVITY[budget.neighbours], described.bound)
        model = build_model(described, request, scale, bounded=True)
        return Choice(model, _build_sampler(name, request), request.clip, reason)
    model, clip = build_model(described, request), request.clip
    if model.family is not None and request.clipping != "plain":
        model = replace_bound(model, described.bound)
    elif clip is None and name not in ASKING:
        clip = plans.bounded_clip(model, budget, records, described.bound, request.chains)
    known: dict[str, Any] = {}  # of images the model has its own constant
    if isinstance(described, Schema):
        known = {"constant": -1, "categories": described.categories}
        if name == "scoring" and regression.serves(model) and described.norm_bound is None:
            known |= _regression_options(described.column(described.target), columns, model, request)
        elif request.prior is not None:
            raise Refused("--prior goes with scoring of a table, without a norm_bound: leave it out")
    if "features" not in known and any(feature.prior is not None for feature in columns):
        raise Refused("priors of single columns go with scoring of a table, without a norm_bound: remove them")
    return Choice(model, _build_sampler(name, request, known), clip, reason)


def _regression_options(
    target: Column, columns: tuple[features.Feature, ...], model: Model, request: Request
) -> dict[str, Any]:
    """What is public about the columns and the outcome, and the prior."""
    if target.prior is not None:
        raise Refused(f"{target.name!r} is the target and has no coefficient: remove its prior")
    assert model.family is not None
    bounds = (target.low, target.high) if model.family.outcome == "count" else (-1.0, 1.0)
    options: dict[str, Any] = {"features": columns, "outcome": bounds}
    options |= {} if request.prior is None else {"prior": request.prior}
    return options if request.prior_scale is None else options | {"prior_scale": request.prior_scale}


def read_priors(text: str) -> dict[str, float]:
    """Priors of columns as the command line lists them."""
    priors: dict[str, float] = {}
    for part in text.split(","):
        name, mark, number = part.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not mark or not name.strip() or not value > 0:
            raise Refused(f"--priors {part.strip()!r} is no prior of a column: write it as age=0.05")
        priors[name.strip()] = value
    return priors


def replace_bound(model: Model, bound: float) -> Model:
    """A linear model that knows how long rows can be: of its constant, if it has an intercept, it knows by itself."""
    assert model.family is not None
    assert model.settings is not None
    kept = {name: model.settings[name] for name in ("dimension", "prior_scale", "prior", "intercept")}
    return from_family(model.family, **kept, norm_bound=bound)


def affordable_scale(mu: float, bound: float) -> float:
    """The scale of the prior for one private draw, where none is given.

    A draw costs scale times clip times likelihood power, so that a wide prior is paid for with the likelihood. The
    scale is 1 for rows of norm 1 and so 1 / bound here; once the likelihood counts in full it grows up to 1 with the
    budget.
    """
    return min(1.0, max(1.0, 2 * mu) / bound)


def _build_sampler(name: str, request: Request, known: Mapping[str, Any] | None = None) -> samplers.Sampler:
    heat: Any = {} if request.temperature is None else {"temperature": request.temperature}
    if name == "langevin":
        return samplers.langevin(request.draws or 1, **heat)
    if name in (*ASKING, "ops", "hybrid", "wang2015_sgld", *samplers.DESCENTS) and heat:
        raise Refused(f"--temperature does not go with the sampler {name}: leave it out, or choose --sampler sgld")
    if name == "scoring":
        return samplers.scoring(**(known or {}))
    if name == "sufficient-statistics":
        return samplers.sufficient_statistics()
    if name == "ops":
        return samplers.one_posterior_sample(draws=request.draws or 1)
    build: Any = getattr(samplers, name)
    return build(**heat)
