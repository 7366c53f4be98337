"""Collect and evaluate loops over Gymnasium environments."""

from t2r_seq.actors.collect import collect_episodes
from t2r_seq.actors.env_loop import run_env
from t2r_seq.actors.features import episode_to_features, flatten_steps
from t2r_seq.actors.metrics import EpisodeTally
from t2r_seq.actors.rollouts import (
  Episode,
  Step,
  episode_seed,
  generate_episodes,
  generate_steps,
  is_last,
)
from t2r_seq.actors.vector_environments import make_vector_env
from t2r_seq.records import shard_paths

__all__ = [
  "Episode",
  "EpisodeTally",
  "Step",
  "collect_episodes",
  "episode_seed",
  "episode_to_features",
  "flatten_steps",
  "generate_episodes",
  "generate_steps",
  "is_last",
  "make_vector_env",
  "run_env",
  "shard_paths",
]
