"""Live replay: experience that arrives while it is learned from, under one spec."""

from t2r_seq.replay.options import (
  Fifo,
  Lifo,
  MaxHeap,
  MinHeap,
  MinSize,
  Prioritized,
  Queue,
  SampleToInsertRatio,
  Stack,
  Uniform,
)
from t2r_seq.replay.replay import (
  Replay,
  importance_weights,
)
from t2r_seq.replay.replay_buffer import ReplayBuffer
from t2r_seq.replay.replay_input_generator import (
  ReplayInputGenerator,
  add_sample_specs,
)

__all__ = [
  "Fifo",
  "Lifo",
  "MaxHeap",
  "MinHeap",
  "MinSize",
  "Prioritized",
  "Queue",
  "Replay",
  "ReplayBuffer",
  "ReplayInputGenerator",
  "SampleToInsertRatio",
  "Stack",
  "Uniform",
  "add_sample_specs",
  "importance_weights",
]
