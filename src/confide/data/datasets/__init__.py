"""Named datasets: tables encoded by their public schemas, and images as bytes.

Files are looked for in the folder given, in the folder that the environment variable CONFIDE_DATA names, and in the
user's cache folder; what is nowhere is downloaded into the last, if its source serves it to everyone.

| dataset         | returns   | what                                                    |
|-----------------|-----------|---------------------------------------------------------|
| `adult`         | `Split`   | census records: is the income above 50,000 dollars?     |
| `abalone`       | `Arrays`  | shells: how many rings?                                 |
| `german_credit` | `Arrays`  | loans: a bad risk?                                      |
| `breast_cancer` | `Arrays`  | cell nuclei: malignant? Ships with scikit-learn.        |
| `digits`        | `Arrays`  | digits, 8 x 8. Ships with scikit-learn.                 |
| `mnist`         | `Split`   | digits, 28 x 28                                         |
| `svhn`          | `Split`   | house numbers, 32 x 32 in colour                        |
| `cifar10`       | `Split`   | ten kinds of things, 32 x 32 in colour                  |
| `idc`           | `Grouped` | breast tissue, 50 x 50 in colour: carcinoma? By patient |

`table` gives the records of a table as text, `schema_path` its schema.
"""

from confide.data.datasets.images import cifar10, digits, idc, mnist, svhn
from confide.data.datasets.tables import abalone, adult, breast_cancer, german_credit, schema_path, table
from confide.data.datasets.types import Arrays, Grouped, Records, Split

__all__ = [
    "Arrays",
    "Grouped",
    "Records",
    "Split",
    "abalone",
    "adult",
    "breast_cancer",
    "cifar10",
    "digits",
    "german_credit",
    "idc",
    "mnist",
    "schema_path",
    "svhn",
    "table",
]
