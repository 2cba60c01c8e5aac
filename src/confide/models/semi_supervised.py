r"""A classifier of records of which few have a label, which can also tell a real record from one that is made up.

A network has a score s_k for each of K classes, and made-up records have score 0, so that K + 1 outcomes have softmax
probabilities (Salimans et al. 2016; Saatchi and Wilson 2017). With S = log sum_k exp s_k,

    a record with label y       log p(y)               = (s_y - S) - log(1 + exp(-S))
    a record without one        log sum_k p(k)         =           - log(1 + exp(-S))
    a made-up record            log p(made up)         =           - log(1 + exp(S))

The first two are the likelihood of ONE record, and the second is the first summed over the labels that it may have. So
labelled and unlabelled records are one kind of record, whose label may be `UNLABELLED`: a sum over both has one clip,
one noise and one price, and whether a record has a label is as private as all else about it. The third is no record's:
it is what a generator is told by (`confide.samplers.companions`).

`unlabelled_weight` multiplies log(1 + exp(-S)), what is said of real against made-up records. Below 1 it is no
likelihood any more, but what few labels need to be heard beside many records without one: a clip cuts all records to
the same length, so that a hundred labels are a hundred clips, however much each of them says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from confide import validation
from confide.models.families import known_labels
from confide.models.model import Data, Model
from confide.models.priors import Parameters
from confide.models.tapes import Layered, Tape
from confide.validation import Refused

UNLABELLED = -1


def semi_supervised(network: Model, unlabelled_weight: float = 1.0) -> Model:
    """The network of a classifier, for records of which some have label `UNLABELLED`, -1.

    >>> from confide.models import mlp
    >>> semi_supervised(mlp((4, 8, 3))).kind
    'classification'
    """
    validation.instance(Model, network=network)
    if network.scores is None or network.kind != "classification":
        raise Refused(
            f"network: {network.name} has no scores of several classes: give a network, as mlp((784, 64, 10))"
        )
    if network.labels is not None:
        raise Refused("network: labels are 0, 1, ... here, and -1 where there is none: leave classes out")
    weight, own, classes = validation.positive(unlabelled_weight=unlabelled_weight), network.scores, network.classes
    assert classes is not None

    def log_likelihood(tape: Tape, parameters: Parameters, x: jax.Array, y: jax.Array) -> jax.Array:
        s = own(tape, parameters["network"], x)
        label = y.astype(jnp.int32)
        of_label = s[jnp.maximum(label, 0)] - jax.nn.logsumexp(s)
        return jnp.where(label == UNLABELLED, 0.0, of_label) + weight * log_real(s)

    def unwrap(function: Any) -> Any:
        return None if function is None else lambda parameters, x: function(parameters["network"], x)

    def simulate(key: jax.Array, parameters: Parameters, x: jax.Array) -> jax.Array:
        assert network.simulate is not None
        return network.simulate(key, parameters["network"], x)

    assert network.layered is not None
    settings = network.settings
    if settings is not None:
        prior = settings["prior_scale"]
        settings = {"network": network.name, "of": settings, "unlabelled_weight": weight, "prior_scale": prior}
    return replace(
        network,
        name="semi_supervised",
        start=lambda key, example: {"network": network.start(key, example)},
        log_prior=lambda parameters: network.log_prior(parameters["network"]),
        log_likelihood=lambda parameters, *row: log_likelihood(Tape(), parameters, *row),
        layered=Layered(log_likelihood=log_likelihood, dropout=network.layered.dropout),
        scores=lambda tape, parameters, x: own(tape, parameters["network"], x),
        predict=unwrap(network.predict),
        simulate=simulate,
        admits=lambda data: _admit(data, classes),
        settings=settings,
    )


def log_real(scores: jax.Array) -> jax.Array:
    """log of the probability that a record with these scores, along the last axis, is real."""
    return -jax.nn.softplus(-jax.nn.logsumexp(scores, axis=-1))


def log_made_up(scores: jax.Array) -> jax.Array:
    """The same that it is made up."""
    return -jax.nn.softplus(jax.nn.logsumexp(scores, axis=-1))


def hide_labels(y: Any, shown: Any) -> np.ndarray:
    """The labels, with `UNLABELLED` in the place of all that are not shown."""
    return np.where(shown, y, UNLABELLED).astype(np.int32)


def _admit(data: Data, classes: int) -> np.ndarray:
    return (data[1] == UNLABELLED) | known_labels(data[1], classes)
