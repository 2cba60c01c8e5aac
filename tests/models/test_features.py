"""Scattering features: what they are, that they are each image's own, and that what is kept on disk is trusted late."""

import math
import os
import stat

import jax
import numpy as np
import pytest

import confide
import confide.models.inputs
from confide import features
from confide.models.features import stored, transform, wavelets
from confide.models.features.transform import Shape
from confide.validation import Refused

SHAPE = Shape(28, 28, 1, 2, 2, 8, 27, False)
RNG = np.random.default_rng(5)
IMAGES = RNG.integers(0, 256, (6, 28, 28), dtype=np.uint8)


def strokes(count: int, size: int = 28, seed: int = 0) -> np.ndarray:
    """Smooth pictures of a few thick strokes, in [0, 1]."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:size, :size]
    pictures = np.zeros((count, size, size), np.float32)
    for picture in pictures:
        for _ in range(3):
            start, end = rng.uniform(size * 0.3, size * 0.7, (2, 2))
            for share in np.linspace(0, 1, 12):
                row, column = start + share * (end - start)
                spot = np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / 3)
                np.maximum(picture, spot, out=picture)
    return pictures


def raw(images: np.ndarray, shape: Shape = SHAPE) -> np.ndarray:
    """Coefficients before they are normalised."""
    filters = transform.filters(shape)
    one = jax.jit(lambda image: transform.channels(image, shape, filters))
    return np.stack([np.asarray(one(image.reshape(shape.rows, shape.columns, shape.colours))) for image in images])


def spatial_wavelet(size: int, scale: int, angle: float) -> np.ndarray:
    """A Morlet wavelet from its formula in space, wrapped around the grid, with its centre at pixel 0."""
    sigma, frequency, slant = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 0.5
    moved, still = np.zeros((size, size), complex), np.zeros((size, size), complex)
    for down in range(-2, 3):
        for right in range(-2, 3):
            row, column = np.mgrid[:size, :size] + size * np.array([down, right])[:, None, None]
            along = math.cos(angle) * column + math.sin(angle) * row
            across = math.cos(angle) * row - math.sin(angle) * column
            gaussian = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
            moved += gaussian * np.exp(1j * frequency * along)
            still += gaussian
    return (moved - still * moved.sum() / still.sum()) * slant / (2 * math.pi * sigma**2)


def circular(image: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Convolution on the periodic grid, term by term."""
    total = np.zeros(image.shape, complex)
    for row, column in np.argwhere(np.abs(kernel) > 1e-9):
        total += kernel[row, column] * np.roll(image, (row, column), (0, 1))
    return total


def test_equals_convolutions_in_space_at_full_resolution():
    """What scale 1 finds is averaged over every second pixel: exactly that, and within 3% of the average of all."""
    image = strokes(1)[0].astype(np.float64)
    padded = np.pad(image, 4, mode="reflect")
    size, angles, found = len(padded), np.pi * np.arange(8) / 8, raw(image[None].astype(np.float32))[0]
    energy = wavelets.bank(size, size, 2, 8).wavelets[0, 0].max() / np.fft.fft2(spatial_wavelet(size, 0, 0)).real.max()
    bank = [[energy * spatial_wavelet(size, j, angle) for angle in angles] for j in range(2)]
    places = 4 + 1.5 + 4 * np.arange(7)
    apart = places[:, None] - np.arange(size)
    gaussian = sum(np.exp(-((apart + size * k) ** 2) / (2 * 1.6**2)) for k in (-1, 0, 1)) / math.sqrt(2 * math.pi) / 1.6

    def averaged(modulus, step=1):
        return step**2 * gaussian[:, ::step] @ modulus[::step, ::step] @ gaussian[:, ::step].T

    first = [[np.abs(circular(padded, wavelet)) for wavelet in of_scale] for of_scale in bank]
    np.testing.assert_allclose(found[0], averaged(padded), atol=1e-5)
    for number in range(8):
        np.testing.assert_allclose(found[1 + number], averaged(first[0][number]), atol=1e-5)
        np.testing.assert_allclose(found[9 + number], averaged(first[1][number], 2), atol=1e-5)
    for one in (0, 3):
        for two in (0, 2, 5):
            second, seen = np.abs(circular(first[0][one], bank[1][two])), found[17 + 8 * one + two]
            np.testing.assert_allclose(seen, averaged(second, 2), atol=1e-5)
            assert np.linalg.norm(seen - averaged(second)) < 0.03 * np.linalg.norm(seen)
            assert np.max(seen) > 4e-3  # the tolerance is not the signal


@pytest.mark.parametrize(("rows", "columns"), [(36, 36), (40, 24)])
def test_filters_keep_energy_below_one_and_use_it(rows, columns):
    bank = wavelets.bank(rows, columns, 2, 8)
    squares = np.sum(bank.wavelets**2, axis=(0, 1))
    mirrored = np.roll(squares[::-1, ::-1], (1, 1), (0, 1))
    sums = np.square(np.multiply.outer(*bank.low)) + (squares + mirrored) / 2
    assert np.max(sums) <= 1 + 1e-12
    assert np.min(sums) > 0.1  # at the fastest corners
    assert np.median(sums) > 0.6
    assert abs(bank.low[0][0] - 1) < 1e-12
    np.testing.assert_allclose(bank.wavelets[..., 0, 0], 0.0, atol=1e-15)


def test_a_constant_image_has_only_its_mean():
    found = raw(np.full((1, 28, 28), 0.25, np.float32))[0]
    np.testing.assert_allclose(found[0], 0.25, atol=1e-6)
    np.testing.assert_allclose(found[1:], 0.0, atol=1e-6)


def test_scattering_moves_less_than_the_image():
    """It does not expand distances, and a shift by one pixel changes it far less than the pixels."""
    pictures = strokes(3)
    found, shifted = raw(pictures), raw(np.roll(pictures, 1, axis=2))

    def distance(one, two, apart):
        return apart * np.sqrt(np.sum(np.square(one - two), axis=tuple(range(1, one.ndim))))

    pixels = distance(pictures, np.roll(pictures, 1, axis=2), 1)
    moved = distance(found, shifted, 4)  # one place stands for 4 x 4 pixels
    assert np.all(moved < 0.6 * pixels)
    others = distance(found, found[[1, 2, 0]], 4)
    assert np.all(others <= distance(pictures, pictures[[1, 2, 0]], 1) * 1.02)
    assert np.all(others > 1.5 * moved)


def test_a_turned_image_has_turned_features():
    """By a right angle, on the grid: angle k of the one is angle k + 4 of the other."""
    picture = strokes(1, seed=4)
    straight, turned = raw(picture)[0, 1:17], raw(np.rot90(picture, axes=(1, 2)))[0, 1:17]
    expected = np.rot90(straight.reshape(2, 8, 7, 7), axes=(2, 3))[:, [4, 5, 6, 7, 0, 1, 2, 3]]
    np.testing.assert_allclose(turned.reshape(2, 8, 7, 7), expected, atol=5e-3)
    assert np.max(np.abs(turned.reshape(2, 8, 7, 7) - straight.reshape(2, 8, 7, 7))) > 0.05


def test_contrast_tells_directions_alone():
    """A round spot looks the same at every angle, where it is looked at: nothing is left of the first scale but 1%."""
    rows, columns = np.mgrid[:28, :28]
    spot = np.exp(-((rows - 13.5) ** 2 + (columns - 13.5) ** 2) / 8).astype(np.float32)
    line = np.exp(-((rows - 13.5) ** 2) / 8).astype(np.float32) + 0 * spot
    shape = SHAPE._replace(contrast=True)
    (round_one, straight), middle = raw(np.stack([spot, line])), (slice(9, 17), 3, 3)
    for found, left in ((round_one, 0.05), (straight, 0.5)):
        contrasted = np.asarray(transform._contrast(found, shape)).reshape(found.shape)
        np.testing.assert_array_equal(contrasted[0], found[0])
        np.testing.assert_allclose(contrasted[1:9].mean(axis=0), 0.0, atol=1e-7)
        np.testing.assert_allclose(contrasted[17:].mean(axis=0), 0.0, atol=1e-7)
        share = np.linalg.norm(contrasted[middle]) / np.linalg.norm(found[middle])
        assert (share < left) == (left < 0.1)


@pytest.mark.optimised
def test_an_image_has_the_same_features_in_any_company(monkeypatch):
    together = features.scattering(IMAGES)
    np.testing.assert_array_equal(features.scattering(IMAGES[::-1])[::-1], together)
    np.testing.assert_array_equal(features.scattering(IMAGES[2:3])[0], together[2])
    many = np.concatenate([np.zeros((255, 28, 28), np.uint8), IMAGES[3:5]])  # in two chunks
    np.testing.assert_array_equal(features.scattering(many)[255:], together[3:5])
    assert np.ptp(together, axis=0).max() > 0.01


def test_rows_are_within_one_by_construction():
    extreme = np.stack(
        [IMAGES[0], np.zeros((28, 28), np.uint8), np.eye(28, dtype=np.uint8) * 255, np.full((28, 28), 255, np.uint8)]
    )
    extreme = np.concatenate([extreme, (np.indices((1, 28, 28)).sum(axis=0) % 2 * 255).astype(np.uint8)])
    norms = np.linalg.norm(features.scattering(extreme).astype(np.float64), axis=1)
    assert np.all(norms <= 1)
    assert norms[0] > 0.99
    assert norms[1] == 0


@pytest.mark.parametrize(
    ("shape", "order", "size"),
    [((28, 28, 1), 2, 81 * 49), ((32, 32, 3), 2, 243 * 64), ((28, 28, 1), 1, 17 * 49), ((9, 6, 1), 1, 17 * 6)],
)
def test_sizes(shape, order, size):
    assert Shape(*shape, order, 2, 8, 17, False).size == size
    if shape[0] == 9:
        assert features.scattering(RNG.random((2, *shape)), order=order).shape == (2, size)


def test_bytes_and_floats_agree():
    np.testing.assert_allclose(
        features.scattering(IMAGES[:2]), features.scattering(IMAGES[:2] / 255.0), atol=1e-5, rtol=0
    )
    grey = features.scattering(IMAGES[:2, :, :, None])
    np.testing.assert_array_equal(grey, features.scattering(list(IMAGES[:2])))


def test_pixels_are_arguments_of_the_program():
    """The lowered text is the same for other images, and holds none of them."""
    filters = transform.filters(SHAPE)
    pictures = strokes(6)[..., None]
    texts = [transform.program.lower(images, 6, filters, SHAPE).as_text() for images in (pictures, pictures * 0)]
    assert texts[0] == texts[1]
    assert len(texts[0]) < 100_000  # nor the filters, of which one alone is longer


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CONFIDE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_kept_on_disk_for_the_owner_alone(home, monkeypatch):
    plain = features.scattering(IMAGES)
    assert not home.exists()  # not unless it is asked for
    first = features.scattering(IMAGES, cache=True)
    (kept,) = (home / "features").iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    monkeypatch.setattr("confide.features.rows._compute", None)  # a hit computes nothing
    np.testing.assert_array_equal(features.scattering(IMAGES, cache=True), first)
    np.testing.assert_array_equal(first, plain)
    for others in ({"images": IMAGES[:5]}, {"order": 1}, {"groups": 9}, {"contrast": True}):
        with pytest.raises(TypeError):
            features.scattering(**{"images": IMAGES, "cache": True, **others})


@pytest.mark.parametrize("damage", ["flipped", "short", "renamed", "open", "empty"])
def test_what_is_damaged_is_computed_again(home, damage):
    first = features.scattering(IMAGES, cache=True)
    (kept,) = (home / "features").iterdir()
    content = bytearray(kept.read_bytes())
    if damage == "flipped":
        content[-5] ^= 1
        kept.write_bytes(content)
    elif damage == "short":
        kept.write_bytes(content[:-4])
    elif damage == "empty":
        kept.write_bytes(b"")
    elif damage == "renamed":  # sound, but of other images
        features.scattering(IMAGES[::-1], cache=True)
        (other,) = set(kept.parent.iterdir()) - {kept}
        os.replace(other, kept)
    else:
        kept.chmod(0o644)
    assert stored.read(kept.parent, kept.name, first.shape) is None
    np.testing.assert_array_equal(features.scattering(IMAGES, cache=True), first)
    assert stored.read(kept.parent, kept.name, first.shape) is not None
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_no_cache_where_the_user_wants_none(monkeypatch, tmp_path):
    monkeypatch.setenv("CONFIDE_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    features.scattering(IMAGES, cache=True)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    monkeypatch.setenv("CONFIDE_CACHE", str(tmp_path / "file"))
    with pytest.raises(Refused, match="set CONFIDE_CACHE"):
        features.scattering(IMAGES, cache=True)


@pytest.mark.parametrize(
    ("images", "arguments", "match"),
    [
        (np.zeros((28, 28)), {}, "shape"),
        (np.zeros((0, 28, 28)), {}, "shape"),
        (np.zeros((2, 3, 28, 28)), {}, "smaller than"),
        ([np.zeros((28, 28)), np.zeros((27, 28))], {}, "several shapes"),
        (np.array([np.zeros((28, 28)), None], object), {}, "several shapes"),
        (np.zeros((1, 28, 28), np.int64), {}, "give bytes"),
        (np.zeros((1, 28, 28), bool), {}, "give bytes"),
        (np.full((1, 28, 28), "a"), {}, "give bytes"),
        (np.zeros((1, 3, 28), np.uint8), {}, "smaller than"),
        (IMAGES, {"order": 3}, "order"),
        (IMAGES, {"order": 0}, "order"),
        (IMAGES, {"order": True}, "order"),
        (IMAGES, {"scales": 5}, "fewer scales"),
        (IMAGES, {"angles": 0}, "angles"),
        (IMAGES, {"groups": 82}, "channels"),
        (IMAGES, {"cache": "yes"}, "cache"),
    ],
)
def test_refusals(images, arguments, match):
    with pytest.raises(Refused, match=match) as found:
        features.scattering(images, **arguments)
    assert "\n" not in str(found.value)


def test_pixels_beyond_their_bounds_count_as_the_bounds():
    """Each by itself: no pixel of one image refuses or changes the others."""
    fractions = IMAGES / 255
    wrong, cut = fractions.copy(), fractions.copy()
    wrong[1, 0, :5] = np.nan, np.inf, -np.inf, 7.0, -0.1
    cut[1, 0, :5] = 0, 1, 0, 1, 0
    rows = features.scattering(wrong)
    assert np.array_equal(rows, features.scattering(cut))
    assert np.array_equal(np.delete(rows, 1, axis=0), np.delete(features.scattering(fractions), 1, axis=0))
    masked = np.ma.array(fractions, mask=np.isnan(wrong))
    cut = np.where(np.isnan(wrong), 0.0, fractions)
    assert np.array_equal(features.scattering(masked), features.scattering(cut))


def test_a_convex_model_takes_them_as_they_are():
    """No row is longer than the bound, so that a guarantee rests on no look at the data."""
    rows = features.scattering(np.concatenate([IMAGES, 255 - IMAGES]))
    model = confide.models.softmax_regression(rows.shape[1], 2, norm_bound=1.0)
    kept = confide.models.inputs.check_data(model, (rows, np.repeat([0, 1], 6)))[0]
    assert kept is rows
