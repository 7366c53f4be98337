"""Episodes to look at: a page with frames, curves, windows, and what is suspect."""

from t2r_seq.viewing.episodes import EpisodeReader
from t2r_seq.viewing.page import PageReport
from t2r_seq.viewing.survey import Survey, survey_episodes
from t2r_seq.viewing.suspicion import Reason, Suspicion
from t2r_seq.viewing.view import View, view

__all__ = [
  "EpisodeReader",
  "PageReport",
  "Reason",
  "Survey",
  "Suspicion",
  "View",
  "survey_episodes",
  "view",
]
