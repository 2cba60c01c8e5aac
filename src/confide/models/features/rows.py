"""From images to rows that a convex model can learn from."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np

from confide import validation
from confide.models.features import stored, transform
from confide.models.features.transform import Shape
from confide.validation import Refused

VERSION = 1  # of the numbers: raised whenever the same images give others
CHUNK = 256  # images handed to the device at once
GROUPS = 27


def scattering(
    images: Any,
    order: int = 2,
    *,
    scales: int = 2,
    angles: int = 8,
    groups: int | None = None,
    contrast: bool = False,
    cache: bool = False,
) -> np.ndarray:
    """Wavelet scattering features (Mallat 2012): one row of norm at most 1 for each image, learnt from nobody.

    Every image is transformed alone. Wavelets, moduli and averages are fixed, and what is normalised, in groups of
    channels (as in Tramer and Boneh 2021), is normalised by the image's own mean and spread. No statistic of the other
    images enters, so a row is as private as its image, costs no budget, and is the same to the bit in any company. The
    norms are bounded by construction: give `norm_bound=1.0` to a model without a look at the data.

    Args:
        images: (n, height, width) or (n, height, width, colours); bytes, or floats in [0, 1]: what is
            beyond counts as the bound, and what is masked or no number as 0.
        order: 1, or 2 for products of two wavelets as well.
        scales: J; one place of the output stands for 2^J x 2^J pixels.
        angles: L, of the wavelets. There are 1 + L J (+ L^2 J (J - 1) / 2) channels for each colour.
        groups: in which the channels are normalised, in their order; 27, or one for each channel where they are fewer.
        contrast: look, at every place, at each angle against the mean of all. It is for drawings, such as digits, which
            are much alike in how much there is to see where.
        cache: keep the rows on disk, in a folder of your own, and take them from there the next time. Not by default,
            because they are as private as the images.

    >>> scattering(np.zeros((3, 28, 28), np.uint8)).shape
    (3, 3969)
    """
    validation.instance(bool, cache=cache)
    validation.instance(bool, contrast=contrast)
    pixels = _pixels(images)
    shape = _shape(pixels.shape[1:], order, scales, angles, groups)._replace(contrast=contrast)
    place = stored.folder() if cache else None
    name = ""
    if place is not None:
        name = _name(pixels, shape)
        found = stored.read(place, name, (len(pixels), shape.size))
        if found is not None:
            return found
    rows = _compute(pixels, shape)
    if place is not None:
        stored.write(place, name, rows)
    return rows


def _compute(pixels: np.ndarray, shape: Shape) -> np.ndarray:
    filters = jax.tree.map(jax.numpy.asarray, transform.filters(shape))
    rows = np.empty((len(pixels), shape.size), np.float32)
    for first in range(0, len(pixels), CHUNK):
        chunk = pixels[first : first + CHUNK]
        padded = np.zeros((CHUNK, *pixels.shape[1:]), np.float32)
        padded[: len(chunk)] = chunk
        if pixels.dtype == np.uint8:
            padded /= 255
        rows[first : first + CHUNK] = transform.program(padded, len(chunk), filters, shape)[: len(chunk)]
    return rows


def _pixels(images: Any) -> np.ndarray:
    """(n, height, width, colours), bytes or single precision: each pixel by itself, whatever the others are.

    What is beyond [0, 1] counts as the bound, and what is masked or no number as 0.
    """
    if isinstance(images, np.ma.MaskedArray):
        images = images.filled(0)
    try:
        pixels = np.asarray(images)
    except ValueError:
        raise Refused("images have several shapes: cut or scale them to one") from None
    if pixels.dtype == object:
        raise Refused("images have several shapes, or hold what is no number: give one array of numbers")
    if pixels.ndim not in (3, 4) or 0 in pixels.shape:
        raise Refused(f"images have shape {pixels.shape}: give (n, height, width) or (n, height, width, colours)")
    pixels = pixels.reshape(*pixels.shape[:3], -1)
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind != "f":
        raise Refused(f"images are of {pixels.dtype}: give bytes (uint8), or floats in [0, 1]")
    within = np.empty(pixels.shape, np.float32)
    for first in range(0, len(pixels), CHUNK):
        part = np.nan_to_num(pixels[first : first + CHUNK], nan=0.0, posinf=1.0, neginf=0.0)
        within[first : first + CHUNK] = np.clip(part, 0.0, 1.0)
    return within


def _shape(pixels: tuple[int, ...], order: int, scales: int, angles: int, groups: int | None) -> Shape:
    if validation.count(order=order) > 2:
        raise Refused(f"order = {order} is not offered: give 1 or 2")
    rows, columns, colours = pixels
    scales, angles = validation.count(scales=scales), validation.count(angles=angles)
    if min(rows, columns) < 2**scales:
        raise Refused(f"images of {rows} x {columns} pixels are smaller than 2^scales = {2**scales}: give fewer scales")
    shape = Shape(rows, columns, colours, int(order), scales, angles, 1, False)
    groups = min(GROUPS, shape.channels) if groups is None else validation.count(groups=groups)
    if groups > shape.channels:
        raise Refused(f"groups = {groups} is more than the {shape.channels} channels: give fewer")
    return shape._replace(groups=groups)


def _name(pixels: np.ndarray, shape: Shape) -> str:
    digest = hashlib.sha256(repr((VERSION, tuple(shape), pixels.shape, str(pixels.dtype))).encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()
