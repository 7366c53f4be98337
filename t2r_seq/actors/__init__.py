"""Collect and evaluate loops over Gymnasium environments."""

from t2r_seq.actors.collect import collect_episodes, run_env
from t2r_seq.actors.collect_eval import collect_eval_loop
from t2r_seq.actors.environments import make_vector_env
from t2r_seq.actors.rollouts import (
  Episode,
  EpisodeTally,
  Step,
  episode_seed,
  generate_episodes,
  generate_steps,
  is_last,
  last_observation,
)
from t2r_seq.actors.sinks import (
  EpisodeSink,
  RecordSink,
  ReplaySink,
  StoreSink,
  WholeEpisodeSink,
  episode_to_features,
  flatten_step,
  flatten_steps,
  stack_steps,
  step_to_features,
)
from t2r_seq.actors.videos import FilmedEnv, write_video
from t2r_seq.records import shard_paths
from t2r_seq.training import Stopped, StopSignal

__all__ = [
  "Episode",
  "EpisodeSink",
  "EpisodeTally",
  "FilmedEnv",
  "RecordSink",
  "ReplaySink",
  "Step",
  "StopSignal",
  "Stopped",
  "StoreSink",
  "WholeEpisodeSink",
  "collect_episodes",
  "collect_eval_loop",
  "episode_seed",
  "episode_to_features",
  "flatten_step",
  "flatten_steps",
  "generate_episodes",
  "generate_steps",
  "is_last",
  "last_observation",
  "make_vector_env",
  "run_env",
  "shard_paths",
  "stack_steps",
  "step_to_features",
  "write_video",
]
