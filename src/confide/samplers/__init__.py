"""Samplers: each call gives the settings from which `confide.fit` builds a Kernel."""

from confide.samplers.baoab import baoab
from confide.samplers.default import default_sampler
from confide.samplers.descent import Descent, dp_adam, dp_sgd
from confide.samplers.hybrid import Hybrid, hybrid
from confide.samplers.langevin import Langevin, langevin
from confide.samplers.posterior_sample import OnePosteriorSample, one_posterior_sample
from confide.samplers.psgld import psgld
from confide.samplers.sampler import Sampler
from confide.samplers.scoring import Scoring, scoring
from confide.samplers.sgfs import sgfs
from confide.samplers.sghmc import sghmc
from confide.samplers.sgld import sgld
from confide.samplers.sgnht import sgnht
from confide.samplers.sufficient_statistics import SufficientStatistics, sufficient_statistics
from confide.samplers.variational import Variational, dpvi
from confide.samplers.wang2015 import wang2015_sgld

STEPPING = tuple(sampler().name for sampler in (sgld, psgld, sghmc, baoab, sgnht, sgfs, wang2015_sgld))
DESCENTS = tuple(sampler().name for sampler in (dp_sgd, dp_adam, dpvi))

__all__ = [
    "DESCENTS",
    "STEPPING",
    "Descent",
    "Hybrid",
    "Langevin",
    "OnePosteriorSample",
    "Sampler",
    "Scoring",
    "SufficientStatistics",
    "Variational",
    "baoab",
    "default_sampler",
    "dp_adam",
    "dp_sgd",
    "dpvi",
    "hybrid",
    "langevin",
    "one_posterior_sample",
    "psgld",
    "scoring",
    "sgfs",
    "sghmc",
    "sgld",
    "sgnht",
    "sufficient_statistics",
    "wang2015_sgld",
]
