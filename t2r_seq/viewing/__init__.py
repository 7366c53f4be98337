"""Episodes to look at: a page with frames, curves, windows, and outliers."""

from t2r_seq.viewing.episodes import EpisodeViewer
from t2r_seq.viewing.survey import survey_episodes
from t2r_seq.viewing.view import View, view

__all__ = [
  "EpisodeViewer",
  "View",
  "survey_episodes",
  "view",
]
