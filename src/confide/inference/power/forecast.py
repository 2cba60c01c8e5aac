"""What a budget is expected to buy, as a value: figures for every column and epsilon, as JSON, and as a picture."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

OTHERS = (
    "All widths are those of the sampler scoring, the default of these models. Others have no formula: --sampler sgld, "
    "or its kin, dpvi or sufficient-statistics, shows beside it what is seen of that one on made-up tables, at no "
    "cost. They spend the same budget on the way, so that an honest one is hardly narrower than these. A draw of "
    "langevin and a point of dp_sgd have no interval."
)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Expected figures of a run of scoring, before it is paid for: from public numbers, and with no record looked at.

    Attributes:
        columns: names of the coefficients; all that follows is in their order, in the units of the encoded table.
        prior_width: of the 90% interval of the prior.
        widths_without_privacy: of the 90% intervals where nothing is hidden.
        widths: the same at every epsilon, of a median run.
        median_widths: over features and differences of levels, without the constant and what no data tell;
            `median_width_without_privacy` beside it.
        effects: the least coefficients whose intervals exclude 0 with probability 0.8; None where none does.
        seen: how often a run sees the scale of its records; where it does not, its draws are the prior's.
        differences: categories, of whose levels any two differ by so much: `difference_widths` at every epsilon,
            `difference_widths_without_privacy` and `difference_effects` are as above. Levels themselves hold what they
            have in common with the constant, which no data tell.
        attack_success: how often the best attack on membership guesses right.
        accuracy: expected share of right labels at every epsilon, where outcomes are labels; `accuracy_without_privacy`
            and `best_accuracy`, of the true coefficients, beside it.
        signal: by how much the true scores of records spread: accuracies are for such a one.
        assumptions: what was taken for granted of the records.
        caution: on which side the widths err where records are otherwise.
        ranges: at every epsilon the ends between which the width of each column is expected, where its distribution is
            not declared; empty where there is a figure for every column. `ranges_without_privacy` beside it.
        prior_widths: of the prior's interval of each column, where they differ.
        others: what is expected of other samplers.
        answer: of a question the other way round, in words; `sought` is what was asked for, by name.
    """

    model: str
    n: int
    delta: float
    neighbours: str
    prior_scale: float
    noise_scale: float | None
    columns: tuple[str, ...]
    epsilons: tuple[float, ...]
    prior_width: float
    widths_without_privacy: tuple[float, ...]
    widths: tuple[tuple[float, ...], ...]
    median_width_without_privacy: float
    median_widths: tuple[float, ...]
    effects: tuple[tuple[float | None, ...], ...]
    seen: tuple[float, ...]
    attack_success: tuple[float, ...]
    accuracy: tuple[float, ...] | None
    accuracy_without_privacy: float | None
    best_accuracy: float | None
    signal: float
    assumptions: tuple[str, ...]
    caution: str
    differences: tuple[str, ...] = ()
    difference_widths_without_privacy: tuple[float, ...] = ()
    difference_widths: tuple[tuple[float, ...], ...] = ()
    difference_effects: tuple[tuple[float | None, ...], ...] = ()
    ranges: tuple[tuple[tuple[float, float], ...], ...] = ()
    ranges_without_privacy: tuple[tuple[float, float], ...] = ()
    prior_widths: tuple[float, ...] = ()
    others: str = OTHERS
    answer: str | None = None
    sought: dict[str, float] | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Forecast:
        """What `to_json` gave, also after a file."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: _fixed(value) for name, value in record.items() if name in known})

    def width(self, column: str, epsilon: float) -> float:
        """Of one column's interval at one of the epsilons."""
        return self.widths[self.epsilons.index(epsilon)][self.columns.index(column)]

    def figure(self) -> Any:
        """A matplotlib figure: widths over epsilon, and how often the best attack guesses right."""
        from confide.inference.power import picture

        return picture.draw(self)


def _fixed(value: Any) -> Any:
    return tuple(_fixed(each) for each in value) if isinstance(value, list) else value
