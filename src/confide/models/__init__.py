"""Models: generalised linear, a small network, your own functions, or a NumPyro model."""

from confide.models.glm import linear_regression, logistic_regression, poisson_regression, softmax_regression
from confide.models.model import Model, from_functions
from confide.models.networks import mlp
from confide.models.numpyro_adapter import from_numpyro
from confide.models.priors import gaussian, laplace

__all__ = [
    "Model",
    "from_functions",
    "from_numpyro",
    "gaussian",
    "laplace",
    "linear_regression",
    "logistic_regression",
    "mlp",
    "poisson_regression",
    "rebuilt",
    "softmax_regression",
]


def rebuilt(name: str, settings: dict | None) -> Model | None:
    """The model that was saved by name and settings; None where it held functions of the user's."""
    builders = {
        builder.__name__: builder
        for builder in (linear_regression, logistic_regression, poisson_regression, softmax_regression, mlp)
    }
    return builders[name](**settings) if settings is not None and name in builders else None
