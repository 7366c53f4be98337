"""cpprb, at the settings that do the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from cpprb import PrioritizedReplayBuffer, ReplayBuffer

from benchmarks.measure import Run
from benchmarks.replay.inserting import InsertWork
from benchmarks.store import cpprb_peer, transition_work, works
from benchmarks.store.transition_work import TransitionWork
from benchmarks.store.works import Work

_SHAPES = {"obs": 17, "act": 6, "rew": 1, "next_obs": 17, "done": 1}


def stacks(work: Work) -> Iterator[Any]:
  """Windows, frames compressed by `stack_compress`."""
  return cpprb_peer.stacks(work)


def n_step(work: TransitionWork) -> Iterator[Any]:
  """n-step transitions, joined when they were added."""
  return cpprb_peer.n_step(work)


def next_of(work: TransitionWork) -> Iterator[Any]:
  """One-step transitions, next observations compressed by `next_of`."""
  buffer = _one_step(work.num_transitions, has_next=False)
  for episode in transition_work.make_episodes(work):
    obs = episode.pop("obs")
    buffer.add(obs=obs[:-1], next_obs=obs[1:], **episode)
    buffer.on_episode_end()
  while True:
    yield buffer.sample(work.batch_size)


def prioritized(work: TransitionWork, has_updates: bool = False) -> Iterator[Any]:
  """n-step transitions by priority, with importance weights."""
  buffer = PrioritizedReplayBuffer(
    work.num_transitions,
    {name: {"shape": shape} for name, shape in _SHAPES.items()},
    Nstep={"size": work.n, "gamma": work.gamma, "rew": "rew", "next": "next_obs"},
    alpha=0.6,
  )
  for episode in transition_work.make_episodes(work):
    obs = episode.pop("obs")
    buffer.add(obs=obs[:-1], next_obs=obs[1:], **episode)
    buffer.on_episode_end()
  priorities = np.random.default_rng(0).random(work.batch_size)
  while True:
    batch = buffer.sample(work.batch_size, beta=0.4)
    yield batch
    if has_updates:
      buffer.update_priorities(batch["indexes"], priorities)


def prioritized_and_updated(work: TransitionWork) -> Iterator[Any]:
  """The same, and new priorities for each batch."""
  return prioritized(work, has_updates=True)


def insert_steps(
  work: InsertWork, has_next: bool = True, is_prioritized: bool = False
) -> Run:
  """Makes the run that adds transitions one by one; one-step ones, the fastest."""
  buffer = _one_step(work.capacity, has_next, is_prioritized)
  steps = [{**step, "next_obs": step["obs"]} for step in work.steps()]
  return lambda: lambda: _add(buffer, work, steps, 1)


def insert_batches(
  work: InsertWork, has_next: bool = True, is_prioritized: bool = False
) -> Run:
  """Makes the run that adds a step of each of several environments at once."""
  buffer = _one_step(work.capacity, has_next, is_prioritized)
  batches = [{**batch, "next_obs": batch["obs"]} for batch in work.batches()]
  return lambda: lambda: _add(buffer, work, batches, work.num_environments)


def insert_frames(work: Work) -> Run:
  """Makes the run that adds stacks one by one, frames compressed."""
  buffer = _stacked(work, 10 * work.windows_per_episode, is_compressed=True)
  windows = next(_windows(work))

  def insert() -> int:
    for t in range(work.windows_per_episode):
      buffer.add(**{name: values[t] for name, values in windows.items()})
    buffer.on_episode_end()
    return work.windows_per_episode

  return lambda: lambda: sum(insert() for _ in range(10))


def fill_with_windows(work: Work, is_compressed: bool) -> Any:
  """Returns a buffer of all windows of a work."""
  buffer = _stacked(work, work.num_windows, is_compressed)
  for windows in _windows(work):
    buffer.add(**windows)
    buffer.on_episode_end()
  return buffer


def fill_with_transitions(work: TransitionWork, has_next: bool) -> Any:
  """Returns a buffer of all one-step transitions of a work."""
  buffer = _one_step(work.num_transitions, has_next)
  for episode in transition_work.make_episodes(work):
    obs = episode.pop("obs")
    buffer.add(obs=obs[:-1], next_obs=obs[1:], **episode)
    buffer.on_episode_end()
  return buffer


def _add(buffer: Any, work: InsertWork, steps: list[Any], per_step: int) -> int:
  for episode in range(work.num_episodes):
    for t in range(work.num_steps):
      buffer.add(**steps[(episode + t) % len(steps)])
    buffer.on_episode_end()
  return work.num_episodes * work.num_steps * per_step


def _one_step(capacity: int, has_next: bool, is_prioritized: bool = False) -> Any:
  make = PrioritizedReplayBuffer if is_prioritized else ReplayBuffer
  shapes = {name: {"shape": shape} for name, shape in _SHAPES.items()}
  if has_next:
    return make(capacity, shapes)
  del shapes["next_obs"]
  return make(capacity, shapes, next_of="obs")


def _stacked(work: Work, capacity: int, is_compressed: bool) -> Any:
  environment = {
    name: {
      "shape": (*(spec.shape or (1,)), work.num_frames),
      "dtype": spec.dtype.as_numpy_dtype,
    }
    for name, spec in work.fields.items()
  }
  compress = {"stack_compress": "image"} if is_compressed else {}
  return ReplayBuffer(capacity, environment, **compress)


def _windows(work: Work) -> Iterator[dict[str, np.ndarray]]:
  for episode in works.make_episodes(work):
    yield {
      # Its stack axis is the last one.
      name: np.lib.stride_tricks.sliding_window_view(
        values.reshape(work.num_steps, *(values.shape[1:] or (1,))),
        *(work.num_frames, 0),
      )
      for name, values in episode.items()
    }
