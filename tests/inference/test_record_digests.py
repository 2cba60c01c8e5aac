"""The digest of the records: a sum over records in their places, whatever the order, chunks or shards of the sum."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from confide.inference.checkpoints import PIECE, add_digests, digest_records, sum_of_hashes

SALT = b"a secret of the run"


def table(seed, rows=50):
    generator = np.random.default_rng(seed)
    arrays = (generator.normal(size=(rows, 3)).astype(np.float32), generator.integers(0, 2, rows).astype(np.int32))
    return arrays, generator.random(rows) < 0.8


@given(seed=st.integers(0, 10**6), cuts=st.sets(st.integers(1, 49), max_size=6), backwards=st.booleans())
def test_parts_of_the_places_add_up(seed, cuts, backwards):
    """Any shards, added in any order, give the digest of the table."""
    arrays, present = table(seed)
    borders = [0, *sorted(cuts), 50]
    shards = [slice(*pair) for pair in itertools.pairwise(borders)]
    parts = [
        sum_of_hashes(tuple(array[shard] for array in arrays), present[shard], SALT, first=shard.start)
        for shard in shards
    ]
    assert add_digests(parts[::-1] if backwards else parts) == sum_of_hashes(arrays, present, SALT)


def test_large_tables_are_summed_in_pieces():
    arrays, present = table(1, 2 * PIECE + 3)
    halves = [
        sum_of_hashes(tuple(array[shard] for array in arrays), present[shard], SALT, first=shard.start)
        for shard in (slice(0, 777), slice(777, None))
    ]
    assert add_digests(halves) == sum_of_hashes(arrays, present, SALT)


@given(seed=st.integers(0, 10**6), place=st.integers(0, 49))
def test_one_other_record_gives_another_digest(seed, place):
    arrays, present = table(seed)
    present[place] = True
    before = digest_records(arrays, present, SALT)
    changed = arrays[0].copy()
    changed[place, 1] = np.nextafter(changed[place, 1], np.float32(np.inf))
    absent = present.copy()
    absent[place] = False
    assert before == digest_records(arrays, present.copy(), SALT)
    assert before != digest_records((changed, arrays[1]), present, SALT)
    assert before != digest_records(arrays, absent, SALT)
    assert before != digest_records(arrays, present, b"another secret")


def test_what_stands_in_the_place_of_an_absent_record_does_not_matter():
    arrays, present = table(2)
    present[3] = False
    other = arrays[0].copy()
    other[3] = 17.0
    assert digest_records(arrays, present, SALT) == digest_records((other, arrays[1]), present, SALT)


def test_places_shapes_types_and_public_arrays_enter():
    """Batches are drawn by place, and sums are rounded by chunks of places: an exchange is another table."""
    arrays, present = table(3)
    present[:] = True
    swapped = tuple(array[[1, 0, *range(2, 50)]] for array in arrays)
    reshaped = (arrays[0].reshape(50, 3, 1), arrays[1])
    retyped = (arrays[0].view(np.int32), arrays[1])
    public = (np.arange(3.0),)
    digests = {
        digest_records(arrays, present, SALT),
        digest_records(swapped, present, SALT),
        digest_records(reshaped, present, SALT),
        digest_records(retyped, present, SALT),
        digest_records(arrays, present, SALT, public),
        digest_records(arrays, present, SALT, (public[0] + 1,)),
    }
    assert len(digests) == 6
