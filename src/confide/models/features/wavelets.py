r"""Morlet wavelets on a periodic grid, by their Fourier transforms.

With sigma_j = 0.8 2^j, frequency xi_j = (3 pi / 4) 2^-j and direction e, a wavelet is a Gaussian that oscillates along
e, twice as long across e for eight angles, less as much of the same Gaussian as makes its mean zero:

    psi_hat(w) = g_hat(w - xi_j e) - kappa g_hat(w),        psi_hat(0) = 0,

made periodic in w, because it is sampled on pixels. The low-pass filter phi is a Gaussian of sigma_(J-1) and mean 1.
All wavelets are multiplied by one number, so that with both directions of every wavelet

    |phi_hat(w)|^2 + 1/2 sum (|psi_hat(w)|^2 + |psi_hat(-w)|^2) <= 1        (Littlewood-Paley)

with equality somewhere: then no order of scattering has more energy than the image (Mallat 2012).
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

WIDTH = 0.8  # of the narrowest Gaussian, in pixels
FREQUENCY = 3 * math.pi / 4  # of the fastest wavelet
ALIASES = range(-3, 4)  # copies of a filter along each axis; the next ones are below 1e-30


class Bank(NamedTuple):
    low: tuple[np.ndarray, np.ndarray]  # of phi, along rows and along columns
    wavelets: np.ndarray  # (scales, angles, rows, columns), real


def bank(rows: int, columns: int, scales: int, angles: int) -> Bank:
    """The filters for a grid of so many pixels."""
    wavelets = np.array(
        [
            [_morlet(rows, columns, scale, math.pi * number / angles, 4 / angles) for number in range(angles)]
            for scale in range(scales)
        ]
    )
    sigma = WIDTH * 2 ** (scales - 1)
    low = (_low_pass(rows, sigma), _low_pass(columns, sigma))
    squares = np.sum(wavelets**2, axis=(0, 1))
    both = (squares + np.roll(squares[::-1, ::-1], (1, 1), (0, 1))) / 2
    room = 1 - np.square(np.multiply.outer(*low))
    inside = both > 1e-12
    return Bank(low, wavelets * math.sqrt(np.min(room[inside] / both[inside])))


def _frequencies(size: int) -> np.ndarray:
    return 2 * math.pi * np.fft.fftfreq(size)


def _low_pass(size: int, sigma: float) -> np.ndarray:
    copies = [np.exp(-((sigma * (_frequencies(size) + 2 * math.pi * k)) ** 2) / 2) for k in ALIASES]
    return np.sum(copies, axis=0) / np.sum(copies, axis=0)[0]


def _morlet(rows: int, columns: int, scale: int, angle: float, slant: float) -> np.ndarray:
    sigma, frequency = WIDTH * 2**scale, FREQUENCY / 2**scale
    cosine, sine = math.cos(angle), math.sin(angle)

    def gaussian(shift: float) -> np.ndarray:
        total = np.zeros((rows, columns))
        for down, right in itertools.product(ALIASES, ALIASES):
            vertical = (_frequencies(rows) + 2 * math.pi * down)[:, None]
            horizontal = (_frequencies(columns) + 2 * math.pi * right)[None, :]
            along, across = cosine * horizontal + sine * vertical - shift, cosine * vertical - sine * horizontal
            total += np.exp(-(along**2 + (across / slant) ** 2) * sigma**2 / 2)
        return total

    moved, still = gaussian(frequency), gaussian(0.0)
    return moved - moved[0, 0] / still[0, 0] * still
