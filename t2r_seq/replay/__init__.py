"""Live replay: experience that arrives while it is learned from, under one spec."""

from t2r_seq.replay.options import (
  Fifo,
  MinSize,
  Prioritized,
  Queue,
  SampleToInsertRatio,
  Uniform,
)
from t2r_seq.replay.replay import importance_weights
from t2r_seq.replay.replay_buffer import ReplayBuffer
from t2r_seq.replay.replay_input_generator import (
  ReplayInputGenerator,
  add_sample_specs,
)

__all__ = [
  "Fifo",
  "MinSize",
  "Prioritized",
  "Queue",
  "ReplayBuffer",
  "ReplayInputGenerator",
  "SampleToInsertRatio",
  "Uniform",
  "add_sample_specs",
  "importance_weights",
]
