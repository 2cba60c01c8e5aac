"""What any release says of itself: what the rest of its run has to agree with, and the draws that it makes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from confide.mechanism.scale import ScaleAnswers
from confide.privacy.events import Event


class Terms(NamedTuple):
    """What a release has to agree with, of the rest of its run."""

    plan: Mapping[str, Any]  # entries of the plan
    settings: Mapping[str, Any]  # of the model
    multipliers: Mapping[type[Event], Any]  # noise over the bound of a record, by the event that it is priced as


class Drawn(NamedTuple):
    """Draws as they are stored, in single precision."""

    parameters: np.ndarray  # (1, draws, parameters)
    noise_scales: np.ndarray | None = None  # (1, draws), where they are learnt


def spread_out(draws: np.ndarray, factor: float) -> np.ndarray:
    """Draws this many times as far from their mean."""
    mean = draws.mean(axis=0)
    return draws if factor == 1 else mean + factor * (draws - mean)


def draws_key(answers: ScaleAnswers) -> int:
    """What draws are made by. It follows from the noisy counts, so that it is public, and no choice; and as these are
    whole numbers, it is the same on every processor."""
    counts = answers.norms if answers.outcomes is None else np.concatenate([answers.norms, answers.outcomes])
    return int.from_bytes(hashlib.sha256(counts.astype("<i8").tobytes()).digest()[:4], "little")
