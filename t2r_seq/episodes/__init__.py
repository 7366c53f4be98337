"""Data sets of episodes: opened once, in any format, and used by everything."""

from t2r_seq.episodes.episodes import Episode, EpisodeWriter
from t2r_seq.episodes.registry import (
  find_format,
  formats,
  open_episodes,
  register_format,
  write_episodes,
)
from t2r_seq.episodes.splits import choose_episodes, make_splits
from t2r_seq.episodes.views import Episodes

__all__ = [
  "Episode",
  "EpisodeWriter",
  "Episodes",
  "choose_episodes",
  "find_format",
  "formats",
  "make_splits",
  "open_episodes",
  "register_format",
  "write_episodes",
]
