"""Models: generalised linear, networks, your own functions, or a model of NumPyro or Equinox."""

from confide.models import glm
from confide.models.convolutional import cnn, resnet18
from confide.models.equinox_model import from_equinox
from confide.models.families import BY_NAME
from confide.models.glm import (
    linear_regression,
    logistic_regression,
    negative_binomial_regression,
    poisson_regression,
    softmax_regression,
)
from confide.models.model import Model, from_functions
from confide.models.networks import mlp
from confide.models.numpyro_model import from_numpyro
from confide.models.priors import gaussian, laplace
from confide.models.semi_supervised import semi_supervised
from confide.validation import Refused

__all__ = [
    "Model",
    "cnn",
    "from_equinox",
    "from_functions",
    "from_numpyro",
    "gaussian",
    "laplace",
    "linear_regression",
    "logistic_regression",
    "mlp",
    "negative_binomial_regression",
    "poisson_regression",
    "rebuilt",
    "resnet18",
    "semi_supervised",
    "softmax_regression",
]


def rebuilt(name: str, settings: dict | None) -> Model | None:
    """The model that was saved by name and settings; None where it held functions of the user's, without settings."""
    if name == "semi_supervised" and settings is not None:
        network = rebuilt(settings["network"], settings["of"])
        return None if network is None else semi_supervised(network, settings["unlabelled_weight"])
    builders = {builder.__name__: builder for builder in (mlp, cnn, resnet18)}
    builders |= {family: getattr(glm, family) for family in BY_NAME}
    if settings is None:
        return None
    if name not in builders:
        raise Refused(f"the model is called {name!r}, and has settings, but no model of confide has that name")
    return builders[name](**settings)
