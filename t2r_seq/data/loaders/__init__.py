"""Batches of windows by number: their order, pools, and the loaders over stores."""

__all__: list[str] = []
