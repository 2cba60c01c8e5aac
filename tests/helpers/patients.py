"""Made-up patients: a table with a column of every kind, and its schema."""

import csv
import random

HEADER = ["id", "age", "sex", "smoker", "stage", "relapse"]
SCHEMA = """target = "relapse"

[columns.id]
kind = "ignore"

[columns.age]
kind = "numeric"
low = 0
high = 120
unit = "years"
missing = "indicator"

[columns.sex]
kind = "categorical"
categories = ["female", "male"]
other = true

[columns.smoker]
kind = "boolean"

[columns.stage]
kind = "ordinal"
categories = ["I", "II", "III", "IV"]

[columns.relapse]
kind = "boolean"
"""


def rows(count=300, seed=0):
    chance = random.Random(seed)
    for number in range(count):
        age, stage = chance.randint(20, 95), chance.randrange(4)
        relapse = chance.random() < 0.15 + 0.2 * stage
        shown = "NA" if number % 50 == 7 else age
        sex = chance.choice(["female", "male", "female", "male", "diverse"])
        smoker = chance.choice(["yes", "no"])
        yield [f"p{number}", shown, sex, smoker, ["I", "II", "III", "IV"][stage], "yes" if relapse else "no"]


def write(folder, count=300, delimiter=",", encoding="utf-8"):
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "patients.csv").open("w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([HEADER, *rows(count)])
    (folder / "schema.toml").write_text(SCHEMA)
    return folder
