"""What is public about a run, typed: what is stored of it, and what it says of itself. Here of all runs, and of runs by
steps; `tempered` has those that release single draws, `releases` the baselines.

A field without a default is always stored, be it None; one with a default is stored where it is not None. Whatever else
a plan holds, such as a sampler's own options, is in `more`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from confide.privacy.accountants.individual import Histogram
from confide.privacy.budget import Guarantee

SPENT = 0.98  # of the budget: below it, the plan says why
LARGE = 4_000_000  # numbers in the draws: more are worth a word


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Of anything that has draws; by itself of a run about which nothing is known."""

    point: ClassVar[bool] = False  # whether draws are points near the mode, whose spread says nothing of the posterior
    independent: ClassVar[bool] = False  # whether draws are of the posterior given what was released
    noisy_sums: ClassVar[bool] = False  # whether all that is released follows from noisy sums, one or two a step
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def needs(cls) -> set[str]:
        """What is always stored."""
        return {each.name for each in _own(cls) if each.default is MISSING}

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> Self:
        """From a plan as it is stored."""
        known = {each.name for each in _own(cls)}
        own = {name: value for name, value in plan.items() if name in known}
        return cls(**own, more={name: value for name, value in plan.items() if name not in known})

    def to_json(self) -> dict[str, Any]:
        """The plan, as it is stored and as it enters fingerprints."""
        told = {each.name: getattr(self, each.name) for each in _own(type(self))}
        needed = self.needs()
        return {name: value for name, value in told.items() if name in needed or value is not None} | dict(self.more)

    def lines(self) -> list[str]:
        """What is done, for the terminal."""
        return []

    def unspent(self) -> str:
        """Why the run costs less than the budget."""
        return ""

    def warning(self) -> str:
        """What must be said of the draws before they are read."""
        return ""

    def remarks(self) -> list[str]:
        """What is to be known about how the draws were made, for the report."""
        return []


def _own(kind: type[Summary]) -> list[Any]:
    return [each for each in fields(kind) if each.name != "more"]


@dataclass(frozen=True, kw_only=True)
class Priced(Summary):
    """What every run and every release has."""

    model: str
    sampler: str
    records: int  # as declared
    parameters: int
    chains: int
    draws: int  # of each chain
    noise: str | None = None  # where its bits are from
    mechanism: int | None = None  # its version; None before there were two
    budget: Mapping[str, Any] | None = None
    epsilon: float | None = None
    ledger: Mapping[str, Any] | None = None  # what was taken from it
    run: str | None = None  # the receipt of a run that could be interrupted

    def head(self) -> str:
        """What is fitted to what, and how."""
        return f"{self.model} with {self.parameters} parameters on {self.records} records, by {self.sampler}"

    def to_text(self, guarantee: Guarantee, remarks: Sequence[str] = ()) -> str:
        """The plan, for the terminal; `remarks` are further lines of it."""
        limit = (self.budget or {}).get("epsilon", guarantee.epsilon)
        unspent = "" if guarantee.epsilon > SPENT * limit else self.unspent()
        cost = (
            f"costs epsilon {guarantee.epsilon:.4g} at delta {guarantee.delta:.3g} ({guarantee.neighbours}), "
            f"of a budget of {limit:g}{unspent}"
        )
        warning = self.warning()
        return "confide plan: " + "\n  ".join(
            [self.head(), *self.lines(), *remarks, cost, *([warning] if warning else [])]
        )


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
    clipping: str | None = None  # "weighted"; None: gradients are cut by their own length
    clip_given: bool | None = None
    row_bound: float | None = None  # norm from which on rows count less
    information: float | None = None  # of a usual record, by which counts are weighted
    gradient_bound: float | None = None  # as declared
    scale: Mapping[str, Any] | None = None  # of the records, where it is bought; once it is, what was found
    lag_one: float | None = None  # least correlation of consecutive iterates, over all parameters
    drift: float | None = None  # of a q: how far it still moved, in its standard deviations

    def sizes(self) -> str:
        falling = "" if self.last_step_size == self.step_size else f" falling to {self.last_step_size:.4g}"
        return f"{self.step_size:.4g}{falling}"

    def batches(self) -> str:
        full = self.batch_size == self.records
        return "full batches" if full else f"Poisson batches of {self.batch_size}"

    def cut(self) -> str:
        if self.clip is None:
            return "no clip"
        if self.scale is None or "norm" in self.scale or self.clip_given:
            return f"clip {self.clip:.6g}"
        return f"clip {self.clip:.3g} x the scale of the records"

    def course(self) -> str:
        unit = "" if self.scale is None or "norm" in self.scale or self.clip_given else " (in units of the records)"
        return f"{self.chains} x {self.steps} steps of size {self.sizes()}{unit}, {self.batches()}, {self.cut()}"

    def weighting(self) -> list[str]:
        """Whether the clip can bend, and how the scale of the records is known."""
        if self.clip is None or self.clipping is None:
            return []
        lines = ["scores are bounded by weights that no outcome decides: the clip bends nothing"]
        if self.scale is not None and "norm" not in self.scale:
            why = "within the declared bound" if self.scale.get("declared") else "since no norm_bound was declared"
            lines.append(f"the scale of the records is bought inside the budget, {why}")
        return lines

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
            *self.weighting(),
            *self.filtering(),
        ]

    def unspent(self) -> str:
        if self.clipping is not None and self.clip_given:
            return "; the clip is given, and no step may be longer: a longer clip or more steps would use the rest"
        if self.clipping is not None and self.scale is None:
            return "; the rest would buy longer steps, or more of them"
        if self.clipping is not None:
            return "; hardly any score is cut, and no step may be longer: the rest would buy more time, by more steps"
        return "; with the rest the steps would be too large to follow the gradient (more steps could use it)"

    def remarks(self) -> list[str]:
        return [
            f"The diffusion time is {self.diffusion_time:.4g}: directions in which the log likelihood curves by "
            f"less than {1 / self.diffusion_time:.1g} a record have not settled, and show more of the start than "
            "of the data."
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
            f"{self.chains} x {self.steps} steps at learning rate {self.sizes()}, {self.batches()}, {self.cut()}, "
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
        return [self.descent(), self._kept(), *self.weighting(), *self.filtering()]

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
