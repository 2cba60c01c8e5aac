"""Features that are learnt from nobody: `scattering` turns images into rows for a convex model."""

from confide.models.features.rows import scattering

__all__ = ["scattering"]
