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

from confide.data.datasets.images import cifar10 as cifar10
from confide.data.datasets.images import digits as digits
from confide.data.datasets.images import idc as idc
from confide.data.datasets.images import mnist as mnist
from confide.data.datasets.images import svhn as svhn
from confide.data.datasets.tables import abalone as abalone
from confide.data.datasets.tables import adult as adult
from confide.data.datasets.tables import breast_cancer as breast_cancer
from confide.data.datasets.tables import german_credit as german_credit
from confide.data.datasets.tables import schema_path as schema_path
from confide.data.datasets.tables import table as table
from confide.data.datasets.types import Arrays as Arrays
from confide.data.datasets.types import Grouped as Grouped
from confide.data.datasets.types import Records as Records
from confide.data.datasets.types import Split as Split
