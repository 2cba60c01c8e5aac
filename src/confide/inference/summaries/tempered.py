"""Summaries of runs whose draws are each paid for: the likelihood counts to the power that the budget pays for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from confide.inference.summaries.runs import RunSummary, SamplerSummary, Steps

FEW = 3  # records for each parameter: fewer say little
IN_FULL = "; the likelihood counts in full, and the rest is not needed"


@dataclass(frozen=True, kw_only=True)
class LangevinSummary(Steps):
    """Of steps of which the last iterates alone are released."""

    name: ClassVar[str] = "langevin"
    norm_bound: float
    likelihood_power: float
    settled: float
    diffusion_time: float

    def lines(self) -> list[str]:
        released = "the last iterate alone is" if self.draws == 1 else f"{self.draws} iterates are"
        return [
            f"{self.course()}, rows within norm {self.norm_bound:.4g}; {released} released of each chain",
            f"{_count_text(self, self.likelihood_power)}; where they say nothing, {self._reached():.0%} of the prior's "
            "variance is reached",
            *self.weighting(),
        ]

    def _reached(self) -> float:
        return -math.expm1(-2 * self.settled)

    def unspent(self) -> str:
        return "" if self.warning() else IN_FULL

    def warning(self) -> str:
        if self.likelihood_power * self.records < FEW * self.parameters:
            return _mostly_prior(self, self.likelihood_power)
        if self._reached() < 0.5:
            return (
                "The run is too short to have settled: where the data say little, the draws are nearer to zero than "
                "the posterior is. More steps would settle it."
            )
        return ""

    def remarks(self) -> list[str]:
        return [
            _power(self.likelihood_power),
            f"Where the data say nothing, the run has reached {self._reached():.0%} of the prior's variance; the "
            "guarantee does not rest on that. Only the released draws left the run, and what came between them was "
            "deleted.",
        ]


@dataclass(frozen=True, kw_only=True)
class PosteriorSampleSummary(RunSummary):
    """Of exact draws by hidden chains."""

    name: ClassVar[str] = "ops"
    bound: str
    total_variation: float
    clip: float | None
    radius: float | None
    log_likelihood_bound: float | None
    norm_bound: float | None
    likelihood_power: float
    algorithm: str
    hidden_chains: int
    warmup: int
    samples: int
    steps: int
    clipping: str | None = None  # "weighted"; None: gradients are cut by their own length

    def lines(self) -> list[str]:
        power, total = self.likelihood_power, self.chains * self.draws
        if self.bound == "tight":
            how = "gradients clipped to" if self.clipping is None else "scores bounded by weights to"
            whole = "no gradient is cut" if self.clip is None else f"{how} {self.clip:.4g}"
            held = f"{_count_text(self, power)}; {whole}"
        else:
            within = f"by holding the parameters within {self.radius or 0.0:.4g} of 0"
            held = (
                f"likelihood and prior count to the power {power:.3g}; |log likelihood| of a record is at most "
                f"{self.log_likelihood_bound or 0.0:.4g}, {'by a cut' if self.radius is None else within}"
            )
        rows = "" if self.norm_bound is None else f", rows within norm {self.norm_bound:.4g}"
        several = "one draw" if total == 1 else f"{total} draws, each paid for,"
        return [
            f"{several} from the tempered posterior by the {self.bound} bound{rows}",
            held,
            f"{self.hidden_chains} hidden chains of {self.warmup} + {self.samples} transitions "
            f"({self.algorithm}); a draw is where a chain ends, taken to be exact",
        ]

    def unspent(self) -> str:
        return "" if self.warning() else IN_FULL

    def warning(self) -> str:
        little = self.likelihood_power * self.records < FEW * self.parameters
        return _mostly_prior(self, self.likelihood_power) if little else ""

    def remarks(self) -> list[str]:
        return [
            "The draws are where hidden Markov chains ended. Whether those had met cannot be shown here, since it "
            "depends on the records: the guarantee takes the draws for exact.",
            _power(self.likelihood_power),
        ]


def _count_text(run: RunSummary, power: float) -> str:
    prior = "" if run.prior_scale is None else f"; prior scale {run.prior_scale:.4g}"
    return f"the likelihood counts to the power {power:.3g}, as if of {power * run.records:,.0f} records{prior}"


def _power(power: float) -> str:
    paid = ": that is what the budget pays for. The draws are as wide as if there were that much less data."
    return f"The likelihood counts to the power {power:.3g}" + (", in full." if power >= 1 else paid)


def _mostly_prior(run: RunSummary, power: float) -> str:
    return (
        f"The data count as much as {power * run.records:,.0f} records would, for {run.parameters} parameters: the "
        "draws are mostly the prior's. Fewer draws, or a larger budget, would let the data say more."
    )


@dataclass(frozen=True, kw_only=True)
class HybridSummary(SamplerSummary):
    """Of a sampler that starts at a private draw."""

    noisy_sums: ClassVar[bool] = False
    first: Mapping[str, Any]  # the plan of that draw
    then: str
    share: float

    def lines(self) -> list[str]:
        start = LangevinSummary if self.first["sampler"] == LangevinSummary.name else PosteriorSampleSummary
        first = start.of(self.first)
        return [
            f"each chain starts at a draw by {first.sampler}, then {self.then}:",
            *first.lines(),
            *super().lines(),
        ]
