"""Checkpoints: what an interrupted run needs to go on, to the bit.

A checkpoint holds secrets: the key of the noise, and iterates that may not have been meant for release. It is a file
apart from any output, readable by its owner only, replaced in one move, and deleted when the run completes. Going on
with other data or other settings under the same key would void the guarantee, so a fingerprint of both is kept, and a
run that does not match it is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from confide import validation
from confide.validation import Refused

PIECE = 2**14  # records that are hashed before their hashes are added


class Checkpoint(NamedTuple):
    fingerprint: str
    receipt: str  # of the charge in the ledger; empty without one
    key: bytes
    given: bool  # whether the caller chose the key
    block: int  # blocks of steps done
    arrays: list[np.ndarray]  # leaves of the state and the draws
    salt: bytes  # secret, of the digest of the records
    mechanism: int = 1  # of those who do not say


def fingerprint(settings: dict[str, Any], records: str) -> str:
    """A digest of everything that the run depends on but its key; `records` is that of the records."""
    return hashlib.sha256(json.dumps([settings, records], sort_keys=True, default=str).encode()).hexdigest()


def digest_records(
    arrays: tuple[np.ndarray, ...], present: np.ndarray, salt: bytes, public: tuple[np.ndarray, ...] = ()
) -> str:
    """A digest of the records in their places that does not depend on the order in which they are looked at.

    It is the sum, modulo 2^512, of a keyed hash of every record with its place. Sums over parts of the places add up to
    it, whatever the parts (`add_digests`), so that chunks, shards and workers do not show. The place of a record enters
    because sums of records are rounded by chunks of places, and batches are drawn by place: with other places the same
    key must draw other noise. A secret salt and 512 bits make it infeasible to find two tables with the same sum, for
    whoever chooses the tables without the salt (Clarke et al. 2003, MSet-Add-Hash). `public` arrays enter as they are.
    """
    shapes = hashlib.blake2b(digest_size=64)
    for array in (*arrays, *public):
        shapes.update(f"{array.shape} {array.dtype.str};".encode())
    for array in public:
        shapes.update(np.ascontiguousarray(array).tobytes())
    return add_digests([shapes.hexdigest(), sum_of_hashes(arrays, present, salt)])


def sum_of_hashes(arrays: tuple[np.ndarray, ...], present: np.ndarray, salt: bytes, first: int = 0) -> str:
    """The part of `digest_records` that belongs to these places, which begin at place `first` of the table."""
    places = np.flatnonzero(present)
    total = 0
    for start in range(0, len(places), PIECE):
        taken = places[start : start + PIECE]
        columns = [(taken + first).astype("<u8")[:, None].view(np.uint8)]
        for array in arrays:
            rows = np.ascontiguousarray(array[taken])
            columns.append(rows.reshape(len(taken), -1).view(np.uint8))
        rows = np.concatenate(columns, axis=1)
        size, data = rows.shape[1], rows.tobytes()
        hashes = b"".join(blake2b(data[place : place + size], key=salt).digest() for place in range(0, len(data), size))
        words = np.frombuffer(hashes, "<u4").reshape(len(taken), -1).astype(np.uint64)
        total += sum(int(word) << (32 * i) for i, word in enumerate(words.sum(axis=0).tolist()))
    return f"{total % 2**512:0128x}"


def add_digests(parts: Iterable[str]) -> str:
    """The sum of digests, in hexadecimal digits.

    >>> add_digests(["f" * 128, "0" * 127 + "2"])[-3:]
    '001'
    """
    return f"{sum(int(part, 16) for part in parts) % 2**512:0128x}"


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint in one move; the file is its owner's alone from the moment it exists."""
    draft = _draft(path)
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        head = checkpoint._asdict() | {"arrays": len(checkpoint.arrays)}
        head |= {"key": checkpoint.key.hex(), "salt": checkpoint.salt.hex()}
        arrays: dict[str, Any] = {f"array{i}": array for i, array in enumerate(checkpoint.arrays)}
        np.savez(file, head=np.array(json.dumps(head)), **arrays)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    flush_to_disk(path.parent)


def flush_to_disk(path: Path) -> None:
    """Have the system write a file, or the names in a folder, to the disk now."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # folders cannot be opened everywhere
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def read(path: Path) -> Checkpoint | None:
    """The checkpoint, or None where there is none."""
    if not path.exists():
        return None
    if path.stat().st_mode & 0o077:
        raise Refused(f"checkpoint {str(path)!r} can be read by others, and so can its key: delete it and start afresh")
    try:
        with path.open("rb") as stored, np.load(stored, allow_pickle=False) as file:
            head = json.loads(str(file["head"]))
            arrays = [file[f"array{i}"] for i in range(head["arrays"])]
        salt = head.get("salt", "")  # before version 3 of the mechanism there was none: such a run is refused by name
        secrets = {"key": bytes.fromhex(head["key"]), "salt": bytes.fromhex(salt)}
        return Checkpoint(**head | secrets | {"arrays": arrays})
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise Refused(f"checkpoint {str(path)!r} cannot be read: {error}; delete it to start afresh") from None


def delete(path: Path) -> None:
    """Remove the checkpoint and what an interrupted write may have left of it."""
    for file in (path, _draft(path)):
        file.unlink(missing_ok=True)


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.draft")


class CheckpointFile(NamedTuple):
    """Where a run keeps its checkpoint."""

    path: Path
    found: Checkpoint | None  # of a run that was interrupted, and goes on

    def begin(self, fingerprint: str, first: Callable[[], Checkpoint]) -> Checkpoint:
        """Write where the run begins, or goes on: before the charge, so that it is charged once however often it is
        killed."""
        begun = self.found or first()
        if begun.fingerprint != fingerprint:
            raise Refused(
                f"checkpoint {str(self.path)!r} is of another run: the records or the settings are not those that it "
                "began with; put them back, or delete it and start afresh, which is charged again"
            )
        try:
            write(self.path, begun)
        except OSError as error:  # as of a full disk: before the charge
            with contextlib.suppress(OSError):  # what was written of it holds the key
                self.abandon()
            raise Refused(
                f"checkpoint {str(self.path)!r} cannot be written: {error.strerror}; nothing was charged now"
            ) from None
        return begun

    def abandon(self) -> None:
        """Forget a run that has just begun and was not charged; one that goes on is kept."""
        if self.found is None:
            delete(self.path)


def open_file(path: str | os.PathLike[str] | None) -> CheckpointFile | None:
    """Where checkpoints go, and what is there; refused, before anything is paid for, where none can be written."""
    if path is None:
        return None
    validation.instance(str | os.PathLike, checkpoint=path)
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        raise Refused(f"checkpoint {str(path)!r} is a folder or lies in none: give a file in a folder that exists")
    try:
        _draft(path).unlink(missing_ok=True)
        os.close(os.open(_draft(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        _draft(path).unlink()
    except OSError as error:
        raise Refused(f"checkpoint {str(path)!r} cannot be written: {error.strerror}") from None
    return CheckpointFile(path, read(path))
