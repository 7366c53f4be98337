"""Record files streamed: pools of episodes within a budget of memory."""

__all__: list[str] = []
