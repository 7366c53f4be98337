"""torchrl's replay buffer, in the memory of this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers import samplers

from benchmarks.store import transition_work, works
from benchmarks.store.transition_work import TransitionWork
from benchmarks.store.works import Work


def slices(work: Work) -> Iterator[Any]:
  """Windows by its `SliceSampler`, whose starts are cached."""
  size = work.num_episodes * work.num_steps
  sampler = samplers.SliceSampler(
    slice_len=work.num_frames, traj_key="episode", cache_values=True
  )
  buffer = TensorDictReplayBuffer(
    storage=LazyTensorStorage(size),
    sampler=sampler,
    batch_size=work.batch_size * work.num_frames,
  )
  for number, episode in enumerate(works.make_episodes(work)):
    buffer.extend(_to_tensors(episode | {"episode": np.full(work.num_steps, number)}))
  while True:
    yield buffer.sample()


def n_step(work: TransitionWork) -> Iterator[Any]:
  """n-step transitions, joined when they are added."""
  buffer = TensorDictReplayBuffer(
    storage=LazyTensorStorage(work.num_transitions), batch_size=work.batch_size
  )
  for episode in transition_work.make_episodes(work):
    joined = transition_work.join_all(work, episode)
    buffer.extend(_to_tensors({name: np.array(v) for name, v in joined.items()}))
  while True:
    yield buffer.sample()


def _to_tensors(arrays: dict[str, np.ndarray]) -> TensorDict:
  tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
  return TensorDict(tensors, [len(next(iter(arrays.values())))])
