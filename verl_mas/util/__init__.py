"""Small helpers without a home of their own."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_version(distribution: str) -> str | None:
    """Read from its metadata: nothing is imported."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
