"""Whether the draws of a model of images have settled: told by what they predict, since single weights mean nothing.

It is computed from the draws and from made-up images, so that it is as public as the draws.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from confide.data.image_schema import Pictures
from confide.inference.posterior import Posterior
from confide.inference.settling import AGREED, ENOUGH, diagnose, further

MADE_UP = 8  # images that nobody has
TOGETHER = 16  # draws that predict at a time


def diagnostics(posterior: Posterior, pictures: Pictures) -> tuple[list[str], list[str]]:
    """(what a reader must know before reading probabilities, what else is to be said)"""
    effective, ratios = diagnose(predict_images(posterior, pictures))
    known = effective[np.isfinite(effective)]
    if not known.size:
        return [], ["Effective draws cannot be computed of so few: judge the run by predictions on other images."]
    total, median, warnings = posterior.chains * posterior.size, float(np.median(known)), []
    sentences = [
        f"Of {total:,} draws, what they predict for {MADE_UP} made-up images is worth {median:,.0f} independent ones "
        f"at the median and {known.min():,.0f} at the least."
    ]
    if median < ENOUGH:
        more = "Ask for more draws: to keep more costs nothing." if total < ENOUGH else further(posterior.plan)
        warnings.append(
            "What is predicted has not been explored: quantiles of its probabilities are where the chain was, and no "
            f"intervals. {more}"
        )
    if found := [ratio for ratio in ratios if ratio is not None]:
        worst = max(found)
        sentences.append(f"R-hat of these over {posterior.chains} chains is at most {worst:.2f}; up to {AGREED} agree.")
        if worst > AGREED:
            warnings.append(f"The chains do not agree on what they predict. {further(posterior.plan)}")
    return warnings, sentences


def predict_images(posterior: Posterior, pictures: Pictures) -> np.ndarray:
    """Probabilities of the classes but the last for each made-up image: (chains, draws, images times classes)."""
    assert posterior.model is not None
    predict, rng = posterior.model.predict, np.random.default_rng(0)  # the same for everyone
    assert predict is not None
    x = rng.random((MADE_UP, 1), np.float32) * rng.random((MADE_UP, pictures.numbers), np.float32)
    rows = jnp.asarray(x if pictures.flattened else x.reshape(MADE_UP, *pictures.shape))
    draws = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), posterior.draws)
    found = np.asarray(jax.lax.map(lambda weights: predict(weights, rows), draws, batch_size=TOGETHER), np.float64)
    return found[..., :-1].reshape(posterior.chains, posterior.size, -1)
