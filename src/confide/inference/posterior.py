"""Posterior draws with the guarantee that they may be published under.

A posterior holds what was paid for and what is public: draws, guarantee, settings. It holds no record, no statistic of
the records (a training loss, a fraction clipped), and no key of the noise; nor does a saved one, which is NetCDF for
the draws and JSON for the rest. The one exception, `diagnostics`, is never stored, copied or shown.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from confide import models, validation
from confide.inference import posterior_files, settling, summaries, traces
from confide.inference.few_records import warn_of_few_records
from confide.inference.posterior_files import AnyRelease, Canaries, Stored
from confide.inference.settling import load_arviz
from confide.inference.traces import Trace
from confide.models import inputs
from confide.models.labels import to_labels
from confide.models.model import Model
from confide.privacy.budget import Guarantee
from confide.validation import Refused

__all__ = [
    "Canaries",
    "Diagnostics",
    "ExactnessWarning",
    "NotPrivateWarning",
    "Posterior",
    "UnsettledWarning",
]

BATCH = 2**22  # numbers predicted at once


class NotPrivateWarning(UserWarning):
    """What was computed comes without any guarantee and must not be published."""


class ExactnessWarning(UserWarning):
    """The chains behind a posterior sample do not seem to have met, and the guarantee takes its draws for exact."""


class UnsettledWarning(UserWarning):
    """Quantiles of draws that have not settled were asked for as intervals."""


class Diagnostics(NamedTuple):
    """Of hidden chains, at their worst parameter. They depend on the records, and no guarantee covers them."""

    r_hat: float
    effective: float  # sample size

    def to_text(self) -> str:
        """For the analyst."""
        return (
            f"  hidden chains, at the worst parameter: R-hat {self.r_hat:.3f}, effective sample size "
            f"{self.effective:,.0f} (computed from the records and NOT covered by the guarantee: do not publish this "
            "line)"
        )


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """What `confide.fit` returns.

    Attributes:
        draws: the parameters, as a pytree of arrays whose leading axes are chain and draw.
        guarantee: what publishing them may reveal; None after `confide.sample`: then nothing may be published.
        plan: the settings of the run, all of them public.
        canaries: what the run told of canaries planted in it, as public as its draws; see `confide.audit`.
        release: the noisy sums behind the draws of `confide.scoring`, from which they can be made again.
        trace: what the noisy sums of a run by steps tell together, where `noise_aware` can make draws of it.
        model: what the draws are parameters of; None after loading one built from your own functions.
        diagnostics: of the hidden chains behind a posterior sample, for whoever may see the records: NOT covered by
            the guarantee, not to be published, and not kept by `save`, pickles or copies.
    """

    draws: Any
    guarantee: Guarantee | None
    plan: dict[str, Any] = field(default_factory=dict)
    model: Model | None = None
    canaries: Canaries | None = field(default=None, repr=False, compare=False)
    release: AnyRelease | None = field(default=None, repr=False, compare=False)
    trace: Trace | None = field(default=None, repr=False, compare=False)
    diagnostics: Diagnostics | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """A model is pickled by name and settings where it has them: its functions cannot be."""
        model = self.model
        kept = model if model is None or model.settings is None else (model.name, model.settings)
        return {**self.__dict__, "model": kept, "diagnostics": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        kept = state["model"]
        self.__dict__.update(state, model=models.rebuilt(*kept) if isinstance(kept, tuple) else kept)

    @property
    def chains(self) -> int:
        return int(jax.tree.leaves(self.draws)[0].shape[0])

    @property
    def size(self) -> int:
        """Draws of each chain."""
        return int(jax.tree.leaves(self.draws)[0].shape[1])

    @property
    def point(self) -> bool:
        """Whether the draws are points near the mode, whose spread says nothing about the posterior."""
        return summaries.from_json(self.plan).point

    @property
    def settled(self) -> bool | None:
        """Whether quantiles of the draws may be read as intervals (`confide.inference.settling`); None: cannot tell."""
        return settling.judge(self).settled

    def __repr__(self) -> str:
        if self.guarantee is None:
            promise = "NOT PRIVATE"
        else:
            promise = f"epsilon {self.guarantee.epsilon:.4g}, delta {self.guarantee.delta:.3g}"
        return f"<Posterior: {self.chains} x {self.size} draws of {self.plan.get('model', 'a model')}, {promise}>"

    def predict(self, x: Any) -> np.ndarray:
        """The label of highest posterior probability, or the posterior mean of the outcome, for each row."""
        mean, model = self._mean(x), self._known()
        return to_labels(model.labels, np.argmax(mean, axis=-1)) if model.kind == "classification" else mean

    def predict_proba(self, x: Any) -> np.ndarray:
        """The probability of every label, in the order in which they are declared, averaged over the posterior."""
        if self._known().kind != "classification":
            raise Refused(f"{self._known().name} has no labels: use predict")
        return self._mean(x)

    def interval(self, x: Any, probability: float = 0.9, key: int = 0) -> np.ndarray:
        """Posterior predictive interval of every row's outcome, shape (rows, 2).

        For a classifier the outcome is a label, so the interval is that of the probability of every label, shape
        (rows, labels, 2). `key` draws the outcomes; it has nothing to do with privacy.
        """
        probability = validation.probability(probability=probability)
        if self.point:
            raise Refused(f"{self.plan['sampler']} finds points, which have no interval: use dpvi(), or sgld()")
        if self.chains * self.size == 1:
            price = "which cost nothing more" if settling.judge(self).independent else "each at its price"
            raise Refused(f"there is one draw, and one draw has no interval: ask for more draws, {price}")
        if self.settled is False:
            seen = "; ".join(dict.fromkeys(reason.kind for reason in settling.judge(self).reasons))
            warnings.warn(
                f"the draws have not settled ({seen}): these are quantiles of draws, and no intervals; "
                "confide.inference.settling.judge(posterior) says what was seen and what would help",
                UnsettledWarning,
                stacklevel=2,
            )
        model, levels = self._known(), np.array([(1 - probability) / 2, (1 + probability) / 2])
        if model.kind == "classification":
            function = model.predict
        elif model.simulate is not None:
            keys = jax.random.split(jax.random.key(key), self.chains * self.size)
            simulate = model.simulate
            return self._quantiles(lambda p, rows: simulate(p[0], p[1], rows), (keys, self.flatten()), x, levels)
        else:
            function = None
        if function is None:
            raise Refused(f"{model.name} cannot simulate outcomes: give it a simulate function")
        return self._quantiles(function, self.flatten(), x, levels)

    def noise_aware(self, draws: int = 2000, key: int = 0) -> Posterior:
        """Draws that know of the noise of the run, made of its trace at no further cost: no record is looked at.

        For runs by steps of `confide.models.from_functions` and `from_numpyro` with at most 20 parameters, declared
        with a `gradient_bound` that is no longer than the clip. They are of the posterior given all noisy sums, by
        gradients that are linear near the mode (`confide.inference.linear_gradients`): as wide as the noise makes
        them, the prior where nothing was learnt, and the posterior without privacy where the noise is negligible.
        `key` draws them; it has nothing to do with privacy.
        """
        trace = traces.check(self.plan, self.model, self.trace)
        draws = validation.count(draws=draws)
        found = trace.draw(self._known(), draws, key)
        one_chain = jax.tree.map(lambda leaf: leaf[None], found)
        return replace(self, draws=one_chain, plan=traces.describe(self.plan, draws), diagnostics=None)

    def to_arviz(self) -> Any:
        """An ArviZ InferenceData with the draws, and the guarantee in its attributes."""
        arviz = load_arviz()
        variables = {name: np.asarray(array) for name, _, array in posterior_files.name_leaves(self.draws)}
        with warnings.catch_warnings():  # more chains than draws are as it should be where each releases one
            warnings.filterwarnings("ignore", "More chains", UserWarning)
            data = arviz.from_dict(posterior=variables, **self._coordinates(variables))
        for attributes in (
            data.attrs,
            data["posterior"].attrs,
        ):  # with the time of the charge it tells how long the run took
            attributes.pop("created_at", None)
        data["posterior"].attrs["guarantee"] = (
            "none" if self.guarantee is None else json.dumps(self.guarantee.to_json())
        )
        return data

    def _coordinates(self, variables: dict[str, np.ndarray]) -> dict[str, Any]:
        """The names of features and labels, where the plan knows them."""
        names = {"feature": self.plan.get("features"), "label": self.plan.get("labels")}
        weights = variables.get("weights")
        if not names["feature"] or weights is None or weights.shape[2:3] != (len(names["feature"]),):
            return {}
        dimensions = ["feature", "label"][: weights.ndim - 2]
        return {"coords": {name: names[name] for name in dimensions}, "dims": {"weights": dimensions}}

    def summary(self) -> Any:
        """Mean, sd, interval, effective sample size and R-hat of every parameter, by ArviZ; of points their mean.

        Without the interval where the draws have not settled: their quantiles are none. Without effective sample size
        and R-hat where draws are independent, as those of `confide.scoring` are.
        """
        warn_of_few_records(self.plan)
        data = self.to_arviz()
        before = logging.root.manager.disable
        logging.disable(max(before, logging.WARNING))  # that R-hat needs two chains shows in the table
        try:
            if self.chains * self.size > 1 and not self.point:
                judged = settling.judge(self)
                whole = self.size >= 4 and not judged.independent
                table = load_arviz().summary(data, kind="all" if whole else "stats")
                return table if judged.settled is not False else table.drop(columns=table.filter(like="hdi").columns)
            with warnings.catch_warnings():  # one draw has no spread
                warnings.simplefilter("ignore", RuntimeWarning)
                return load_arviz().summary(data, kind="stats")[["mean"]]
        finally:
            logging.disable(before)

    def save(self, path: str | os.PathLike[str], files: Mapping[str, str] | None = None) -> Path:
        """Write posterior.nc, guarantee.json and plan.json into the new folder `path`; `files` go beside them.

        Where canaries were planted, canaries.json holds their scores; release.json holds the noisy sums of scoring, and
        trace.json what `noise_aware` makes draws of.

        The folder appears whole or not at all.
        """
        stored = Stored(self.draws, self.guarantee, self.plan, self.model, self.canaries, self.release, self.trace)
        return posterior_files.write(path, stored, self.to_arviz, files or {})

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Model | None = None) -> Posterior:
        """The posterior that `save` wrote; give the model again where it was built from your own functions."""
        return cls(**posterior_files.read(path, model)._asdict())

    def _known(self) -> Model:
        if self.model is None:
            raise Refused(
                "the model was built from functions that are not saved: give it to Posterior.load(path, model=)"
            )
        return self.model

    def flatten(self) -> Any:
        """Draws of all chains along one axis."""
        return jax.tree.map(lambda leaf: jnp.asarray(leaf).reshape(-1, *leaf.shape[2:]), self.draws)

    def _rows(self, x: Any) -> np.ndarray:
        model = self._known()
        try:
            rows, declared = np.asarray(x), (model.dtypes or (None,))[0]
            whole = inputs.reads_integers(declared, rows.dtype.kind in "biu", rows.ndim, model.linear is None)
            rows = rows.astype(np.int32 if whole and rows.dtype.kind in "biu" else np.float32)
        except (TypeError, ValueError):
            raise Refused("X is not an array of numbers: give one row per record") from None
        settings = model.settings or {}
        expected = settings.get("dimension")
        if rows.ndim < 1 or (expected is not None and (rows.ndim != 2 or rows.shape[1] != expected)):
            raise Refused(f"X has shape {rows.shape}: give a matrix with {expected} columns")
        if model.layered is not None:
            model.check((rows, np.zeros(len(rows), np.float32)))
        if not np.all(np.isfinite(rows)):
            raise Refused("X holds numbers that are not finite: remove or impute them")
        return np.rint(rows).astype(np.int32) if whole else rows

    def _mean(self, x: Any) -> np.ndarray:
        rows, predict = self._rows(x), self._known().predict
        if predict is None:
            raise Refused(f"{self._known().name} cannot predict: give it a predict function")

        @jax.jit
        def mean(draws: Any, rows: jax.Array) -> jax.Array:
            count = jax.tree.leaves(draws)[0].shape[0]
            first = jax.tree.map(lambda leaf: leaf[0], draws)

            def more(i: jax.Array, total: jax.Array) -> jax.Array:
                return total + predict(jax.tree.map(lambda leaf: leaf[i], draws), rows)

            return jax.lax.fori_loop(1, count, more, predict(first, rows)) / count

        return np.asarray(mean(self.flatten(), jnp.asarray(rows)))

    def _quantiles(self, function: Any, draws: Any, x: Any, levels: np.ndarray) -> np.ndarray:
        rows = self._rows(x)
        if not len(rows):
            raise Refused("X has no rows: give at least one")
        every = jax.jit(jax.vmap(function, (0, None)))
        each = 1 if self._known().layered is None else rows[0].size  # a network keeps about as many in each layer
        step = max(1, BATCH // (self.chains * self.size * each))
        parts = [
            np.quantile(np.asarray(every(draws, jnp.asarray(rows[i : i + step]))), levels, axis=0)
            for i in range(0, len(rows), step)
        ]
        return np.moveaxis(np.concatenate(parts, axis=1), 0, -1)
