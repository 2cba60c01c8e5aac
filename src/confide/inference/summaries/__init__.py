"""What is public about a run, as data: a typed summary for each kind of run, in place of a plan full of branches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confide.inference.summaries import releases, runs
from confide.inference.summaries.base import Priced, Summary

__all__ = ["Priced", "Summary", "from_json"]


def from_json(plan: Mapping[str, Any]) -> Summary:
    """The summary behind a stored plan, of any version; a plain `Summary` where no run of ours wrote it."""
    kind = runs.kind_of(plan)
    return (releases.kind_of(plan) if kind is Summary else kind).of(plan)
