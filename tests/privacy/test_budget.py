import json
import math

import numpy as np
import pytest

import confide
from confide import events
from confide.privacy.budget import Budget, Guarantee, belief
from confide.privacy.pricing import guarantee, verify
from confide.validation import Refused

EVENT = events.compose(events.gaussian(np.linspace(3, 5, 40), 0.05), events.Release(epsilon=0.1))


@pytest.fixture(scope="module")
def promised() -> Guarantee:
    return guarantee(EVENT, delta=1e-5, assumptions=("The clip was agreed upon in a public protocol.",))


def test_a_guarantee_survives_json_and_verifies_from_it_alone(promised):
    text = json.dumps(promised.to_json(), allow_nan=False)
    loaded = Guarantee.from_json(text)
    assert loaded == promised
    assert math.isclose(verify(loaded), promised.epsilon, rel_tol=1e-9)


def test_a_lie_does_not_verify(promised):
    record = promised.to_json()
    for change in ({"epsilon": promised.epsilon * 0.99}, {"delta": 1e-6}, {"neighbours": "replace-one"}):
        with pytest.raises(Refused, match="does not hold"):
            verify(Guarantee.from_json(record | change))
    with pytest.raises(Refused, match="approximate"):
        verify(Guarantee.from_json(record | {"accountant": "gdp"}))


def test_a_guarantee_without_its_assumptions_does_not_verify(promised):
    with pytest.raises(Refused, match="assumptions lack"):
        verify(Guarantee.from_json(promised.to_json() | {"assumptions": []}))


def test_sentences_are_derived_and_never_trusted(promised):
    record = promised.to_json() | {"sentences": ["Everything is perfectly private."]}
    assert Guarantee.from_json(record).sentences() == promised.sentences()


def test_it_says_everything_it_rests_on(promised):
    text = " ".join(promised.sentences())
    for word in ("differentially private", "single record", "Poisson", "clip", "coin flip", "published", "certified"):
        assert word in text, word
    assert "The clip was agreed upon in a public protocol." in promised.assumptions


def test_an_approximation_is_no_guarantee():
    with pytest.raises(Refused, match="approximate"):
        guarantee(events.gaussian(2.0, 0.1, 5), delta=1e-5, accountant="gdp")
    with pytest.raises(Refused, match="no finite epsilon"):
        guarantee(events.gaussian(0.5, 0.1, 5), delta=1e-5, accountant="advanced")


@pytest.mark.parametrize(("epsilon", "percent"), [(2, 88.0), (5, 99.33), (10, 99.995)])
def test_belief_is_the_papers(epsilon, percent):
    assert abs(100 * belief(epsilon) - percent) < 0.1  # triastcyn2020, after eq. 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": 0.0}, "epsilon = 0 is not positive"),
        ({"epsilon": math.inf}, "epsilon = inf is not finite"),
        ({"epsilon": math.nan}, "epsilon = nan"),
        ({"epsilon": "1"}, "epsilon = '1' is not a number"),
        ({"epsilon": None}, "epsilon is missing"),
        ({"delta": 1.0}, "delta = 1 is out of range"),
        ({"delta": -1e-9}, "delta = -1e-09"),
        ({"neighbours": "zero-out"}, "neighbours = 'zero-out' is unknown: choose one of 'add-remove', 'replace-one'"),
    ],
)
def test_a_budget_is_checked(arguments, message):
    with pytest.raises(Refused, match=message):
        Budget(**{"epsilon": 1.0, "delta": 1e-5} | arguments)


def test_a_file_that_is_not_a_guarantee_is_refused():
    for text in ("{}", "[]", "nonsense", '{"epsilon": 1}'):
        with pytest.raises(Refused, match="guarantee is not in the form"):
            Guarantee.from_json(text)


def test_names_that_scripts_rely_on():
    for name in confide.__all__:
        assert getattr(confide, name) is not None
    assert set(confide.__all__) <= set(dir(confide))
    with pytest.raises(AttributeError, match="nothing"):
        _ = confide.nothing
