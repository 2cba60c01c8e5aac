"""The command line as a person meets it: exit codes, one-line refusals, JSON, and no traces of a refused call."""

import json
import math
import subprocess
import sys

import pytest

from confide.app import cli
from confide.privacy.ledger import Ledger

ACCOUNT = "account --noise-multiplier 3.48 --sampling-probability 0.0021333 --steps 7812 --delta 1e-5"


@pytest.fixture
def confide(monkeypatch, capsys):
    def call(command: str):
        monkeypatch.setattr(sys, "argv", ["confide", *command.split()])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capsys.readouterr()
        return stopped.value.code or 0, captured.out, captured.err

    return call


def test_account_prints_epsilon_per_accountant(confide):
    code, out, _ = confide(f"{ACCOUNT} --json")
    record = json.loads(out)
    assert code == 0
    assert math.isclose(record["epsilon"]["pld"], 0.1799, rel_tol=2e-3)
    assert math.isclose(record["epsilon"]["moments"], 0.1994, rel_tol=1e-3)
    assert record["status"]["gdp"] == "approximate"
    assert record["epsilon"]["advanced"] is None
    code, out, _ = confide(ACCOUNT)
    assert "pld" in out
    assert "not a guarantee" in out
    assert "guesses right" in out


def test_account_the_other_way_round(confide):
    _, out, _ = confide("account --noise-multiplier 50 --steps 1000 --epsilon 2.59438 --json")
    assert math.isclose(json.loads(out)["delta"]["pld"], 1e-5, rel_tol=1e-3)
    code, _, err = confide("account --noise-multiplier 50")
    assert code == 2
    assert "either --delta" in err
    _, out, _ = confide(
        "account --noise-multiplier 3 --sampling-probability 0.1 --steps 5 --schedule decreasing --delta 1e-5 --json"
    )
    assert json.loads(out)["epsilon"]["pld"] > 0


@pytest.mark.long
def test_plan_answers_as_a_person_would_want(confide):
    command = "plan --n 32561 --epsilon 1 --delta 1e-5 --clip 1 --epochs 20"
    code, out, _ = confide(f"{command} --json")
    record = json.loads(out)
    assert code == 0
    assert record["steps"] == 2544
    assert math.isclose(record["step_size"], 1.452, rel_tol=5e-3)
    assert math.isclose(record["noise_multiplier"], 1.665, rel_tol=5e-3)
    assert 0.999 < record["epsilons"]["pld"] <= 1
    assert record["epsilons"]["moments"] > record["epsilons"]["pld"]
    assert [row["theory"] for row in record["allowed"]][-1] == "wang2015, Theorem 4"
    assert 0.5 < record["attack_success"] < 0.6
    _, out, _ = confide(command)
    for words in ("step size", "noise multiplier", "wang2015, Theorem 4", "li2019, Theorem 4", "certainty", "moments"):
        assert words in " ".join(out.split())
    _, out, _ = confide(
        "plan --n 2000 --epsilon 1 --delta 1e-5 --steps 30 --schedule decreasing --neighbours replace-one --json"
    )
    assert json.loads(out)["schedule"] == "decreasing"


def test_ledger_from_creation_to_refusal(confide, tmp_path):
    path = tmp_path / "l.db"
    code, out, _ = confide(f"ledger create {path} --dataset d --epsilon 1 --delta 1e-5 --json")
    assert code == 0
    assert json.loads(out)["budget"]["epsilon"] == 1.0
    confide(f"ledger create {path} --dataset e --epsilon 2 --delta 0")
    code, out, _ = confide(f"ledger charge {path} --dataset d --pure-epsilon 0.25 --note first --json")
    assert json.loads(out)["left"]["share"] == pytest.approx(0.75)
    code, out, _ = confide(
        f"ledger charge {path} --dataset d --noise-multiplier 10 --sampling-probability 0.1 --steps 10"
    )
    assert code == 0
    assert "Left:" in out
    code, out, err = confide(f"ledger charge {path} --dataset d --mu 1")
    assert code == 2
    assert err.count("\n") == 1
    assert "left: epsilon" in err
    code, out, _ = confide(f"ledger show {path} --json")
    record = json.loads(out)
    assert [len(d["charges"]) for d in record["datasets"]] == [2, 0]
    assert record["datasets"][0]["charges"][0]["event"] == {
        "event": "Release",
        "epsilon": 0.25,
        "delta": 0.0,
        "neighbours": "add-remove",
    }
    _, out, _ = confide(f"ledger show {path} --dataset d")
    assert "first" in out
    assert Ledger(path).verify("d") < 1


@pytest.mark.long
def test_a_printed_plan_fits_its_own_budget(confide, tmp_path):
    for plan in ("--n 10 --epochs 20", "--n 2000 --steps 30 --schedule decreasing"):
        _, out, _ = confide(f"plan --epsilon 1 --delta 1e-5 {plan}")
        charge = out.splitlines()[-1].replace("confide ", "", 1)
        path = tmp_path / f"{len(plan)}.db"
        confide(f"ledger create {path} --dataset d --epsilon 1 --delta 1e-5")
        code, out, err = confide(charge.replace("LEDGER", str(path)).replace("NAME", "d"))
        assert code == 0, err
        assert Ledger(path).left("d").share < 1e-3


def test_notes_and_names_are_never_markup(confide, tmp_path):
    path = tmp_path / "l.db"
    confide(f"ledger create {path} --dataset [/b] --epsilon 1 --delta 1e-5")
    confide(f"ledger charge {path} --dataset [/b] --pure-epsilon 0.1 --note [bold]x[/oops]")
    code, out, _ = confide(f"ledger show {path}")
    assert code == 0
    assert "[bold]x[/oops]" in out
    assert "[/b]: (1, 1e-05)" in out


def test_no_arguments_print_help(confide):
    code, out, err = confide("")
    assert code == 2
    assert "Usage" in out + err
    assert "confide: " not in err


def test_reproduce_refuses_unknown_names(confide, tmp_path):
    code, _, err = confide(f"reproduce li2019-figure9 --out {tmp_path / 'out'}")
    assert code == 2
    assert "li2019-figure1" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("account --noise-multiplier nan --delta 1e-5", "noise_multiplier = nan is not finite"),
        ("account --noise-multiplier inf --delta 1e-5", "noise_multiplier = inf"),
        ("account --noise-multiplier 0 --delta 1e-5", "noise_multiplier = 0 is not positive"),
        ("account --noise-multiplier 1 --delta 0", "delta = 0 has no finite epsilon with Gaussian noise"),
        ("account --noise-multiplier 1 --delta 2", "delta = 2 is out of range"),
        ("account --noise-multiplier 1 --sampling-probability 1.5 --delta 1e-5", "sampling_probability = 1.5"),
        ("account --noise-multiplier 1 --steps 0 --delta 1e-5", "steps = 0"),
        ("account --noise-multiplier abc --delta 1e-5", "'abc'"),
        ("account --noise-multiplier 1 --steps 1.5 --delta 1e-5", "'1.5'"),
        ("account --noise-multiplier 1 --schedule cosine --delta 1e-5", "schedule = 'cosine'"),
        ("account --noise-multiplier 1 --neighbours both --delta 1e-5", "neighbours = 'both'"),
        ("account --delta 1e-5", "--noise-multiplier"),
        ("account --no-such-option", "--no-such-option"),
        ("nonsense", "nonsense"),
        ("plan --n 100 --epsilon -1 --delta 1e-5 --epochs 1", "epsilon = -1"),
        ("plan --n 100 --epsilon 1 --delta 0 --epochs 1", "delta = 0"),
        ("plan --n 0 --epsilon 1 --delta 1e-5 --epochs 1", "n = 0"),
        ("plan --n 100 --epsilon 1 --delta 1e-5", "epochs or steps"),
        ("plan --n 100 --epsilon 1 --delta 1e-5 --epochs nan", "epochs = nan"),
        ("plan --n 100 --epsilon 1 --delta 1e-5 --epochs 1 --steps 3", "not both"),
        ("plan --n 100 --epsilon 1 --delta 1e-5 --epochs 1 --batch-size 200", "batch_size = 200 is above n = 100"),
        ("plan --n 100 --epsilon 1 --delta 1e-320 --epochs 1", "delta = "),
        ("plan --n 100 --epsilon 1 --delta 1e-5 --epochs 1 --clip 1e-200", "clip = 1e-200 is out of range"),
        ("account --noise-multiplier 1 --steps 1000000000000 --schedule decreasing --delta 1e-5", "too many"),
        ("account --noise-multiplier 1 --steps 1000000000000000000000 --delta 1e-5", "steps = 1e+21"),
        ("ledger charge l.db --dataset d --mu 0.01 --steps 500", "go with --noise-multiplier"),
        ("ledger show /no/such/ledger.db", "does not exist"),
        ("ledger show .", "is not a file"),
        ("ledger create /no/such/ledger.db --dataset d --epsilon 1 --delta 1e-5", "folder that does not exist"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(confide, command, words):
    code, out, err = confide(command)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("confide: ")
    assert words in err


def test_a_refused_creation_leaves_nothing(confide, tmp_path):
    path = tmp_path / "l.db"
    code, _, _ = confide(f"ledger create {path} --epsilon 1 --delta 1e-5 --dataset=")
    assert code == 2
    for bad in ("--epsilon 0 --delta 1e-5", "--epsilon 1 --delta 1.5", "--epsilon 1 --delta 0 --composition gdp"):
        code, _, _ = confide(f"ledger create {path} --dataset d {bad}")
        assert code == 2
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "text").write_text("not a ledger")
    code, _, err = confide(f"ledger charge {tmp_path / 'text'} --dataset d --pure-epsilon 0.1")
    assert code == 2
    assert "is not a confide ledger" in err


def commands(group, path=()):
    for info in group.registered_commands:
        yield (*path, info.name or info.callback.__name__), info.callback
    for sub in group.registered_groups:
        yield from commands(sub.typer_instance, (*path, sub.name))


@pytest.mark.parametrize(
    ("path", "callback"), list(commands(cli.app)), ids=lambda v: " ".join(v) if isinstance(v, tuple) else ""
)
def test_every_command_has_help_and_json(confide, path, callback):
    code, out, _ = confide(f"{' '.join(path)} --help")
    assert code == 0
    assert callback.__doc__.split("\n")[0].rstrip(".") in " ".join(out.split())
    assert "--json" in out


def test_version_and_help_in_a_real_process():
    for arguments, words in ((["--version"], "confide 0."), (["--help"], "ledger")):
        done = subprocess.run([sys.executable, "-m", "confide", *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0
        assert words in done.stdout


@pytest.mark.parametrize("statement", ["import confide", "import confide.app.cli"])
def test_importing_stays_light(statement):
    heavy = {"numpy", "scipy", "matplotlib", "dp_accounting", "jax", "sklearn"}
    check = f"{statement}; import sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_the_privacy_side_never_imports_jax():
    check = (
        "import confide, sys\n"
        "names = [name for name in confide.__all__ if confide._HOME[name].split('.')[0] in ('validation', 'privacy')]\n"
        "assert len(names) > 20\n"
        "for name in names: getattr(confide, name)\n"
        "confide.epsilon(noise_multiplier=2.0, sampling_probability=0.1, steps=3, delta=1e-5)\n"
        "print(sorted({'jax', 'jaxlib', 'dp_accounting', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


TABLE = """target = "ill"
[columns.age]
kind = "numeric"
low = 18
high = 90
[columns.region]
kind = "categorical"
categories = ["north", "south"]
[columns.ill]
kind = "boolean"
"""


def test_plan_says_what_a_budget_buys(confide, tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(TABLE)
    code, out, err = confide(f"plan --schema {path} --n 5000 --epsilon 0.5,1,2,4")
    assert (code, err) == (0, "")
    for said in ("no privacy", "eps 0.5", "region=south", "Smallest effect", "best attack right", "as a range"):
        assert said in " ".join(out.split())
    code, out, _ = confide(f"plan --schema {path} --n 5000 --epsilon 0.5,1 --json --picture {tmp_path / 'plan.png'}")
    record = json.loads(out)
    assert record["columns"] == ["age", "region=north", "region=south", "intercept"]
    assert record["widths"][1][0] < record["widths"][0][0] < record["prior_width"]
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    code, out, _ = confide(f"plan --schema {path} --n 5000 --width 0.8 --column age")
    assert "at epsilon" in " ".join(out.split())
    code, out, _ = confide("plan --features 5 --epsilon 1 --width 0.3 --delta 1e-5 --json")
    assert json.loads(out)["sought"]["n"] == json.loads(out)["n"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("plan --features 5 --n 100 --epsilon 1,,2", "epsilon = '1,,2' is no number"),
        ("plan --features 5 --n 100 --epsilon much", "epsilon = 'much' is no number"),
        ("plan --features 5 --n 1 --epsilon 1", "n = 1"),
        ("plan --features 5 --n 100 --epsilon 1,2 --width 0.3", "one epsilon"),
        ("plan --features 5 --n 100 --width 0.01", "at epsilon 1 it takes"),
        ("plan --features 5 --n 100 --epsilon 1 --epochs 3", "epochs is of a run by steps"),
        ("plan --features 5 --n 100 --epsilon 1 --picture nowhere/plan.png", "cannot be written"),
        ("plan --features 5 --n 100 --epsilon 1 --picture plan.xyz", "cannot be written"),
        ("plan --schema nowhere.toml --n 100 --epsilon 1", "cannot be read"),
        ("plan --n 100 --epsilon 1,2 --delta 1e-5 --epochs 1", "one epsilon"),
        ("plan --n 100 --epsilon 1 --delta 1e-5 --epochs 1 --width 0.3", "needs a schema"),
        ("plan --n 100 --epsilon 1 --delta 1e-5 --epochs 1 --picture a.png", "needs --schema"),
        ("plan --n 100 --epsilon 1", "needs --n, --epsilon and --delta"),
    ],
)
def test_questions_about_a_budget_are_refused_in_one_line(confide, command, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = confide(command)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert list(tmp_path.iterdir()) == []
