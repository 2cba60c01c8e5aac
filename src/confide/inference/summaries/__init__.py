"""What is public about a run, as data: a typed summary for each kind of run, in place of a plan full of branches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confide.inference.summaries.linear import LinearScoringSummary, MomentsSummary
from confide.inference.summaries.noise_aware import NoiseAwareSummary
from confide.inference.summaries.regression import RegressionSummary
from confide.inference.summaries.releases import ObjectiveSummary, OutputSummary, StatisticsSummary, VotesSummary
from confide.inference.summaries.runs import (
    OptimiserSummary,
    Priced,
    RunSummary,
    SamplerSummary,
    Steps,
    Summary,
    VariationalSummary,
)
from confide.inference.summaries.scoring import ScoringSummary
from confide.inference.summaries.tempered import HybridSummary, LangevinSummary, PosteriorSampleSummary

__all__ = ["Priced", "RunSummary", "Steps", "Summary", "from_json"]

RELEASES = (OutputSummary, ObjectiveSummary, StatisticsSummary, VotesSummary)
NAMED = {
    kind.name: kind for kind in (LangevinSummary, PosteriorSampleSummary, ScoringSummary, MomentsSummary, *RELEASES)
}
BY_STEPS = (HybridSummary, OptimiserSummary, VariationalSummary, SamplerSummary)


def from_json(plan: Mapping[str, Any]) -> Summary:
    """The summary behind a stored plan, of any version; a plain `Summary` where no run of ours wrote it."""
    if "noise_aware" in plan:
        return NoiseAwareSummary.of(plan)
    own = NAMED.get(plan.get("sampler", ""))
    kinds: tuple[type[Summary], ...] = BY_STEPS if own is None else (own,)
    if own is ScoringSummary:
        kinds = (RegressionSummary, LinearScoringSummary, own)
    return next((kind for kind in kinds if kind.needs() <= set(plan)), Summary).of(plan)
