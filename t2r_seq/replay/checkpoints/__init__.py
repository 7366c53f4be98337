"""A replay on disk: saved whole, restored whole, exported, begun from old episodes."""

__all__: list[str] = []
