"""Data sets of episodes: opened once, in any format, and used by everything."""

from t2r_seq.episodes.registry import open_episodes, register_format, write_episodes
from t2r_seq.episodes.splits import make_splits
from t2r_seq.episodes.views import Episodes

__all__ = [
  "Episodes",
  "make_splits",
  "open_episodes",
  "register_format",
  "write_episodes",
]
