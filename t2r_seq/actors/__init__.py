"""Collect and evaluate loops over Gymnasium environments."""

from t2r_seq.actors.collect import collect_episodes, run_env
from t2r_seq.actors.collect_eval import CollectThread, collect_eval_loop
from t2r_seq.actors.environments import make_vector_env
from t2r_seq.actors.rollouts import (
  Episode,
  is_last,
)
from t2r_seq.actors.sinks import (
  EpisodeSink,
  RecordSink,
  ReplaySink,
  StoreSink,
  WholeEpisodeSink,
)
from t2r_seq.actors.videos import FilmedEnv
from t2r_seq.training import Stopped, StopSignal

__all__ = [
  "CollectThread",
  "Episode",
  "EpisodeSink",
  "FilmedEnv",
  "RecordSink",
  "ReplaySink",
  "StopSignal",
  "Stopped",
  "StoreSink",
  "WholeEpisodeSink",
  "collect_episodes",
  "collect_eval_loop",
  "is_last",
  "make_vector_env",
  "run_env",
]
