"""A table or images, and what is public about them, as arrays; and named datasets, by short names. No JAX here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confide.data.datasets import (
        Arrays,
        Grouped,
        Records,
        Split,
        abalone,
        adult,
        breast_cancer,
        cifar10,
        digits,
        german_credit,
        idc,
        mnist,
        schema_path,
        svhn,
        table,
    )

__all__ = [
    "Arrays",
    "Grouped",
    "Records",
    "Split",
    "abalone",
    "adult",
    "breast_cancer",
    "cifar10",
    "digits",
    "german_credit",
    "idc",
    "mnist",
    "schema_path",
    "svhn",
    "table",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("confide.data.datasets"), name)
    raise AttributeError(f"module 'confide.data' has no attribute {name!r}")
