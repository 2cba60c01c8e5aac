"""Labels of images: by the names of the classes where these are numbers, and else by their places."""

import numpy as np
import pytest

from confide.data import image_files, image_schema


@pytest.mark.parametrize(
    ("classes", "labels", "places", "present"),
    [
        ("1,2", [1, 2, 1, 0], [0, 1, 0, 0], [True, True, True, False]),  # before, 1 was the class 2, and 2 was lost
        ("10,1,2", [10, 1, 2, 0], [0, 1, 2, 0], [True, True, True, False]),
        ("3", [0, 1, 2, 3], [0, 1, 2, 0], [True, True, True, False]),
        ("cat,dog", [0, 1, 2, -1], [0, 1, 0, 0], [True, True, False, False]),
        ("01,1", [0, 1, 2, 1], [0, 1, 0, 1], [True, True, False, True]),
    ],
)
def test_labels_of_images(tmp_path, classes, labels, places, present):
    np.savez(tmp_path / "i.npz", x=np.full((4, 6, 6), 9, np.uint8), y=np.array(labels))
    found = image_files.read(tmp_path / "i.npz", image_schema.parse_classes(classes), None)
    assert found.y.tolist() == places
    assert found.present.tolist() == present
    assert found.x[~found.present].sum() == 0
