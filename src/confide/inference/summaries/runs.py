"""Summaries of the runs of `confide.fit`: one for each kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from confide.inference.summaries.base import Priced, Summary
from confide.privacy.accountants.individual import Histogram

FEW = 3  # records for each parameter: fewer say little
LARGE = 4_000_000  # numbers in the draws: more are worth a word
IN_FULL = "; the likelihood counts in full, and the rest is not needed"


@dataclass(frozen=True, kw_only=True)
class RunSummary(Priced):
    """Of whatever `confide.fit` does."""

    prior_scale: float | None = None
    canaries: int | None = None
    arrays: Sequence[Sequence[int]] | None = None  # shapes of a record
    microbatch: int | None = None

    def head(self) -> str:
        beside = "" if self.canaries is None else f" and {self.canaries} canaries"
        return f"{self.model} with {self.parameters} parameters on {self.records} records{beside}, by {self.sampler}"


@dataclass(frozen=True, kw_only=True)
class Steps(RunSummary):
    """Of a run by steps, each of which looks at a batch."""

    steps: int
    batch_size: int
    clip: float | None  # None without a guarantee
    step_size: float
    last_step_size: float
    burn_in: int
    thin: int
    individual: Mapping[str, Any] | None = None  # the account of single records, where each pays for itself

    def sizes(self) -> str:
        falling = "" if self.last_step_size == self.step_size else f" falling to {self.last_step_size:.4g}"
        return f"{self.step_size:.4g}{falling}"

    def batches(self) -> str:
        full = self.batch_size == self.records
        return "full batches" if full else f"Poisson batches of {self.batch_size}"

    def clipping(self) -> str:
        return "no clip" if self.clip is None else f"clip {self.clip:g}"

    def course(self) -> str:
        return f"{self.chains} x {self.steps} steps of size {self.sizes()}, {self.batches()}, {self.clipping()}"

    def with_histogram(self, spent: Histogram) -> Self:
        """And what single records have spent, where that was released."""
        return replace(self, individual={**(self.individual or {}), **spent.to_json()})

    def settings(self) -> dict[str, Any]:
        """The arguments that the sampler is made with again: its step sizes and its noise as they were planned."""
        return {}

    def filtering(self) -> list[str]:
        if self.individual is None:
            return []
        return [
            "every record pays for its own gradients; one whose gradients are all as long as the clip would spend "
            f"{self.individual['stretch']:.3g} times the budget at most, and is left out when it has spent all"
        ]


@dataclass(frozen=True, kw_only=True)
class SamplerSummary(Steps):
    """Of a sampler that releases every step."""

    noisy_sums: ClassVar[bool] = True
    temperature: float | None
    diffusion_time: float

    def settings(self) -> dict[str, Any]:
        return {"step_size": self.step_size, "schedule": self.more["schedule"], "temperature": self.temperature}

    def lines(self) -> list[str]:
        numbers = self.chains * self.draws * self.parameters
        large = f", {numbers / 1e6:.0f} million numbers" if numbers > LARGE else ""
        heat = f", temperature {self.temperature:g}" if self.temperature is not None else ""
        return [
            f"{self.course()}{heat}; {self.draws} draws kept of each chain{large}",
            f"diffusion time {self.diffusion_time:.4g}: directions in which the log likelihood curves by less "
            f"than {1 / self.diffusion_time:.1g} a record will not have settled",
            *self.filtering(),
        ]

    def unspent(self) -> str:
        return "; with the rest the steps would be too large to follow the gradient (more steps could use it)"

    def remarks(self) -> list[str]:
        return [
            f"The diffusion time is {self.diffusion_time:.4g}: directions in which the log likelihood curves by "
            f"less than {1 / self.diffusion_time:.1g} a record have not settled, and show more of the start than "
            "of the data."
        ]


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


@dataclass(frozen=True, kw_only=True)
class DescentSummary(Steps):
    """Of an optimiser, whose noise was planned and not its step sizes."""

    noisy_sums: ClassVar[bool] = True
    noise_multiplier: float
    average: bool

    def settings(self) -> dict[str, Any]:
        return {
            "learning_rate": self.step_size,
            "schedule": self.more["schedule"],
            "noise_multiplier": self.noise_multiplier,
            "average": self.average,
        }

    def descent(self) -> str:
        return (
            f"{self.chains} x {self.steps} steps at learning rate {self.sizes()}, {self.batches()}, {self.clipping()}, "
            f"noise multiplier {self.noise_multiplier:.4g}"
        )

    def unspent(self) -> str:
        return "; noise_multiplier was given"


@dataclass(frozen=True, kw_only=True)
class OptimiserSummary(DescentSummary):
    """Of points near the mode."""

    point: ClassVar[bool] = True
    estimate: str

    def lines(self) -> list[str]:
        return [self.descent(), self._kept(), *self.filtering()]

    def _kept(self) -> str:
        iterates = "the last iterate" if self.draws == 1 else f"{self.draws} iterates"
        kept = "the mean of the second half of the run" if self.average else iterates
        return f"kept of each chain: {kept}, near the mode of the posterior; points have no posterior spread"


@dataclass(frozen=True, kw_only=True)
class VariationalSummary(DescentSummary):
    """Of an optimiser over distributions."""

    family: str
    guide: str | None = None

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"family": self.family}

    def lines(self) -> list[str]:
        return [
            self.descent(),
            f"{self.draws} draws of each chain are from q, the {self.family} approximation that it finds; its spread "
            "is of the posterior alone, and does not count the noise that was added for privacy",
            *self.filtering(),
        ]

    def remarks(self) -> list[str]:
        return [
            f"The draws are from the {self.family} approximation to the posterior that the run has found. What that "
            "cannot follow does not show, and its spread does not count the noise that was added for privacy; several "
            "chains show by how much that moves it."
        ]


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

    def lines(self) -> list[str]:
        power, total = self.likelihood_power, self.chains * self.draws
        if self.bound == "tight":
            whole = "no gradient is cut" if self.clip is None else f"gradients clipped to {self.clip:.4g}"
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


def kind_of(plan: Mapping[str, Any]) -> type[Summary]:
    """The kind of a run's stored plan; `Summary` of one that is none."""
    named = {kind.name: kind for kind in (LangevinSummary, PosteriorSampleSummary)}
    kinds = (HybridSummary, OptimiserSummary, VariationalSummary, SamplerSummary)
    own = named.get(plan.get("sampler", ""))
    return next((kind for kind in ((own,) if own else kinds) if kind.needs() <= set(plan)), Summary)
