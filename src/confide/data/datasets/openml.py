"""The tables of the UCI repository by way of OpenML, where its own server does not answer.

OpenML keeps the same records in another form. They are written back in the form of the original files, so that there is
one reader for each; OpenML has no checksum of those, so the numbers of records and of classes are compared with the
documented ones.
"""

from __future__ import annotations

import io
import socket
import warnings
from http.client import HTTPException
from pathlib import Path
from typing import Any

from confide.data.datasets.download import PIECE, TIMEOUT, NotDownloaded, write

DATASETS = {"adult": 1590, "abalone": 183, "german_credit": 31}  # each number is one version for ever
SHAPES = {"adult": (48_842, 15), "abalone": (4_177, 9), "german_credit": (1_000, 21)}
ADULT_TEST, ADULT_TEST_RICH, ADULT_RICH = 16_281, 3_846, 7_841
GERMAN_BAD = 300

# What OpenML writes for the documented codes of the German credit data: number of the attribute, first code, words.
_GERMAN = (
    (1, 1, ("<0", "0<=X<200", ">=200", "no checking")),
    (
        3,
        0,
        (
            "no credits/all paid",
            "all paid",
            "existing paid",
            "delayed previously",
            "critical/other existing credit",
        ),
    ),
    (
        4,
        0,
        (
            "new car",
            "used car",
            "furniture/equipment",
            "radio/tv",
            "domestic appliance",
            "repairs",
            "education",
            "vacation",
            "retraining",
            "business",
            "other",
        ),
    ),
    (6, 1, ("<100", "100<=X<500", "500<=X<1000", ">=1000", "no known savings")),
    (7, 1, ("unemployed", "<1", "1<=X<4", "4<=X<7", ">=7")),
    (9, 1, ("male div/sep", "female div/dep/mar", "male single", "male mar/wid", "female single")),
    (10, 1, ("none", "co applicant", "guarantor")),
    (12, 1, ("real estate", "life insurance", "car", "no known property")),
    (14, 1, ("bank", "stores", "none")),
    (15, 1, ("rent", "own", "for free")),
    (17, 1, ("unemp/unskilled non res", "unskilled resident", "skilled", "high qualif/self emp/mgmt")),
    (19, 1, ("none", "yes")),
    (20, 1, ("yes", "no")),
)


def write_file(name: str, file: str, target: Path) -> None:
    """One file of a table in its original form; NotDownloaded if OpenML does not answer, or answers something else."""
    rows = _fetch(name)
    if name == "adult":
        train, test = _adult_split(rows)
        rows = [[*row[:-1], f"{row[-1]}."] for row in test] if file == "adult.test" else train
    elif name == "german_credit":
        rows = _german_codes(rows)
    separator = {"adult": ", ", "abalone": ",", "german_credit": " "}[name]
    text = "".join(f"{separator.join(row)}\n" for row in rows)
    stream = io.BytesIO(text.encode())
    write(target, lambda: stream.read(PIECE))


def _fetch(name: str) -> list[list[str]]:
    from sklearn.datasets import fetch_openml

    where = f"OpenML dataset {DATASETS[name]}"
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)  # fetch_openml has no timeout of its own
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns before each further attempt
            # The other parser fails on the classes of abalone, which are numbers (scikit-learn 1.9 with pandas 3).
            bunch: Any = fetch_openml(
                data_id=DATASETS[name], as_frame=True, parser="liac-arff", cache=False, n_retries=1
            )
            frame = bunch.frame
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise NotDownloaded(f"{where}: {getattr(reason, 'strerror', None) or reason}") from None
    except (ValueError, KeyError, TypeError) as error:  # what fetch_openml raises for an answer of another form
        raise NotDownloaded(f"{where}: not understood ({type(error).__name__})") from None
    finally:
        socket.setdefaulttimeout(before)
    if frame.shape != SHAPES[name]:
        raise NotDownloaded(f"{where}: it has {frame.shape} rows and columns, not {SHAPES[name]}")
    cells = frame.astype(object).where(frame.notna(), "?").to_numpy().tolist()
    return [[_text(cell) for cell in row] for row in cells]


def _text(cell: Any) -> str:
    return cell.strip() if isinstance(cell, str) else f"{float(cell):.15g}"


def _adult_split(rows: list[list[str]]) -> tuple[list[list[str]], list[list[str]]]:
    """OpenML joins the two files; which comes first is told by the number of incomes above 50,000 in each."""
    for train, test in (
        (rows[ADULT_TEST:], rows[:ADULT_TEST]),
        (rows[:-ADULT_TEST], rows[-ADULT_TEST:]),
    ):
        if [sum(row[-1] == ">50K" for row in part) for part in (train, test)] == [ADULT_RICH, ADULT_TEST_RICH]:
            return train, test
    raise NotDownloaded(f"OpenML dataset {DATASETS['adult']}: its train and test records cannot be told apart")


def _german_codes(rows: list[list[str]]) -> list[list[str]]:
    codes = {
        number - 1: {word: f"A{number}{code}" for code, word in enumerate(words, first)}
        for number, first, words in _GERMAN
    } | {20: {"good": "1", "bad": "2"}}
    try:
        coded = [[codes[place][cell] if place in codes else cell for place, cell in enumerate(row)] for row in rows]
    except KeyError as error:
        raise NotDownloaded(f"OpenML dataset {DATASETS['german_credit']}: {error} has no documented code") from None
    if sum(row[-1] == "2" for row in coded) != GERMAN_BAD:
        raise NotDownloaded(f"OpenML dataset {DATASETS['german_credit']}: its classes are not the documented ones")
    return coded
