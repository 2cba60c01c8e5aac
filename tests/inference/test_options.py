"""Options are written once: every surface has them from the same fields."""

import inspect
import json
import subprocess
import sys
import textwrap
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

import confide
from confide.app.runs.options import Request
from confide.inference import options
from confide.inference.options import Fit, Options, RunSettings, Settings, names

GOLDEN = Path(__file__).parents[1] / "golden" / "version3"
POSITIONAL = ["model", "data", "budget", "sampler", "steps", "batch_size", "clip", "chains", "key", "ledger"]


def test_fit_takes_the_fields_of_its_options_in_their_order():
    signature = inspect.signature(confide.fit)
    ordered = [name for name, each in signature.parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert ordered == POSITIONAL
    assert set(signature.parameters) == set(names(Fit))
    assert signature.return_annotation == "Posterior"
    assert {name: each.default for name, each in signature.parameters.items() if name == "chains"} == {"chains": 1}
    for name in names(Fit):
        assert f"\n    {name}: " in confide.fit.__doc__
    with pytest.raises(TypeError, match="stepz"):
        confide.fit(None, None, None, stepz=3)
    with pytest.raises(TypeError, match="positional"):
        confide.fit(*range(11))


def test_options_are_frozen_and_have_words():
    with pytest.raises(FrozenInstanceError):
        Options().steps = 3
    for each in fields(Fit):
        assert each.metadata["python"].endswith("."), each.name
    for each in fields(RunSettings):
        assert each.metadata["command"].endswith("."), each.name


def test_a_stored_request_is_read_and_written_alike():
    stored = json.loads((GOLDEN / "table" / "request.json").read_text())
    request = Request(**stored)
    written = json.loads(json.dumps(vars(request)))
    assert {name: written[name] for name in stored} == stored
    assert all(written[name] is None for name in written.keys() - stored.keys())  # what came later is not asked for
    assert options.values(Settings, request)["steps"] == stored["steps"]


ELSEWHERE = """
    import importlib.util, inspect, json, sys
    spec = importlib.util.find_spec("confide.inference.options")
    text = open(spec.origin).read()
    added = 'made_up: int = field(default=7, metadata=words("a made-up option.", "Of no use."))'
    begin, end = text.split("class Settings:", 1)
    text = begin + "class Settings:" + end.replace("_: KW_ONLY", "_: KW_ONLY\\n    " + added, 1)
    module = importlib.util.module_from_spec(spec)
    sys.modules["confide.inference.options"] = module
    exec(compile(text, spec.origin, "exec"), module.__dict__)

    import numpy as np, typer.main
    from sklearn.base import clone
    import confide
    import confide.inference
    confide.inference.options = module
    from confide.app.cli import app
    from confide.app.runs import run_folder
    from confide.app.runs.options import Request
    from confide.inference import fitting

    # Python
    assert inspect.signature(confide.fit).parameters["made_up"].default == 7
    assert "made_up: a made-up option." in confide.fit.__doc__

    # what reaches the run, whoever asks for it
    seen = []
    def infer(options, present=None):
        seen.append(options.made_up)
        raise confide.Refused("enough")
    fitting.infer = infer
    def refused(call):
        try:
            call()
        except confide.Refused as refusal:
            assert str(refusal) == "enough", refusal
    x, y = np.zeros((20, 1), np.float32), np.arange(20) % 2
    budget = confide.Budget(epsilon=1.0, delta=1e-5)
    refused(lambda: confide.fit(confide.models.logistic_regression(1), (x, y), budget, made_up=1))

    # the estimators
    model = confide.PrivateLogisticRegression(bounds=(0, 1), classes=[0, 1], made_up=2)
    assert clone(model).get_params()["made_up"] == 2
    assert "made_up" in confide.PrivateLinearRegression().get_params()
    assert "made_up" in type(model).__doc__
    refused(lambda: model.fit(x, y))

    # the command line, and what is stored of a request
    parameters = {each.name: each for each in typer.main.get_command(app).commands["fit"].params}
    assert parameters["made_up"].opts == ["--made-up"]
    assert parameters["made_up"].help == "Of no use."
    assert Request(data="", out="", epsilon=1.0, delta=0.1, **json.loads('{"made_up": 4}')).made_up == 4
    np.savez("images.npz", x=x, y=y)
    arguments = ["fit", "images.npz", "--classes", "2", "--epsilon", "1", "--delta", "1e-5", "--out", "run"]
    refused(lambda: app([*arguments, "--quiet", "--made-up", "3"], standalone_mode=False))
    assert seen == [1, 2, 3], seen
    print("everywhere")
"""


def test_an_option_added_in_one_place_reaches_every_surface(tmp_path, monkeypatch):
    monkeypatch.setenv("CONFIDE_STATE", str(tmp_path / "state"))
    program = textwrap.dedent(ELSEWHERE)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "everywhere", done.stderr
