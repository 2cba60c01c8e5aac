"""The job of a posterior sample: hidden Markov chains, of which the ends are released, and whether they have met."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from confide.inference import checkpoints
from confide.inference.checkpoints import Checkpoint
from confide.inference.exact import metropolis, targets
from confide.inference.exact.metropolis import Chains
from confide.inference.exact.targets import Frame, Target
from confide.inference.plans.run_setup import initial_position
from confide.inference.posterior import Diagnostics, ExactnessWarning
from confide.mechanism import noise
from confide.models.inputs import Records, as_records
from confide.models.model import Model
from confide.validation import Refused

AGREED, ENOUGH = 1.05, 100  # R-hat and effective sample size
WIDER = 2.0  # how far apart chains begin, in standard deviations of the frame
NEARER = 50  # times that a start outside of the domain is moved halfway back


@dataclass(kw_only=True)
class SampleJob:
    """A posterior sample, decided in every respect but its randomness and its data."""

    model: Model
    target: Target
    chains: Chains
    shape: tuple[int, int]  # of the release: chains, draws
    diagnostics: Diagnostics | None = field(default=None)

    @property
    def steps(self) -> int:
        return self.chains.warmup + self.chains.samples

    @property
    def observations(self) -> None:
        return None

    def digest(self) -> str:
        return ""

    def trace_program(self, records: Records) -> str:
        """The digest of the density and its gradient; from now on these programs are what chains are drawn by.

        Linear models are of the library's own functions, which compute the same whenever they are traced, and their
        frame adds arrays to those of the target: they are drawn by the functions.
        """
        blank = records._replace(arrays=tuple(np.zeros_like(array) for array in records.arrays))
        with jax.enable_x64(True):
            traced, digest = targets.trace(self.model, self.target, self.target.arrays(blank))
        if self.model.linear is None:
            self.target = traced
        return digest

    def first_state(self) -> list[np.ndarray]:
        return []

    def execute(
        self,
        data: Records | tuple[np.ndarray, ...],
        key: Any,
        *,
        checkpoint: Path | None = None,
        resumed: Checkpoint | None = None,
        report: Callable[[int], None] | None = None,
        **how: Any,
    ) -> np.ndarray:
        """The draws; a run that was interrupted begins again, with the same key and so to the same end."""
        if resumed is not None and resumed.block > 0:
            return resumed.arrays[0]
        with jax.enable_x64(True):
            records = as_records(data)
            arrays, frame = targets.frame(self.model, self.target, self.target.arrays(records))
            starts = self._starts(records.arrays, arrays, frame, noise.derive_key(key, "starts"))
        states = metropolis.run(
            self.target, arrays, frame, starts, self.chains, noise.derive_key(key, "states"), report
        )
        draws = metropolis.ends(states, math.prod(self.shape)).astype(np.float32).reshape(*self.shape, -1)
        if not np.all(np.isfinite(draws)):
            raise Refused("the chains diverged, and what was charged stays charged: scale the data or the prior")
        self.diagnostics = metropolis.diagnose(states)
        _warn(self.diagnostics)
        if checkpoint is not None and resumed is not None:
            checkpoints.write(checkpoint, resumed._replace(block=1, arrays=[draws]))
        return draws

    def _starts(self, data: Any, arrays: dict[str, Any], frame: Frame | None, key: jax.Array) -> np.ndarray:
        """Apart from one another, and where the density is not zero; in the coordinates of the frame."""
        given = jax.tree.map(jnp.asarray, arrays)
        density = jax.jit(lambda z, given, frame: self.target.log_density(targets.place(frame, z), given))
        starts = []
        for chain in range(self.chains.number):
            own = noise.derive_key(key, chain)
            if frame is None:
                with jax.enable_x64(False):
                    home = np.asarray(initial_position(self.model, data, own, self.chains.number), np.float64)
            else:
                home = np.zeros(frame.centre.size)
            away = np.array(noise.normals(noise.derive_key(own, "apart"), home.shape))
            away *= 1.0 if frame is None else WIDER
            everywhere = frame is not None and "ball" not in arrays
            for _ in range(0 if everywhere else NEARER):
                if np.isfinite(density(home + away, given, frame)):
                    break
                away /= 2
            starts.append(home + away)
        return np.stack(starts)


def _levels() -> int:
    """From `_warn` to whoever called confide."""
    frame, levels = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("confide."):
        frame, levels = frame.f_back, levels + 1
    return levels


def _warn(found: Diagnostics) -> None:
    if found.r_hat <= AGREED and found.effective >= ENOUGH:
        return
    warnings.warn(
        f"the hidden chains do not seem to have met (R-hat {found.r_hat:.3f}, effective sample size "
        f"{found.effective:.0f}), and the guarantee takes the draws for exact: do not publish them, nor this warning, "
        "which no guarantee covers; a longer run (warmup=, samples=) is charged again",
        ExactnessWarning,
        stacklevel=_levels(),
    )
