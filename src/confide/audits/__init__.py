"""Audits: attacks that score records, and what their scores prove about epsilon."""

from __future__ import annotations
