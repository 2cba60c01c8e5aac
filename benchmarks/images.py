"""Test accuracy of private softmax regression on scattering features of images, mean of 5 runs.

CONFIDE_DATA=... python benchmarks/images.py mnist|svhn|cifar10 [--runs 5] [--public]

--public adds the accuracy of the same model without privacy, by scikit-learn.
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

import confide
from confide.experiments import image_settings

BARS = {"mnist": 0.982, "cifar10": 0.58}


def public(x, y, test_x, test_y, scale, strength):
    model = LogisticRegression(C=strength, max_iter=100, tol=1e-3)
    x, test_x = (rows * np.float32(16 / scale) for rows in (x, test_x))
    with warnings.catch_warnings():  # it stops early, which is as good a regulariser
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.mean(model.fit(x, y).predict(test_x) == test_y)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset", choices=image_settings.SETTINGS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--public", action="store_true")
    asked = parser.parse_args()
    setting = image_settings.SETTINGS[asked.dataset]
    split = getattr(confide.data, asked.dataset)()
    start = time.perf_counter()
    x, test_x = (image_settings.rows(setting, images) for images in (split.x, split.test_x))
    print(
        f"{asked.dataset}: {len(x)} records of {x.shape[1]} features, {time.perf_counter() - start:.0f} s", flush=True
    )
    for strength in (0.01, 1.0) if asked.public else ():
        found = public(x, split.y, test_x, split.test_y, setting.scale, strength)
        print(f"not private, C = {strength:g}: {found:.2%}", flush=True)
    found = []
    for run in range(asked.runs):
        start = time.perf_counter()
        posterior = image_settings.fitted(setting, x, split.y, key=run, verbose=run == 0)
        found.append(float(np.mean(posterior.predict(test_x) == split.test_y)))
        print(f"run {run}: {found[-1]:.2%}, {time.perf_counter() - start:.0f} s", flush=True)
    if not found:
        return
    bar, promise = BARS.get(asked.dataset, 0.0), posterior.guarantee
    print(
        f"{asked.dataset}, epsilon {promise.epsilon:.4g}, delta {promise.delta:g}, {promise.neighbours}: "
        f"mean {np.mean(found):.2%} of {asked.runs} runs (bar {bar:.1%})"
    )
    if np.mean(found) < bar:
        raise SystemExit("the bar was missed")


if __name__ == "__main__":
    main()
