"""The house has floors: a module imports only from the floors above it, and the privacy side never imports JAX."""

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "confide"
# Each name may import from the names before it. A folder is one floor; its own files are ordered below.
FLOORS = [
    "checks",
    "files",
    "accounts",
    "contractions",
    "events",
    "budget",
    "accountants",
    "accounting",
    "calibration",
    "step_sizes",
    "shares",
    "seals",
    "ledger",
    "charges",
    "planning",
    "schema",
    "tables",
    "encoding",
    "drafts",
    "data",
    "features",
    "pictures",
    "picture_files",
    "scaling",
    "models",
    "inputs",
    "convexity",
    "balls",
    "targets",
    "batches",
    "canaries",
    "ghosts",
    "gradients",
    "rounded",
    "noise",
    "filters",
    "kernel",
    "samplers",
    "posterior",
    "checkpoints",
    "run",
    "progress",
    "metropolis",
    "jobs",
    "leakage",
    "statements",
    "fitting",
    "baselines",
    "pending",
    "request",
    "preparation",
    "tabular",
    "predictions",
    "audits",
    "report",
    "estimators",
    "experiments",
    "demonstration",
    "cli",
]
INSIDE = {
    "jobs": [
        "parts",
        "clips",
        "individual",
        "estimates",
        "guides",
        "descents",
        "stochastic",
        "langevin",
        "posterior_sample",
        "hybrid",
        "__init__",
    ],
    "events": ["event", "gaussian", "releases", "filtered", "posteriors", "votes", "__init__"],
    "data": ["shapes", "places", "openml", "tables", "images", "__init__"],
    "features": ["wavelets", "transform", "stored", "rows", "__init__"],
    "accountants": [
        "kinds",
        "profiles",
        "roots",
        "log_moments",
        "moments",
        "distances",
        "confidence",
        "costing",
        "bayesian",
        "gdp",
        "pairs",
        "fourier",
        "pld",
        "advanced",
        "last_iterate",
        "individual",
        "votes",
        "__init__",
    ],
    "models": [
        "priors",
        "tapes",
        "model",
        "glm",
        "layers",
        "networks",
        "convolutional",
        "equinox_adapter",
        "numpyro_adapter",
        "__init__",
    ],
    "samplers": [
        "sampler",
        "sgld",
        "langevin",
        "ops",
        "wang2015",
        "sghmc",
        "sgnht",
        "psgld",
        "sgfs",
        "hybrid",
        "descent",
        "variational",
        "__init__",
    ],
    "baselines": [
        "release",
        "minimum",
        "output_perturbation",
        "objective_perturbation",
        "sufficient_statistics",
        "ensemble",
        "aggregation",
        "pate",
        "__init__",
    ],
    "audits": [
        "curves",
        "scores",
        "one_run",
        "many_runs",
        "losses",
        "threshold",
        "optimal",
        "optimisers",
        "training",
        "pools",
        "bounds",
        "shadow",
        "lira",
        "mechanism",
        "verdicts",
        "program",
        "repetitions",
        "rebuilding",
        "gathering",
        "made_up",
        "planted",
        "finished",
        "__init__",
    ],
    "report": ["effects", "predictive", "evidence", "figures", "content", "page", "__init__"],
    "cli": ["printing", "prices", "ledgers", "reproductions", "schemas", "datasets", "audits", "runs", "__init__"],
    "experiments": [
        "reproduction",
        "image_settings",
        "li2019_figure1",
        "li2019_figure2",
        "li2019_figure3",
        "li2019_table1",
        "triastcyn2020_curves",
        "triastcyn2020_figure1",
        "triastcyn2020_figure3",
        "triastcyn2020_figure4",
        "triastcyn2020_figure5",
        "triastcyn2020_learning",
        "triastcyn2020_table1",
        "triastcyn2020_figure2",
        "wang2015_panels",
        "wang2015_figure1",
        "wu2020_tables",
        "wu2020_table1",
        "wu2020_network",
        "wu2020_table2",
        "__init__",
    ],
}
PROMISE = FLOORS[: FLOORS.index("data")]
ALLOWED_OUTSIDE = {"numpy", "scipy", "dp_accounting", "pyarrow"}
ENTRANCES = {"__init__", "__main__"}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return found


def modules() -> list[tuple[str, str, Path]]:
    """(floor, file in a folder or '', path)"""
    rows = []
    for path in sorted(SOURCE.rglob("*.py")):
        relative = path.relative_to(SOURCE)
        assert len(relative.parts) <= 2, f"{relative}: two levels of folders, no more"
        folder = relative.parts[0] if len(relative.parts) == 2 else ""
        rows.append((folder or relative.stem, relative.stem if folder else "", path))
    return rows


@pytest.mark.parametrize(("floor", "file", "path"), modules(), ids=lambda value: getattr(value, "stem", str(value)))
def test_imports_only_from_floors_above(floor, file, path):
    if floor in ENTRANCES:
        return
    assert floor in FLOORS, f"{floor} has no floor: give it one"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "confide" or len(parts) < 2 or parts[1] not in FLOORS:
            continue
        if parts[1] != floor:
            assert FLOORS.index(parts[1]) < FLOORS.index(floor), f"{path.name} imports {name} from below"
        elif file and len(parts) > 2 and parts[2] in INSIDE[floor]:
            assert INSIDE[floor].index(parts[2]) < INSIDE[floor].index(file), f"{path.name} imports {name} from below"


@pytest.mark.parametrize("path", [path for floor, _, path in modules() if floor in PROMISE], ids=lambda path: path.stem)
def test_promise_rests_on_few_packages(path):
    outside = {name.split(".")[0] for name in imports(path)} - {"confide", ""} - set(sys.stdlib_module_names)
    assert outside <= ALLOWED_OUTSIDE


def test_every_file_in_a_folder_has_its_place():
    for floor, file, _ in modules():
        if file:
            assert file in INSIDE[floor]
