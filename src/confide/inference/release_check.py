"""Whether a stored run of private scoring holds together: its release has the noise that was paid for, asked what its
answers tell to ask, and makes its draws again. Anybody can look, without the data."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from confide.inference.linear.statistics_release import StatisticsRelease
from confide.inference.posterior import Posterior
from confide.inference.release import PRIORS
from confide.inference.release_terms import Terms
from confide.inference.replay import Compared, replay
from confide.models.tracing import arrange_draws, unraveller
from confide.privacy import events
from confide.validation import Refused

EXACT, ROUNDED, NOT_STORED = "bit for bit", "but for rounding, as on another processor", "prior not stored"
CLOSE = 1e-4  # standard deviations: chains of few records carry the rounding of another processor to 3e-5 of them


class Checked(NamedTuple):
    """What was found of a release that holds together."""

    draws: str  # how they are those that the release makes: EXACT, ROUNDED, or NOT_STORED
    questions: int  # that follow from the noisy answers before them
    moved: int  # numbers in them that are rounded to the other side of the middle between two grid points


def check(posterior: Posterior) -> str | None:
    """How the draws are those that the release makes; None where the run has no release."""
    found = check_release(posterior)
    return None if found is None else found.draws


def check_release(posterior: Posterior) -> Checked | None:
    """Refused where what is stored does not follow from the noisy outcomes before it, or not from the plan.

    NOT_STORED is said of draws where the model was loaded without its prior, a function of the user's own."""
    release = posterior.release
    if release is None:
        return None
    terms = release.terms()
    _check_public(posterior, terms)
    _check_noise(posterior, terms)
    compared = Compared(1, 0) if isinstance(release, StatisticsRelease) else replay(release)
    return Checked(_check_draws(posterior), *compared)


def _check_draws(posterior: Posterior) -> str:
    if posterior.model is None:
        return NOT_STORED
    expected = make_draws(posterior)
    if jax.tree.structure(expected) != jax.tree.structure(posterior.draws):
        raise _changed("it is of other parameters than its draws")
    pairs = list(zip(jax.tree.leaves(expected), jax.tree.leaves(posterior.draws), strict=True))
    if all(one.shape == other.shape and np.array_equal(one, other) for one, other in pairs):
        return EXACT
    if not all(one.shape == other.shape and _near(one, other) for one, other in pairs):
        raise _changed("its draws are not those that it makes")
    return ROUNDED


def make_draws(posterior: Posterior) -> Any:
    """The draws that the release of a run makes, as many as there are, as its model reports them."""
    model, release, examples = posterior.model, posterior.release, _examples(posterior.plan)
    assert model is not None
    assert release is not None
    _, unravel = unraveller(model, examples, jax.random.key(0))
    log_prior = None if release.prior in PRIORS else lambda theta: model.log_prior(unravel(theta))
    made = release.make(posterior.chains * posterior.size, log_prior)
    found = arrange_draws(model, examples, made.parameters)
    return found if made.noise_scales is None else found | {"noise_scale": made.noise_scales}


def _near(one: np.ndarray, other: np.ndarray) -> bool:
    rounding = np.finfo(np.float32).eps * np.abs(one)
    return bool(np.all(np.abs(one - other) <= CLOSE * np.std(one, axis=(0, 1)) + rounding))


def _check_public(posterior: Posterior, terms: Terms) -> None:
    """What the plan says as well, and the model."""
    model = posterior.model
    expected, found = dict(terms.plan), dict(posterior.plan)
    if model is not None and model.settings is not None:
        expected |= terms.settings
        found |= model.settings
    for name, value in expected.items():
        if found.get(name) == value:
            continue
        if isinstance(value, list):
            raise _changed(f"it has other {name.replace('_', ' ')} than the plan")
        raise _changed(f"it has {name.replace('_', ' ')} {value}, and the plan {found.get(name)}")


def _check_noise(posterior: Posterior, terms: Terms) -> None:
    """No answer has less noise than was paid for."""
    assert posterior.guarantee is not None
    paid = posterior.guarantee.event
    listed = paid.events if isinstance(paid, events.Composition) else (paid,)
    for kind, stated in terms.multipliers.items():
        priced = [np.ravel(_noise_of(each)) for each in listed if isinstance(each, kind)]
        if len(priced) != 1 or priced[0].shape != np.shape(stated) or np.any(stated < priced[0] * (1 - 1e-9)):
            raise _changed("its noise is not what was paid for")


def _noise_of(event: events.Event) -> Any:
    return event.noise if isinstance(event, events.ScaleHistograms) else getattr(event, "noise_multipliers", ())


def _changed(what: str) -> Refused:
    return Refused(f"release.json does not go with the rest of the run ({what}): restore the folder as it was written")


def _examples(plan: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """Arrays of the shapes that the data had, with one record."""
    return tuple(np.zeros((1, *shape), np.float32) for shape in plan["arrays"])
