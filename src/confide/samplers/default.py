"""The sampler of a model where none is named."""

from __future__ import annotations

from confide.mechanism.information import SEVERAL
from confide.models.model import Model
from confide.samplers.sampler import Sampler
from confide.samplers.scoring import scoring
from confide.samplers.sgld import sgld


def default_sampler(model: Model) -> Sampler:
    """Private scoring, where the family of the model knows what noisy sums of its scores tell; else `sgld`.

    Labels have a column of parameters for each: above `SEVERAL` of them, as of images, draws would take minutes.

    >>> from confide.models import logistic_regression, mlp
    >>> default_sampler(logistic_regression(3)).name, default_sampler(mlp((3, 4, 2))).name
    ('scoring', 'sgld')
    """
    family = model.family
    if family is None or not family.noise_aware:
        return sgld()
    columns = (model.settings or {}).get("dimension", 1)
    return sgld() if family.outputs and columns * family.outputs[0] > SEVERAL else scoring()
