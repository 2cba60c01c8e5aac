"""`confide.rehearse`: a parametric bootstrap of a finished run (`inference.rehearsal`)."""

from __future__ import annotations

from confide.inference import rehearsal
from confide.inference.fitting import fit
from confide.inference.posterior import Posterior
from confide.inference.rehearsal import Rehearsal


def rehearse(posterior: Posterior, datasets: int = 50, key: int = 0) -> Rehearsal:
    """What the program of a run of `confide.scoring` does on tables made up from its release. It costs nothing.

    Args:
        posterior: of a run of scoring.
        datasets: tables that are made up and fitted.
        key: of whatever is made up; it has nothing to do with privacy.
    """
    return rehearsal.rehearse_run(fit, posterior, datasets, key)
