"""What rounding can add to a clipped sum, and so how much less than the clip records are cut to.

In floating point one record can change how all others are rounded, and a long sum can then move by more than the clip.
So records are cut to a little less: 2^-16 for the rounding of norms in single precision, and twice the largest error of
a sum. Adding B terms of norm at most c in any order errs by at most B u (B c), u the unit roundoff. Up to SMALL rows
that is below 1% in single precision; larger batches go through in chunks and are added up in double precision, where it
vanishes. Microbatches of m rows that are summed in single precision, and added up in double, err by at most m u (B c);
where that is above ROUNDED, all is double. Norms are computed on scaled rows, so that they neither overflow nor vanish.

And what is measured is what is summed: a compiler may compute a number anew for each use, and round it otherwise each
time, so that where large numbers cancel, the one that is measured may be near zero and the one that is summed long.
Gradients are therefore computed in a loop of their own, whose results are buffers (`per_example.once`). With one score
a record there is no need: its residual is cut where it is used.

A score must not depend on where in the batch a record stands: chunks are whole multiples of 8 rows, which the
processor's matrix products treat alike (a test compares bits). Products of two matrices of other heights it may cut up
otherwise, so a small batch is looked at in two parts, of which the second is seldom taken, for single scores alone.
"""

from __future__ import annotations

from typing import NamedTuple

NORM_ROUNDING = 2.0**-16  # relative; a norm of 1e5 terms in single precision is better than this
SMALL = 400  # rows that are summed in single precision
ROUNDED = 0.01  # of the clip: more is not given away to rounding
SINGLE, DOUBLE = 2.0**-24, 2.0**-53  # unit roundoffs


class Limit(NamedTuple):
    """What records are cut to, and how what is left of them is added up."""

    norm: float  # the clip, less what rounding can add; infinite: they are not cut
    slack: float  # what adding or removing a record can change in how the sum of all others is rounded
    double: bool  # whether the rows of a chunk are added up in double precision


def limit_of(clip: float, places: int, microbatch: int | None = None) -> Limit:
    """For batches with so many places (`clipping.whole_chunks`), all at once or in microbatches."""

    def error(unit: float) -> float:
        return 2 * unit * places * (places if microbatch is None else min(places, microbatch))

    double = places > SMALL if microbatch is None else error(SINGLE) > ROUNDED
    added = error(DOUBLE if double else SINGLE)
    return Limit(clip * (1 - NORM_ROUNDING) / (1 + added), clip * added, double)
