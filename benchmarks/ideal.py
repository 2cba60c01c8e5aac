"""What a budget allows: the posterior standard deviations of coefficients after one release of a full batch.

    python benchmarks/ideal.py --family logistic --d 5 --n 10000 --epsilon 0.5
    python benchmarks/ideal.py --check

Near the truth theta_0 one release of the summed bounded scores, with a record's score psi z of norm at most c and noise
of standard deviation c / mu, is g = J (theta - theta_0) + N(0, V) + N(0, (c / mu)^2 I). With the prior's precision P_0

    sd = sqrt diag (P_0 + J (V + (c / mu)^2 I)^-1 J)^-1,    expected error sqrt(2 / pi) sd,

where z is a row with the intercept's 1, psi = family.bounded(s, y, c / ||z||, typical), and both sums are taken over a
dataset's own rows at the true coefficients: J = sum z z^T E[psi r | s], since the slope of a mean score is its
covariance with the residual r, and V = sum z z^T E[psi^2 | s]; with several scores z z^T is multiplied (Kronecker) by
matrices over the classes. c is the one of `CLIPS` times the mean row norm that has the least mean sd. For numbers and
counts it is in units of the root of the mean information, `typical`, so that nothing depends on the unit of outcomes.
The noise scale of a linear model is one more parameter: a record adds (psi z, kappa chi) as in
`confide.inference.linear.expectations`, |kappa chi| at most one of `SHARES` times c, the square cut at one of `SQUARES`
noise scales, and is then longer by as much. Of these, too, the least mean sd counts, the scale's own among them; its
prior is left out.

mu is the Gaussian-DP budget of a full batch, half as much for replace-one. A yardstick, not a bound: noise that follows
the curvature can beat it where features are correlated.

Datasets are drawn here as well, for benchmarks/coverage.py too: see `Cell`.
"""

import argparse
import math
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy import optimize, stats

from confide.models import families, priors
from confide.privacy.pricing import gdp_mu

CLIPS = (0.05, 0.2, 1.0, 5.0)
SHARES, SQUARES = (0.1, 0.2, 0.4), (0.7, 1.0, 1.5, 2.5)
BLOCK = 2**21  # numbers held at once
TAIL = 1e-14  # of counts that are left out
NODES = np.linspace(-8.5, 8.5, 1701)  # of a Gaussian
LEVELS = 5  # of a category
RARE = 0.05
EXPECTED_ERROR = math.sqrt(2 / math.pi)


@dataclass(frozen=True)
class Cell:
    """Where datasets come from: coefficients from the prior N(0, prior_scale^2), features, and the family's outcomes.

    | design  | features |
    |---------|----------|
    | uniform | independent, uniform on [-1, 1] |
    | ar      | Gaussian with correlations .7^|i - j|, cut to three standard deviations and divided by as much |
    | onehot  | categories of five levels with shares as 1, 1/2, ..., 1/5, a column for each level |
    | rare    | uniform; the intercept is such that 5% of outcomes are 1 (the first class; the mean of counts) |

    An intercept for rare outcomes is far out: models of that design have the prior "wide_intercept".
    With `noise_prior` the noise scale of a linear model is not `noise_scale` but drawn from its prior: half a Student's
    t of 3 degrees of freedom with the scale of the coefficients times the usual norm of a row.
    Features are multiplied by `scale`. With `bound` the model is given the longest row that the design can have.
    """

    family: str
    d: int
    n: int
    design: str = "uniform"
    scale: float = 1.0
    bound: bool = False
    prior_scale: float = 1.0
    classes: int = 3
    noise_scale: float = 1.0
    noise_prior: bool = False
    dispersion: float = 1.0

    @property
    def kind(self):
        known = {name: getattr(self, name) for name in ("classes", "noise_scale", "dispersion")}
        return families.with_known(families.BY_WORD[self.family], known)

    @property
    def prior(self):
        return "wide_intercept" if self.design == "rare" else "gaussian"

    @property
    def prior_scales(self):
        """Of every coefficient, the intercept last."""
        last = priors.WIDE if self.prior == "wide_intercept" else 1.0
        return self.prior_scale * np.repeat([1.0] * self.d + [last], math.prod(self.kind.outputs))

    @property
    def categories(self):
        """Columns of each, as a model of a table knows them."""
        if self.design != "onehot":
            return []
        return [list(range(first, min(first + LEVELS, self.d))) for first in range(0, self.d, LEVELS)]

    @property
    def norm_bound(self):
        features = math.ceil(self.d / LEVELS) if self.design == "onehot" else self.d
        return self.scale * math.sqrt(features) if self.bound else None

    def of(self, seed, index):
        """The cell of one dataset: with the noise scale that it has."""
        if not self.noise_prior:
            return self
        drawn = abs(np.random.default_rng([seed, index, 1]).standard_t(3))
        usual = self.prior_scale * math.sqrt(1 + self.scale**2 * self.d / 3)
        return replace(self, noise_prior=False, noise_scale=max(float(usual * drawn), 1e-3 * usual))

    def dataset(self, seed, index):
        """X and y as they are fitted, and the true coefficients, the intercept last."""
        rng = np.random.default_rng([seed, index])
        theta = self.prior_scale * rng.standard_normal((self.d + 1, *self.kind.outputs))
        x = (self.scale * features(rng, self.design, self.n, self.d)).astype(np.float32)
        z = with_constant(x)
        if self.design == "rare":
            s, first = z @ theta, np.eye(*self.kind.outputs)[0] if self.kind.outputs else 1.0
            theta[-1] += first * optimize.brentq(lambda a: self._share(s + a * first) - RARE, -100, 100)
        return x, outcomes(rng, self.kind, z @ theta), theta

    def _share(self, s):
        return np.mean(self.kind.mean(s)[(..., 0) if self.kind.outputs else ...])


def features(rng, design, n, d):
    if design == "ar":
        x = rng.standard_normal((n, d))
        for j in range(1, d):
            x[:, j] = 0.7 * x[:, j - 1] + math.sqrt(1 - 0.7**2) * x[:, j]
        return np.clip(x, -3, 3) / 3
    if design == "onehot":
        blocks = []
        for first in range(0, d, LEVELS):
            shares = 1 / np.arange(1, min(LEVELS, d - first) + 1)
            blocks.append(np.eye(len(shares))[rng.choice(len(shares), n, p=shares / shares.sum())])
        return np.concatenate(blocks, axis=1)
    return rng.uniform(-1, 1, (n, d))


def with_constant(x):
    return np.column_stack([x, np.ones(len(x))]).astype(np.float64)


def outcomes(rng, family, s):
    if family.outcome == "labels":
        return (np.cumsum(family.mean(s), axis=1)[:, :-1] < rng.random((len(s), 1))).sum(axis=1).astype(np.int32)
    if family.outcome == "two labels":
        return (rng.random(len(s)) < family.mean(s)).astype(np.int32)
    if family.outcome == "number":
        return (s + family.noise_scale * rng.standard_normal(len(s))).astype(np.float32)
    return counts(family, s).rvs(random_state=rng).astype(np.float32)


def counts(family, s):
    if family.word == "poisson":
        return stats.poisson(np.exp(s))
    return stats.nbinom(1 / family.dispersion, 1 / (1 + family.dispersion * np.exp(s)))


def support(family, s):
    """Outcomes of rows with these scores, and their probabilities: (rows or 1, outcomes), (rows, outcomes)."""
    if family.kind == "classification":
        shares = family.predict(s)
        return np.arange(shares.shape[-1])[None], shares
    if family.outcome == "number":
        density = np.exp(-(NODES**2) / 2)
        return s[:, None] + family.noise_scale * NODES, np.broadcast_to(density / density.sum(), (len(s), NODES.size))
    y = np.arange(1.0 + counts(family, s.max()).isf(TAIL))[None]
    return y, counts(family, s[:, None]).pmf(y)


def moments(family, s, threshold, typical, at=None):
    """E psi, E psi r^T and E psi psi^T where the scores are s, of residuals at the scores `at`, s by default."""
    y, shares = support(family, s)
    at = (s if at is None else at)[:, None]
    psi = family.bounded(at, y, threshold[:, None], typical).reshape(*shares.shape, -1)
    r = family.residual(at, y).reshape(psi.shape)
    turned = np.swapaxes(shares[..., None] * psi, 1, 2)
    return turned.sum(axis=2), turned @ r, turned @ psi


def weighted(z, matrices):
    """sum z z^T (x) M over rows."""
    k = range(matrices.shape[1])
    every = np.array([[z.T @ (z * matrices[:, a, b, None]) for b in k] for a in k])
    return every.transpose(2, 0, 3, 1).reshape(2 * (z.shape[1] * len(k),))


def unit(family, s):
    """The information of a usual record, and what a clip is measured by besides the mean row norm."""
    typical = float(np.mean(family.information(s)))
    return typical, math.sqrt(typical) if family.kind == "regression" else 1.0


def sums(family, z, theta, clips=CLIPS, scale=True):
    """(c, J, V) of each clip; the order of coefficients is that of theta, flattened, and a noise scale comes last."""
    s, norms = z @ theta, np.linalg.norm(z, axis=1)
    typical, length = unit(family, s)
    bounds = [clip * norms.mean() * length for clip in clips]
    found = [(c, *np.zeros((2, theta.size, theta.size))) for c in bounds]
    order = np.argsort(-s) if family.outcome == "count" else np.arange(len(s))  # like means have like supports
    while len(order):
        size = support(family, s[order[:1]])[1].size * (1 + sum(family.outputs))
        rows, order = np.split(order, [max(1, BLOCK // size)])
        for c, slope, variance in found:
            _, covariance, square = moments(family, s[rows], c / norms[rows], typical)
            slope += weighted(z[rows], covariance)
            variance += weighted(z[rows], square)
    return [each for c, *blocks in found for each in with_scale(family, len(z), c, *blocks)] if scale else found


def with_scale(family, n, c, slope, variance):
    """The sums with those of a noise scale beside them, where there is one; c is then longer."""
    if family.outcome != "number":
        return [(c, slope, variance)]
    found, e2 = [], NODES**2
    density = np.exp(-e2 / 2) / np.sum(np.exp(-e2 / 2))
    for cut in SQUARES:
        chi = np.minimum(e2, cut**2) - density @ np.minimum(e2, cut**2)
        for share in SHARES:
            kappa = share * c / np.abs(chi).max()
            own = n * kappa * np.array([density @ (chi * (e2 - 1)) / family.noise_scale, kappa * density @ chi**2])
            joined = [
                np.block([[m, np.zeros((len(m), 1))], [np.zeros((1, len(m))), v]])
                for m, v in zip((slope, variance), own, strict=True)
            ]
            found.append((c * math.hypot(1.0, share), *joined))
    return found


def sds(found, mu, prior_scale, size):
    """The ideal standard deviations, and the c that they belong to; after those of so many coefficients the scale's."""
    tried = []
    for c, slope, variance in found:
        noise = variance + (c / mu) ** 2 * np.eye(len(slope))
        prior = np.diag(np.concatenate([1 / np.square(prior_scale) * np.ones(size), np.zeros(len(slope) - size)]))
        precision = slope @ np.linalg.pinv(noise, hermitian=True) @ slope + prior
        tried.append((np.sqrt(np.diag(np.linalg.inv(precision))), c))
    return min(tried, key=lambda pair: pair[0].mean())


def whitened(family, z, theta, mu, prior_precision, y=None, clips=CLIPS):
    """The covariance of the coefficients after one release of scores of whitened rows, for real tables.

    M = sum z z^T / n over the table's own rows, and rows are M^(-1/2) z, so that the noise of the scores of z has the
    covariance (c^2 / mu^2) M. c is one of `clips` times the mean norm of whitened rows (times the root of the mean
    information, as above): the one with the least mean log standard deviation. Where outcomes `y` are given because the
    model is wrong, V is the second moment of the scores at these outcomes, and J the numerical slope of their sum: with
    the family's own J a deep cut of overdispersed counts would seem to know more than it does.
    """
    values, vectors = np.linalg.eigh(z.T @ z / len(z))
    values = np.maximum(values, 1e-9 * values.max())
    whiten, unwhiten = (vectors / np.sqrt(values)) @ vectors.T, (vectors * np.sqrt(values)) @ vectors.T
    z, theta = z @ whiten, unwhiten @ theta
    s, norms = z @ theta, np.linalg.norm(z, axis=1)
    tried = []
    for c, slope, variance in sums(family, z, theta, clips, scale=False):
        if y is not None:
            typical = unit(family, s)[0]
            scores = z * family.bounded(s, y, c / norms, typical)[:, None]
            variance = scores.T @ scores
            steps = 0.05 * np.eye(z.shape[1])
            ends = [[z.T @ family.bounded(z @ (theta + h), y, c / norms, typical) for h in (e, -e)] for e in steps]
            slope = np.array([(up - down) / 0.1 for up, down in ends])
            slope = (slope + slope.T) / 2
        noise = variance + (c / mu) ** 2 * np.eye(len(slope))
        precision = slope @ np.linalg.solve(noise, slope) + whiten @ prior_precision @ whiten
        covariance = whiten @ np.linalg.inv(precision) @ whiten
        tried.append((float(np.mean(np.log(np.diag(covariance)))), covariance))
    return min(tried, key=lambda pair: pair[0])[1]


def strength(epsilon, delta, neighbours="add-remove"):
    return gdp_mu(epsilon, delta) / (2 if neighbours == "replace-one" else 1)


def check(word):
    """J against a numerical slope of the mean score, that against zero, and the end of all bounds against Fisher's."""
    cell = Cell(word, 4, 400, prior_scale=0.5, noise_scale=0.7, dispersion=0.6)
    x, _, theta = cell.dataset(0, 0)
    family, z = cell.kind, with_constant(x)
    s, norms = z @ theta, np.linalg.norm(z, axis=1)
    typical, off, slopes = unit(family, s)[0], 0.0, 0.0

    def score(at, c):  # where the truth is theta
        return (z.T @ moments(family, s, c / norms, typical, z @ at)[0]).ravel()

    for c, slope, _ in sums(family, z, theta, scale=False):
        steps = 0.01 * np.eye(theta.size).reshape(-1, *theta.shape)
        numerical = np.array([(score(theta + h, c) - score(theta - h, c)) / 0.02 for h in steps])
        slope = slope[: theta.size, : theta.size]
        slopes = max(slopes, np.abs(numerical - slope).max() / slope.max())
        off = max(off, np.abs(score(theta, c)).max() / c)
    v = family.information(s).reshape(len(z), -1)
    full = weighted(z, v[:, :, None] * np.eye(v.shape[1]) - (v[:, :, None] * v[:, None] if family.outputs else 0))
    fisher = np.sqrt(np.diag(np.linalg.inv(full + np.eye(theta.size) / cell.prior_scale**2)))
    free = sds(sums(family, z, theta, (1e4,), scale=False), math.inf, cell.prior_scale, theta.size)[0]
    end = np.abs(free / fisher - 1).max()
    print(f"{word:18} slope {slopes:.1e}, mean over c {off:.1e}, sd over Fisher's {end:.1e}")
    return slopes < 0.005 and off < 1e-9 and end < 1e-9


def arguments(description):
    """A parser with what a cell takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--family", choices=list(families.BY_WORD), default="logistic")
    parser.add_argument("--epsilon", default="0.5,2,8", help="one or several, with commas")
    parser.add_argument("--design", choices=["uniform", "ar", "onehot", "rare"], default="uniform")
    parser.add_argument("--neighbours", choices=["add-remove", "replace-one"], default="add-remove")
    parser.add_argument("--bound", action="store_true", help="declare the longest row that there can be")
    parser.add_argument("--noise-prior", action="store_true", help="draw the noise scale of a linear model too")
    parser.add_argument("--prior-scale", type=float, help="1 by default, and 0.5 for counts")
    parser.add_argument("--datasets", type=int)
    numbers = {"d": 5, "n": 10_000, "delta": 1e-5, "seed": 0, "scale": 1.0}
    numbers |= {"classes": 3, "noise-scale": 1.0, "dispersion": 1.0}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{default} by default")
    return parser


def parse(parser):
    """The arguments, the cell and the epsilons."""
    given = parser.parse_args()
    if given.prior_scale is None:
        given.prior_scale = 0.5 if families.BY_WORD[given.family].outcome == "count" else 1.0
    if given.family == "linear" and given.design == "rare":
        parser.error("no outcome of a linear model is rare: choose another design")
    cell = Cell(**{field.name: getattr(given, field.name) for field in fields(Cell)})
    return given, cell, [float(each) for each in given.epsilon.split(",")]


def main():
    parser = arguments("Ideal standard deviations of coefficients under a budget")
    parser.add_argument("--check", action="store_true", help="check the sums of every family instead")
    given, cell, epsilons = parse(parser)
    if given.check:
        passed = [check(word) for word in families.BY_WORD]
        raise SystemExit(None if all(passed) else "the sums are off")
    every = []
    for index in range(given.datasets or 5):
        here = cell.of(given.seed, index)
        x, _, theta = here.dataset(given.seed, index)
        every.append(sums(here.kind, with_constant(x), theta))
    for epsilon in epsilons:
        mu = strength(epsilon, given.delta, given.neighbours)
        pairs = [sds(found, mu, cell.prior_scales, theta.size) for found in every]
        sd, clip = np.array([sd for sd, _ in pairs]), np.mean([c for _, c in pairs])
        print(f"epsilon {epsilon:g}: mu {mu:.4g}, mean c {clip:.3g}, mean sd {sd.mean():.4g}, ", end="")
        print(f"expected error {EXPECTED_ERROR * sd.mean():.4g}, mean of {len(sd)} datasets")
        print(
            "  sd of each coefficient, intercept last (and noise scale):",
            " ".join(f"{each:.4g}" for each in sd.mean(axis=0)),
        )


if __name__ == "__main__":
    main()
