"""Colours that are told apart by readers of every colour vision."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from orderone.report.theme import DARK, PALETTE

TO_CONES = np.array(
    [[17.8824, 43.5161, 4.11935], [3.45565, 27.1554, 3.86714], [0.0299566, 0.184309, 1.46709]]
)
"""Linear RGB to long, medium and short cones, Viénot, Brettel and Mollon 1999."""
VISIONS = {
    "all cones": np.eye(3),
    "no long cones": np.array([[0, 2.02344, -2.52581], [0, 1, 0], [0, 0, 1]]),
    "no medium cones": np.array([[1, 0, 0], [0.494207, 0, 1.24827], [0, 0, 1]]),
}


def linear(colour):
    c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    ratio = xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("palette", [PALETTE, DARK], ids=["light", "dark"])
def test_no_two_colours_look_alike(palette, vision):
    """CIE 1976 distance above 15; about 2 is just noticed."""
    seen = np.linalg.inv(TO_CONES) @ VISIONS[vision] @ TO_CONES
    found = [lab(seen @ linear(colour)) for colour in palette]
    assert min(np.linalg.norm(a - b) for a, b in combinations(found, 2)) > 15
