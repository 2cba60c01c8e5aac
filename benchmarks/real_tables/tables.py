"""The tables of the benchmark as encoded rows, with what is public about them."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import confide
from confide.data import encoding, schema, tables
from confide.inference.regression.design import Column, Design, OutcomeKind

DATA = Path(os.environ.get("CONFIDE_DATA", Path(__file__).parents[3] / "shared" / "data"))
FAMILIES: dict[str, OutcomeKind] = {
    "nwtco": "labels", "hi": "labels", "rossi": "labels", "males": "numbers", "wages": "numbers",
    "workinghours": "numbers", "ofp": "counts", "doctoraus": "counts", "adult": "labels", "adult9": "labels",
}  # fmt: skip
FEW = 20  # records; levels with fewer are a group of their own

# Nine columns of Adult within bounds that are far wider than the data.
WIDE_ADULT = """
target = "income"
missing_values = ["?"]
columns.age = {kind = "numeric", low = 0, high = 120}
columns.workclass.kind = "ignore"
columns.fnlwgt = {kind = "numeric", low = 0, high = 10000000}
columns.education.kind = "ignore"
columns.education-num = {kind = "numeric", low = 0, high = 30}
columns.marital-status = {kind = "categorical", categories = ["Married-civ-spouse", "Divorced", "Never-married", \
"Separated", "Widowed", "Married-spouse-absent", "Married-AF-spouse"]}
columns.occupation.kind = "ignore"
columns.relationship.kind = "ignore"
columns.race = {kind = "categorical", categories = ["White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", \
"Black"]}
columns.sex = {kind = "boolean", true = ["Male"], false = ["Female"]}
columns.capital-gain = {kind = "numeric", low = 0, high = 1000000}
columns.capital-loss = {kind = "numeric", low = 0, high = 100000}
columns.hours-per-week = {kind = "numeric", low = 0, high = 168}
columns.native-country.kind = "ignore"
columns.income = {kind = "boolean", true = [">50K"], false = ["<=50K"]}
"""


@dataclass(frozen=True)
class RealTable:
    """Rows and outcomes as they are encoded, without absent records and without the constant."""

    name: str
    design: Design
    x: np.ndarray
    y: np.ndarray
    feature_names: tuple[str, ...]

    @property
    def family(self) -> OutcomeKind:
        return self.design.outcome_kind

    @property
    def references(self) -> list[int]:
        """The commonest level of every category."""
        return [max(group, key=lambda j: self.x[:, j].sum()) for group in self.design.categories]

    @property
    def coefficients(self) -> list[int]:
        """Features that have a coefficient when the commonest levels are the references."""
        return [j for j in range(self.x.shape[1]) if j not in self.references]

    @property
    def rows(self) -> np.ndarray:
        """Rows of the features with a coefficient and the constant."""
        return np.column_stack([self.x[:, self.coefficients], np.ones(len(self.x))])

    @property
    def is_rare(self) -> np.ndarray:
        """Which coefficients are of levels with few records, the intercept last."""
        kinds = [self.design.columns[j].kind for j in self.coefficients]
        counts = self.x[:, self.coefficients].sum(axis=0)
        rare = [kind == "category" and count < FEW for kind, count in zip(kinds, counts, strict=True)]
        return np.array([*rare, False])

    @property
    def is_constant(self) -> np.ndarray:
        """Which coefficients are of columns with one value, so that no fit knows them; the intercept last."""
        return np.append(np.ptp(self.x[:, self.coefficients], axis=0) == 0, False)

    def contrasts(self, draws: np.ndarray) -> np.ndarray:
        """Draws of coefficients of all features and the intercept, as contrasts to the commonest levels."""
        moved = draws.copy()
        for group, reference in zip(self.design.categories, self.references, strict=True):
            moved[:, group] -= draws[:, [reference]]
            moved[:, -1] += draws[:, reference]
        return moved[:, [*self.coefficients, -1]]

    def with_outcomes(self, y: np.ndarray, bounds: tuple[float, float], x: np.ndarray | None = None) -> RealTable:
        x = self.x if x is None else x
        return replace(self, x=x, y=y, design=replace(self.design, outcome=bounds, number=len(y)))


def load(name: str) -> RealTable:
    family = FAMILIES[name]
    if name.startswith("adult"):
        whole = confide.data.schema.load(confide.data.schema_path("adult"))
        described = (schema.loads(WIDE_ADULT) if name == "adult9" else whole).with_target(None)
        table = _with_header(DATA / "adult" / "adult.data", [column.name for column in whole.columns])
    else:
        described = schema.load(DATA / "tables" / f"{name}.toml").with_target(None)
        table = tables.open_table(DATA / "tables" / f"{name}.csv")
    encoded = encoding.encode_table(described, table, count=family == "counts")
    columns: list[Column] = []
    for group, column in enumerate(described.inputs):
        if column.kind == "categorical":
            columns += [Column("category", group)] * len(column.features)
        else:
            columns += [Column("boolean" if column.kind == "boolean" else "numeric")] * len(column.features)
    target = described.column(described.target)
    bounds = {"labels": (0.0, 1.0), "numbers": (-1.0, 1.0), "counts": (target.low, target.high)}[family]
    x = encoded.x[encoded.present].astype(float)[:, :-1]
    y = encoded.y[encoded.present].astype(float)
    design = Design(outcome_kind=family, columns=tuple(columns), outcome=bounds, number=len(y))
    return RealTable(name, design, x, y, tuple(described.features[:-1]))


def _with_header(path: Path, names: list[str]) -> tables.Table:
    """The records of Adult, whose file has no header."""
    copy = Path(os.environ.get("TMPDIR", "/tmp")) / "confide-benchmark-adult.csv"
    if not copy.exists():
        lines = io.StringIO(path.read_text())
        copy.write_text(",".join(names) + "\n" + "\n".join(line.strip() for line in lines if line.strip()))
    return tables.open_table(copy)
