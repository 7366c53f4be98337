"""Several sources in one batch, by weight."""

__all__: list[str] = []
