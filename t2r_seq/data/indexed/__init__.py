"""Record files read in any order, by their sidecar index."""

__all__: list[str] = []
