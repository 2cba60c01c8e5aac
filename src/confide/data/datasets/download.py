"""Where the files of a dataset lie: the folder given, CONFIDE_DATA, the user's cache folder, and else its source.

What is downloaded must have the checksum written here, or it is thrown away. A file that was found is taken as it is:
its reader checks its form.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from confide.validation import Refused

TIMEOUT = 30.0  # seconds without a byte
PIECE = 2**20


@dataclass(frozen=True, kw_only=True)
class Source:
    """Addresses that serve the same bytes, tried in turn, and the checksum of these bytes.

    `checksum` is "sha256:..." or "md5:...", the latter where the authors published no other. It tells a damaged file
    from a sound one; against a forger MD5 is no defence, so no reader here executes what it reads.
    """

    addresses: tuple[str, ...]
    checksum: str


def _uci(path: str, sha256: str) -> Source:
    """The files of the UCI repository; it publishes no checksums, these are those of the files that it serves."""
    return Source(
        addresses=(f"https://archive.ics.uci.edu/ml/machine-learning-databases/{path}",), checksum=f"sha256:{sha256}"
    )


def _mnist(file: str, sha256: str) -> Source:
    """Mirrors of the authors' page, which no longer serves the files; their MD5 sums are the published ones."""
    mirrors = ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist")
    return Source(addresses=tuple(f"{mirror}/{file}" for mirror in mirrors), checksum=f"sha256:{sha256}")


def _svhn(file: str, md5: str) -> Source:
    """The authors publish no checksum; these are those that the common loaders check."""
    return Source(addresses=(f"http://ufldl.stanford.edu/housenumbers/{file}",), checksum=f"md5:{md5}")


SOURCES: dict[tuple[str, str], Source] = {
    ("adult", "adult.data"): _uci(
        "adult/adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"
    ),
    ("adult", "adult.test"): _uci(
        "adult/adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"
    ),
    ("abalone", "abalone.data"): _uci(
        "abalone/abalone.data", "de37cdcdcaaa50c309d514f248f7c2302a5f1f88c168905eba23fe2fbc78449f"
    ),
    ("german_credit", "german.data"): _uci(
        "statlog/german/german.data", "b21f3d81db8071257d5ff1deaeba1fd4303b62712e6fcc9715c7a86202cb5871"
    ),
    ("german_credit", "german.data-numeric"): _uci(
        "statlog/german/german.data-numeric", "2752b044394958ab6dd193a0b56ca0f0b3a2d8bc7cb8c008e35a5e84bbec02f8"
    ),
    ("mnist", "train-images-idx3-ubyte.gz"): _mnist(
        "train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    ("mnist", "train-labels-idx1-ubyte.gz"): _mnist(
        "train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
    ),
    ("mnist", "t10k-images-idx3-ubyte.gz"): _mnist(
        "t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    ("mnist", "t10k-labels-idx1-ubyte.gz"): _mnist(
        "t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
    ),
    # The binary version: the Python version holds pickles, which execute what they are told to.
    ("cifar10", "cifar-10-binary.tar.gz"): Source(
        addresses=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        checksum="md5:c32a1d4ab5d03f1284b67883e8d87530",
    ),
    ("svhn", "train_32x32.mat"): _svhn("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
    ("svhn", "test_32x32.mat"): _svhn("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
}


class NotDownloaded(Exception):
    """Why a file did not come, in a few words."""


def places(folder: str | os.PathLike[str] | None = None) -> list[Path]:
    """The folders that are searched, in order; one that was named and does not exist is refused."""
    found = []
    for name, value in (("folder", folder), ("CONFIDE_DATA", os.environ.get("CONFIDE_DATA"))):
        if not value:
            continue
        if not Path(value).is_dir():
            raise Refused(f"{name} = {str(value)!r} is not a folder: give the one that holds the datasets")
        found.append(Path(value))
    return [*found, cache()]


def cache() -> Path:
    """The user's own folder for downloads; it need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "confide" / "data"


def find_held(name: str, files: Sequence[str], folder: str | os.PathLike[str] | None = None) -> Path | None:
    """The first of the files in the first place that holds any of them: the places come before the formats."""
    for place in places(folder):
        for file in files:
            if (place / name / file).exists():
                return place / name / file
    return None


def find(
    name: str,
    file: str,
    folder: str | os.PathLike[str] | None = None,
    otherwise: Callable[[Path], None] | None = None,
) -> Path:
    """The path of a file of a dataset, downloaded into the cache folder if it is nowhere else.

    `otherwise` may write the file from a second source, given its path; it raises NotDownloaded where it cannot.
    """
    path = find_held(name, (file,), folder)
    if path is not None:
        return path
    target = cache() / name / file
    reasons = []
    if (name, file) in SOURCES:
        reasons.append(_attempt(lambda: download(SOURCES[name, file], target)))
    if otherwise is not None and None not in reasons:
        reasons.append(_attempt(lambda: otherwise(target)))
    if None in reasons:
        return target
    looked = ", ".join(str(place / name) for place in places(folder))
    raise Refused(
        f"{file} of the dataset {name!r} is not in {looked}, and was not downloaded "
        f"({'; '.join(map(str, reasons)) or 'no source serves it to everyone'}): "
        f"place it by hand as {target}, or set CONFIDE_DATA to a folder with {name}/{file}"
    )


def _attempt(fetch: Callable[[], None]) -> str | None:
    """Nothing, or why it failed."""
    try:
        fetch()
    except NotDownloaded as reason:
        return str(reason)
    return None


def download(source: Source, target: Path, timeout: float = TIMEOUT) -> None:
    """The file from the first address that serves the right bytes; NotDownloaded, and nothing left behind, if none."""
    reasons = []
    for address in source.addresses:
        try:
            with urllib.request.urlopen(address, timeout=timeout) as answer:
                write(target, functools.partial(answer.read, PIECE), source.checksum)
            return
        except urllib.error.HTTPError as error:
            error.close()
            reasons.append(f"{address}: HTTP {error.code}")
        except urllib.error.URLError as error:
            reasons.append(f"{address}: {getattr(error.reason, 'strerror', None) or error.reason}")
        except (OSError, http.client.HTTPException) as error:
            reasons.append(f"{address}: {getattr(error, 'strerror', None) or error or type(error).__name__}")
        except NotDownloaded as reason:
            reasons.append(f"{address}: {reason}")
    raise NotDownloaded("; ".join(reasons))


def write(target: Path, read: Callable[[], bytes], checksum: str = "") -> None:
    """The pieces that `read` gives until an empty one: under the name `target` when all are there and right."""
    method, _, wanted = checksum.partition(":")
    digest = hashlib.new(method, usedforsecurity=False) if method else None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise NotDownloaded(f"{target.parent} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            while piece := read():
                file.write(piece)
                if digest:
                    digest.update(piece)
        if digest and digest.hexdigest() != wanted:
            raise NotDownloaded(f"its {method} checksum is {digest.hexdigest()[:12]}..., not {wanted[:12]}...")
        os.replace(partial, target)
    finally:
        Path(partial).unlink(missing_ok=True)
