"""cpprb: a replay buffer in memory that is filled before, and sampled from Python."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from cpprb import ReplayBuffer

from benchmarks.store import transition_work, works
from benchmarks.store.transition_work import TransitionWork
from benchmarks.store.works import Work

Batch = dict[str, np.ndarray]


def stacks(work: Work, epochs: int | None = None) -> Iterator[Batch]:
  """Samples windows, uniformly and for ever; frames are in memory once.

  The frames are compressed (`stack_compress`), the small fields are stacked before:
  to compress them too takes a sixth of the rate.
  """
  environment = {
    name: {
      "shape": (*(spec.shape or (1,)), work.num_frames),
      "dtype": spec.dtype.as_numpy_dtype,
    }
    for name, spec in work.fields.items()
  }
  buffer = ReplayBuffer(work.num_windows, environment, stack_compress="image")
  for episode in works.make_episodes(work):
    buffer.add(
      **{
        # Its stack axis is the last one.
        name: np.lib.stride_tricks.sliding_window_view(
          values.reshape(work.num_steps, *(values.shape[1:] or (1,))),
          *(work.num_frames, 0),
        )
        for name, values in episode.items()
      }
    )
    buffer.on_episode_end()
  return _samples(buffer, work.batch_size)


def n_step(work: TransitionWork, epochs: int | None = None) -> Iterator[Batch]:
  """Samples n-step transitions, made when they were added; for ever.

  Next observations are stored: its `next_of` leaves them out of n-step samples.
  """
  shapes = {"obs": 17, "act": 6, "rew": 1, "next_obs": 17, "done": 1}
  buffer = ReplayBuffer(
    work.num_transitions,
    {name: {"shape": shape} for name, shape in shapes.items()},
    Nstep={"size": work.n, "gamma": work.gamma, "rew": "rew", "next": "next_obs"},
  )
  for episode in transition_work.make_episodes(work):
    obs = episode.pop("obs")
    buffer.add(obs=obs[:-1], next_obs=obs[1:], **episode)
    buffer.on_episode_end()
  return _samples(buffer, work.batch_size)


def _samples(buffer: ReplayBuffer, batch_size: int) -> Iterator[Batch]:
  while True:
    yield buffer.sample(batch_size)
