"""What an attack found: one score for each record, higher where the record looks more like a member.

An attack says nothing else, so every number by which attacks are compared is computed here, from raw counts. Infinite
scores are kept, since only their order counts (a loss of probability 0 is infinite); those that are not numbers are
refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from confide import validation
from confide.audits.curves import Roc, band, grid
from confide.validation import Refused

BINS = 40  # of the histograms
TAILS = (0.005, 0.995)  # beyond which scores, of likelihood ratios for instance, would take all of the axis
RATES = (0.001, 0.01, 0.1)  # false positive rates that are told
COLOURS = {"members": "#D55E00", "others": "#0072B2", "chance": "#666666"}  # Okabe and Ito's
WARNING = "Not to be published: this was computed from the records themselves, unpaid, and no guarantee covers it."


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Scores:
    """What a membership attack gives. It depends on the records, and NO guarantee covers it: not to be published.

    Its `repr`, which notebooks show by themselves, says nothing of it; `print` says all. Canaries are nobody's records.

    Attributes:
        members: scores of records that were fitted, higher where the attack takes them for members.
        nonmembers: scores of records of the same population that were not.
        threshold: the attack says "member" where the score is at least this; None for an attack that only ranks.
        name: of the attack.
        confidential: whether the scores are of people's records.

    >>> scores = Scores(members=[3.0, 2.0, 1.0], nonmembers=[2.0, 0.0], threshold=2.0, name="by hand")
    >>> scores.auc, scores.accuracy, scores.tpr_at_fpr(0.0)
    (0.75, 0.6, 0.3333333333333333)
    """

    members: np.ndarray
    nonmembers: np.ndarray
    threshold: float | None = None
    name: str = "attack"
    confidential: bool = True

    def __post_init__(self) -> None:
        validation.instance(str, name=self.name)
        for side in ("members", "nonmembers"):
            object.__setattr__(self, side, vector(f"{self.name}: scores of {side}", getattr(self, side)))
        if self.threshold is None:
            return
        try:
            threshold = float(self.threshold)
        except (TypeError, ValueError):
            threshold = math.nan
        if math.isnan(threshold):
            raise Refused(f"threshold = {self.threshold!r} is not a number: give one, or None for an attack that ranks")
        object.__setattr__(self, "threshold", threshold)

    def __repr__(self) -> str:
        sizes = f"{len(self.members)} members and {len(self.nonmembers)} others"
        warning = ", NOT TO BE PUBLISHED; print it to see it" if self.confidential else ""
        return f"<Scores of {self.name}: {sizes}{warning}>"

    def __str__(self) -> str:
        return "\n".join(self.sentences())

    @cached_property
    def _ascending(self) -> tuple[np.ndarray, np.ndarray]:
        return np.sort(self.members), np.sort(self.nonmembers)

    @property
    def auc(self) -> float:
        """The probability that a member scores above a nonmember; ties count half. Guessing has 0.5."""
        members, others = self._ascending
        below, upto = (np.searchsorted(others, members, side).sum() for side in ("left", "right"))
        return float((int(below) + int(upto)) / (2 * len(members) * len(others)))

    @property
    def advantage(self) -> float:
        """The largest difference of true and false positive rate over all thresholds (Yeom et al. 2018)."""
        members, others = self._ascending
        levels = np.concatenate(self._ascending)
        tpr, fpr = ((len(side) - np.searchsorted(side, levels, "left")) / len(side) for side in (members, others))
        return max(0.0, float(np.max(tpr - fpr)))

    @property
    def recall(self) -> float:
        """The share of the members that the attack calls members: the true positive rate at its threshold."""
        return self._called()[0] / len(self.members)

    @property
    def precision(self) -> float:
        """The share of members among those called members; 0 where none is."""
        right, wrong = self._called()
        return right / (right + wrong) if right else 0.0

    @property
    def accuracy(self) -> float:
        """The share of all records that the attack gets right, by raw counts: with 400 members and 300 others, as in
        wu2020, an attack that always says "member" has 0.571."""
        right, wrong = self._called()
        return (right + len(self.nonmembers) - wrong) / (len(self.members) + len(self.nonmembers))

    @property
    def balanced_accuracy(self) -> float:
        """The mean of the shares of members and of nonmembers that the attack gets right. Guessing has 0.5."""
        wrong = self._called()[1]
        return (self.recall + 1 - wrong / len(self.nonmembers)) / 2

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall, by raw counts."""
        right, wrong = self._called()
        return 2 * right / (right + wrong + len(self.members))

    def _called(self) -> tuple[int, int]:
        """Members and nonmembers that are called members."""
        if self.threshold is None:
            raise Refused(f"{self.name} has no threshold, so it only ranks: use auc, advantage or tpr_at_fpr")
        return int(np.sum(self.members >= self.threshold)), int(np.sum(self.nonmembers >= self.threshold))

    def tpr_at_fpr(self, fpr: float) -> float:
        """The largest true positive rate of all thresholds whose false positive rate is at most this.

        Nothing is interpolated, and records of equal score are called members together or not at all.
        """
        return float(self._rates(np.array([validation.probability(zero=True, one=True, fpr=fpr)]))[0])

    def _rates(self, fpr: np.ndarray) -> np.ndarray:
        members, others = self._ascending
        size = len(others)
        allowed = np.floor(fpr * size).astype(np.int64)
        allowed += (allowed + 1) / size <= fpr  # where the product was rounded down
        allowed -= allowed / size > fpr
        # Any threshold at or below the score of rank allowed + 1 would call that nonmember a member too.
        first = others[size - 1 - np.minimum(allowed, size - 1)]
        rates = (len(members) - np.searchsorted(members, first, "right")) / len(members)
        return np.where(allowed >= size, 1.0, rates)

    def roc(self, confidence: float = 0.95) -> Roc:
        """The curve at false positive rates evenly spaced on a logarithmic axis.

        With probability `confidence` at least its band holds the true curve, everywhere at once: see
        `confide.audits.curves`.
        """
        low, high = band(*self._ascending, validation.probability(confidence=confidence))
        fpr = grid(len(self.nonmembers))
        return Roc(fpr, self._rates(fpr), low, high)

    def to_json(self, confidence: float = 0.95) -> dict[str, Any]:
        """The summary, the curve and two histograms, for a report: no single score. Not to be published.

        `confidence` is that of the curve's band.
        """
        edges, *counts = self._histograms()
        curve = self.roc(confidence)
        called = {} if self.threshold is None else {
            "threshold": self.threshold if math.isfinite(self.threshold) else None,
            **{name: getattr(self, name) for name in ("f1", "accuracy", "balanced_accuracy", "precision", "recall")},
        }  # fmt: skip
        return {
            "name": self.name,
            "members": len(self.members),
            "nonmembers": len(self.nonmembers),
            "auc": self.auc,
            "advantage": self.advantage,
            "tpr_at_fpr": {f"{rate:g}": self.tpr_at_fpr(rate) for rate in RATES},
            **called,
            "roc": {"confidence": confidence, **{name: side.tolist() for name, side in curve._asdict().items()}},
            "histogram": {
                "edges": edges.tolist(),
                **{name: side.tolist() for name, side in zip(("members", "nonmembers"), counts, strict=True)},
            },
            **({"warning": WARNING} if self.confidential else {}),
        }

    def _histograms(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Edges of bins, and the records of both sides in them; the first and the last hold all beyond them too."""
        both = np.concatenate(self._ascending)
        both = both[np.abs(both) <= validation.EXTREME]
        low, high = map(float, np.quantile(both, TAILS)) if both.size else (0.0, 0.0)
        width = max(high - low, 1e-6 * max(abs(low), abs(high), 1.0))  # room for bins where all are equal
        edges = np.linspace(low, low + width, BINS + 1)
        one, two = (np.histogram(np.clip(side, edges[0], edges[-1]), edges)[0] for side in self._ascending)
        return edges, one, two

    def sentences(self) -> tuple[str, ...]:
        """The result in plain language, with what it does not say."""
        shown = [rate for rate in RATES if rate * len(self.nonmembers) >= 1] or [0.0]  # what so many others can show
        rates = ", ".join(f"{self.tpr_at_fpr(rate):.2%} at {rate:.1%}" for rate in shown)
        found = [
            *([WARNING] if self.confidential else []),
            f"{self.name}: {len(self.members):,} members and {len(self.nonmembers):,} others were scored.",
            f"A member scores above another record with a probability of {self.auc:.3f} (AUC; guessing has 0.5).",
            f"Members found at a given share of false alarms: {rates} (guessing finds that share).",
            f"The largest advantage over guessing, over all thresholds, is {self.advantage:.3f}; even where nothing "
            "leaks, this maximum is above 0.",
        ]
        if self.threshold is not None:
            found.append(
                f"At its threshold of {self.threshold:.4g} it says 'member' to {self.recall:.1%} of the members and is "
                f"right in {self.precision:.1%} of all cases that it says so (F1 {self.f1:.3f}, accuracy "
                f"{self.accuracy:.3f}, balanced accuracy {self.balanced_accuracy:.3f})."
            )
        return (*found, "An attack that fails proves nothing: a better one may succeed.")

    def figure(self) -> Any:
        """A matplotlib figure: the curve with its band, and the scores of both sides. Not to be published."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 4), layout="constrained")
        FigureCanvasAgg(figure)  # drawn without a display
        left, right = figure.subplots(1, 2)
        curve, (edges, *counts) = self.roc(), self._histograms()
        least = min(curve.fpr[0], 1 / len(self.members)) / 2
        left.fill_between(
            curve.fpr, curve.low, curve.high, color=COLOURS["members"], alpha=0.2, linewidth=0, label="95% band"
        )
        left.plot(curve.fpr, np.maximum(curve.tpr, least), color=COLOURS["members"], label=f"AUC {self.auc:.3f}")
        left.plot([least, 1], [least, 1], color=COLOURS["chance"], linestyle="--", label="guessing")
        left.set(xscale="log", yscale="log", xlim=(min(curve.fpr[0], 0.5), 1), ylim=(least, 1.1))
        left.set(xlabel="false positive rate", ylabel="true positive rate")
        left.legend(loc="lower right", frameon=False)
        for (name, look), side in zip(
            (("members", {"alpha": 0.4}), ("others", {"histtype": "step", "linewidth": 1.5})), counts, strict=True
        ):
            right.hist(
                edges[:-1],
                edges.tolist(),
                weights=side / side.sum(),
                color=COLOURS[name],
                label=f"{name}: {side.sum()}",
                **look,
            )
        if self.threshold is not None and edges[0] <= self.threshold <= edges[-1]:
            right.axvline(self.threshold, color=COLOURS["chance"], linestyle=":", label="threshold")
        right.set(xlabel="score, higher for members", ylabel="share of the records")
        right.legend(frameon=False)
        figure.suptitle(f"{'NOT TO BE PUBLISHED: ' if self.confidential else ''}{self.name}", fontsize="medium")
        return figure


def vector(name: str, values: Any) -> np.ndarray:
    """A read-only vector of numbers, infinite ones too."""
    try:
        if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
            raise TypeError
        result = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise Refused(f"{name} is not a vector of numbers: give one for each record") from None
    if result.ndim != 1:
        raise Refused(f"{name} has shape {result.shape}: give a vector with one number for each record")
    if not result.size:
        raise Refused(f"{name} is empty: give at least one record")
    lost = int(np.count_nonzero(np.isnan(result)))
    if lost:
        raise Refused(f"{name} is not a number for {lost} of {result.size} records: remove them, or mend the attack")
    result.setflags(write=False)
    return result
