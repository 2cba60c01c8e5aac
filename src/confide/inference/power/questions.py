"""What was asked of a plan, checked, and as the setting that its figures are computed for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from confide import validation
from confide.data.features import features_of
from confide.data.schema import Column, Schema, load
from confide.inference.power import guesses
from confide.inference.power.families import LABELS, LOGISTIC, MODELS, NEGATIVE_BINOMIAL, SOFTMAX, outcomes
from confide.inference.power.guesses import Belief, Guess
from confide.inference.power.regression_widths import ExpectedRegression
from confide.inference.power.table_guess import guess_table
from confide.inference.power.widths import Expected, Setting, draw_truths
from confide.inference.regression.families import FAMILIES
from confide.inference.regression.priors import SLOPE, StandardisedPrior
from confide.privacy.events import SENSITIVITY
from confide.validation import Refused

NOISE_SHARE = 0.25  # standard deviation of outcomes that are scaled to [-1, 1], where none is given
MOST_PARAMETERS = 1000
LARGEST_EPSILON = 1000.0


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is known of the records and the model."""

    schema: Schema | str | os.PathLike[str] | None = None
    features: int | None = None
    target: str | None = None
    model: str | None = None
    classes: int | None = None
    prior_scale: float | None = None
    noise_scale: float | None = None
    dispersion: float | None = None
    signal: float | None = None
    spread: float | None = None
    correlation: float | None = None
    neighbours: str = "add-remove"

    def setting(self, belief: Belief | None = None) -> Setting:
        """With the belief that was asked for, or another one."""
        validation.one_of(tuple(SENSITIVITY), neighbours=self.neighbours)
        described = None if self.schema is None else _described(self.schema, self.target)
        word, labels = _word(self, described)
        own = self.belief() if belief is None else belief
        guess = self._guess(described, own)
        family = outcomes(word, labels, 1.0 if self.dispersion is None else _positive("dispersion", self.dispersion))
        if guess.rows.shape[1] * family.classes > MOST_PARAMETERS:
            raise Refused(f"the model would have more than {MOST_PARAMETERS} parameters, and scoring takes no more")
        prior = 1.0 if self.prior_scale is None else _positive("prior_scale", self.prior_scale)
        noise = self._noise(described, word)
        wanted = self.signal if self.signal is None else _positive("signal", self.signal)
        if wanted is None and word == "linear" and described is not None:
            wanted = noise  # outcomes lie in [-1, 1], where the prior's scores would not
        truths = _with_signal(draw_truths(family, guess.rows.shape[1], prior), guess.rows, wanted)
        named = guess if family.classes == 1 else _by_class(guess, _class_names(described, family.classes))
        longest = 2.0**30 if described is None else described.bound
        return Setting(family, named, truths, prior, noise, SENSITIVITY[self.neighbours], longest)

    def belief(self) -> Belief:
        if self.correlation is not None and not -1 < validation.number("correlation", self.correlation) < 1:
            raise Refused(f"correlation = {self.correlation:g} is out of range: give a number between -1 and 1")
        if self.spread is not None and _positive("spread", self.spread) > 1:
            raise Refused(f"spread = {self.spread:g} is wider than the bounds, which are at -1 and 1: give less")
        return Belief(self.spread, self.correlation or 0.0)

    def _guess(self, described: Schema | None, belief: Belief) -> Guess:
        if described is not None:
            return guesses.from_schema(described, belief)
        features = validation.count(features=self.features)
        if features >= MOST_PARAMETERS:
            raise Refused(f"features = {features} is more than scoring takes: give less than {MOST_PARAMETERS}")
        return guesses.from_features(features, belief)

    def _noise(self, described: Schema | None, word: str) -> float:
        """Of a linear model, as its outcomes are encoded."""
        if word != "linear":
            if self.noise_scale is not None:
                raise Refused(f"noise_scale goes with the model linear, not with {word}: leave it out")
            return 1.0
        if self.noise_scale is None:
            return 1.0 if described is None else NOISE_SHARE
        given = _positive("noise_scale", self.noise_scale)
        if described is None:
            return given
        target = described.column(described.target)
        if target.scale == "log":
            raise Refused("noise_scale has no unit where the target has scale = 'log': leave it out")
        return 2.0 * given / (float(target.high or 0.0) - float(target.low or 0.0))


def expect(question: Question, belief: Belief | None = None) -> Expected | ExpectedRegression:
    """Expected widths: of a table with a family that the regression engine has, by simulated runs; else by formula."""
    described = None if question.schema is None else _described(question.schema, question.target)
    setting = question.setting(belief)
    if described is None or described.norm_bound is not None or setting.outcomes.word not in FAMILIES:
        return Expected(setting)
    engine = FAMILIES[setting.outcomes.word].outcome_kind
    known = question.belief() if belief is None else belief
    noise = setting.noise_scale if question.noise_scale is not None else None
    table = guess_table(described, engine, known, noise, question.dispersion, question.signal)
    scale = SLOPE if question.prior_scale is None else question.prior_scale
    usual = scale / float(np.median(np.maximum(table.rows.std(axis=0), 1e-6)))
    setting = setting._replace(prior_scale=usual)
    columns = features_of(described, scaled_outcome=engine == "numbers")
    given = {place: feature.prior for place, feature in enumerate(columns) if feature.prior is not None}
    return ExpectedRegression(setting, described, table, StandardisedPrior(scale, 2 * scale, given))


def check_epsilons(epsilon: Any) -> tuple[float, ...]:
    """One or several, rising."""
    given = [epsilon] if np.ndim(epsilon) == 0 else list(epsilon)
    found = [_positive("epsilon", each) for each in given]
    if not found:
        raise Refused("epsilon is an empty list: give one number, or several")
    if max(found) > LARGEST_EPSILON:
        raise Refused(f"epsilon = {max(found):g} hides nothing: give at most {LARGEST_EPSILON:g}")
    if len(set(found)) < len(found):
        raise Refused("epsilon lists a number twice: give each once")
    return tuple(sorted(found))


def parse_epsilons(text: str) -> tuple[float, ...]:
    """As the command line has them: 0.5,1,2.

    >>> parse_epsilons("0.5, 1,2")
    (0.5, 1.0, 2.0)
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise Refused(f"epsilon = {text!r} is no number and no list of numbers: write it as 0.5,1,2") from None
    return check_epsilons(found)


def _positive(name: str, value: Any) -> float:
    return validation.positive(**{name: value})


def _described(schema: Schema | str | os.PathLike[str], target: str | None) -> Schema:
    return (schema if isinstance(schema, Schema) else load(schema)).with_target(target)


def _word(question: Question, described: Schema | None) -> tuple[str, int]:
    """The model, and the number of its classes."""
    if question.model is not None:
        validation.one_of(MODELS, model=question.model)
    if question.dispersion is not None and question.model != NEGATIVE_BINOMIAL:
        raise Refused("dispersion goes with the model negative-binomial: leave it out, or name that")
    if described is not None:
        if question.classes is not None:
            raise Refused("classes are those of the schema's target: leave it out")
        return _word_of_target(question.model, described.column(described.target))
    word = question.model or LOGISTIC
    if question.classes is not None and word != SOFTMAX:
        raise Refused(f"classes goes with the model softmax, not with {word}: leave it out, or name that")
    if word != SOFTMAX:
        return word, 2
    if question.classes is None or validation.count(classes=question.classes) < 2:
        raise Refused("classes is missing: how many labels does the model softmax tell apart? Give 2 or more")
    return word, question.classes


def _word_of_target(model: str | None, target: Column) -> tuple[str, int]:
    labels = len(target.labels)
    word = model or ("linear" if not labels else LOGISTIC if labels == 2 else SOFTMAX)
    if (word in LABELS) != bool(labels):
        kind, other = ("labels", "linear") if word in LABELS else ("a numeric target", SOFTMAX)
        raise Refused(f"model {word} needs {kind}, and {target.name!r} is {target.kind}: choose {other}")
    if word == LOGISTIC and labels != 2:
        raise Refused(f"model logistic needs two labels, and {target.name!r} has {labels}: choose softmax")
    return word, labels


def _with_signal(truths: np.ndarray, rows: np.ndarray, wanted: float | None) -> np.ndarray:
    """Scaled so that the scores of records spread by so much; the constant stays."""
    if wanted is None:
        return truths
    spread = np.sqrt(np.mean([np.mean(np.var(rows @ truth, axis=0)) for truth in truths]))
    scaled = truths * (wanted / spread)
    scaled[:, -1] = truths[:, -1] if wanted > spread else scaled[:, -1]
    return scaled


def _class_names(described: Schema | None, classes: int) -> Sequence[str]:
    if described is None:
        return [str(i) for i in range(classes)]
    return described.column(described.target).labels


def _by_class(guess: Guess, labels: Sequence[str]) -> Guess:
    return guess._replace(names=tuple(f"{name} -> {label}" for name in guess.names for label in labels))
