"""A private fit from data to a saved posterior: made-up patients, so that it runs anywhere."""

import tempfile
from pathlib import Path

import numpy as np

import confide

# Made-up patients: age and blood pressure scaled by public bounds, two yes/no answers, and a constant.
rng = np.random.default_rng(0)
n = 8000
features = np.column_stack([rng.random((n, 2)), rng.integers(0, 2, (n, 2)), np.ones(n)])
relapse = rng.random(n) < 1 / (1 + np.exp(-features @ [2.0, 1.0, -1.0, 0.5, -1.5]))

folder = Path(tempfile.mkdtemp())
ledger = confide.Ledger.create(folder / "ledger.db")
ledger.enter("patients", confide.Budget(epsilon=2.0, delta=1e-5))

posterior = confide.fit(
    confide.models.logistic_regression(5),
    (features, relapse),
    budget=confide.Budget(epsilon=1.0, delta=5e-6),
    clip=5**0.5,  # no row is longer, so no gradient is cut and the posterior is the plain one
    ledger=ledger,
)

print("\nHere is the posterior:")
print(posterior.summary()[["mean", "sd", "hdi_3%", "hdi_97%", "ess_bulk"]])
print("\nHere is what anyone could learn about a person from it:")
for sentence in posterior.guarantee.sentences():
    print(f"  - {sentence}")
left = ledger.left("patients")
print(f"\nLeft in the ledger for these patients: epsilon {left.epsilon:.3g}, delta {left.delta:.2g}.")
saved = posterior.save(folder / "run")
again = confide.Posterior.load(saved)
print(f"Saved to {saved} and read back: verified at epsilon {confide.verify(again.guarantee):.4g}.")
print(f"Probability of a relapse for the first patient: {again.predict_proba(features[:1])[0, 1]:.2f}")
