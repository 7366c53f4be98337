"""Live replay: experience that arrives while it is learned from, under one spec."""

from t2r_seq.replay.options import (
  Fifo,
  Lifo,
  MaxHeap,
  MinHeap,
  MinSize,
  Prioritized,
  Queue,
  RateLimiterOption,
  SampleToInsertRatio,
  SelectorOption,
  Stack,
  Uniform,
)
from t2r_seq.replay.replay import (
  Replay,
  ReplayCounters,
  ReplayVectorWriter,
  ReplayWriter,
  SampleInfo,
  importance_weights,
)
from t2r_seq.replay.replay_buffer import ReplayBuffer
from t2r_seq.replay.replay_input_generator import ReplayInputGenerator
from t2r_seq.replay.sizing import flat_replay_specs

__all__ = [
  "Fifo",
  "Lifo",
  "MaxHeap",
  "MinHeap",
  "MinSize",
  "Prioritized",
  "Queue",
  "RateLimiterOption",
  "Replay",
  "ReplayBuffer",
  "ReplayCounters",
  "ReplayInputGenerator",
  "ReplayVectorWriter",
  "ReplayWriter",
  "SampleInfo",
  "SampleToInsertRatio",
  "SelectorOption",
  "Stack",
  "Uniform",
  "flat_replay_specs",
  "importance_weights",
]
