"""Which records are read, how, and what became of the bad ones."""

__all__: list[str] = []
