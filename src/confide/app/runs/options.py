"""What is asked of `confide fit`: the settings of a run, and what is said of a table or of images on the command line.

A `Request` is what is stored of a run that may be interrupted, field by field. An option that has words for it is one
of the command line (`confide.app.cli.runs`); `read` turns what is written there into what is stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from confide.data.image_schema import parse_classes, parse_shape
from confide.data.schema import normalise
from confide.inference.options import RunSettings, words
from confide.validation import Refused

if TYPE_CHECKING:
    from confide.privacy.events import Neighbours


def _layers(text: str) -> tuple[int, ...]:
    units = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in units):
        raise Refused(f"--hidden {text!r} is no list of layers: give the units of each, such as 64,32")
    return tuple(map(int, units))


@dataclass(frozen=True, kw_only=True)
class Request(RunSettings):
    """Everything that is asked of a run; None is planned or taken from the schema."""

    data: str = field(
        metadata=words(
            command="A CSV or Parquet file, one row per person; or images: an .npz file (x, y), or a folder of "
            "folders.",
            argument=True,
            kind=Path,
            read=str,
        )
    )
    epsilon: float = field(metadata=words(command="Privacy loss, above 0."))
    delta: float = field(metadata=words(command="Probability that the bound fails, in (0, 1)."))
    out: str = field(metadata=words(command="A new folder; everything in it may be published.", kind=Path, read=str))
    schema: str | None = field(  # as TOML text
        default=None, metadata=words(command="Of a table; see 'confide schema init'.", kind=Path, read=normalise)
    )
    classes: tuple[str, ...] | None = field(
        default=None,
        metadata=words(
            command="Of images: how many classes, or their names (cat,dog). They are public, and not looked up.",
            read=parse_classes,
        ),
    )
    shape: tuple[int, ...] | None = field(  # height, width, channels
        default=None,
        metadata=words(
            command="Of images in a folder: 32x32x3. By default the first file's, and others are refused.",
            read=parse_shape,
        ),
    )
    target: str | None = field(
        default=None, metadata=words(command="The column to predict, if the schema does not say.")
    )
    model: str | None = field(
        default=None,
        metadata=words(
            command="logistic, softmax, linear, poisson, negative-binomial, mlp, or cnn for images; by default as the "
            "data ask for."
        ),
    )
    sampler: str | None = field(
        default=None,
        metadata=words(
            command="scoring, the default of linear models; sufficient-statistics for linear regression; "
            "sgld, the default of others; psgld, sghmc, "
            "baoab, sgnht, sgfs or wang2015_sgld; langevin, ops or hybrid for convex models; "
            "dpvi for an approximation, dp_sgd or dp_adam for a point."
        ),
    )
    ledger: str | None = field(
        default=None,
        metadata=words(command="The ledger to charge before the data are used.", kind=Path, read=str),
    )
    neighbours: Neighbours = field(default="add-remove", metadata=words(command="add-remove or replace-one."))
    temperature: float | None = field(
        default=None, metadata=words(command="1 samples the posterior; langevin plans its own.")
    )
    prior_scale: float | None = field(
        default=None,
        metadata=words(
            command="Standard deviation of every coefficient a priori: of standardised columns 2.5 by default, of "
            "encoded ones 1, less for one private draw."
        ),
    )
    prior: str | None = field(
        default=None,
        metadata=words(
            command="Scoring of a table: standardised (default), the prior is on coefficients of columns with standard "
            "deviation 1; or encoded, on columns scaled by their bounds."
        ),
    )
    priors: str | None = field(
        default=None,
        metadata=words(
            command="Scoring of a table: standard deviations of single coefficients, each per unit of its column, as "
            "age=0.05,dose=2; as prior = in a schema."
        ),
    )
    noise_scale: float | None = field(  # in the unit of the target
        default=None,
        metadata=words(
            command="Linear: sd of the outcome in its unit; by default learnt by scoring and "
            "sufficient-statistics, and 1/8 of its range elsewhere."
        ),
    )
    dispersion: float | None = field(
        default=None,
        metadata=words(command="Negative-binomial: a, where counts of mean m have variance m + a m^2; 1 by default."),
    )
    hidden: tuple[int, ...] | None = field(
        default=None,
        metadata=words(command="Mlp: hidden units of each layer, as 64,32; 32 if not given.", read=_layers),
    )
    dropout: float | None = field(
        default=None, metadata=words(command="Mlp and cnn: share of units that every step leaves out.")
    )
    convolutions: int | None = field(
        default=None, metadata=words(command="Cnn: 2 or 4; by default 2 for grey images, 4 for others.")
    )
    account: tuple[str, ...] = field(
        default=("dp",),
        metadata=words(
            command="dp; beside it bayesian, an estimate for typical people that is printed for you alone, or "
            "individual: every record pays for itself. Give it once for each.",
            kind=list[str],
            read=tuple,
        ),
    )
    stretch: float | None = field(
        default=None,
        metadata=words(
            command="Individual: budgets that the longest gradients would spend; who has spent one is left out."
        ),
    )
    histogram: float | None = field(
        default=None,
        metadata=words(command="Individual: share of the budget for a histogram of what single records spent."),
    )
    accept_learnt: bool = field(
        default=False,
        metadata=words(command="Take a schema that was filled in from the data.", flag="--accept-learnt-schema"),
    )
    delimiter: str | None = field(default=None, metadata=words(command="Of a CSV file; a comma by default."))
    encoding: str | None = field(default=None, metadata=words(command="Of a CSV file; UTF-8 by default."))
    key: int | None = None
