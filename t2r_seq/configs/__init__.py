"""Shared gin files. A package, so that gin finds them from any folder."""

__all__: list[str] = []
