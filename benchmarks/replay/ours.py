"""What is measured: the in-process replay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.measure import Run
from benchmarks.replay.inserting import InsertWork
from benchmarks.store import limits, transition_work, works
from benchmarks.store.transition_work import TransitionWork
from benchmarks.store.works import Work
from t2r_seq import replay, specs

_FIELDS = {"obs": (17,), "act": (6,), "rew": (), "done": ()}


def transition_spec() -> dict[str, specs.ExtendedTensorSpec]:
  """Declares one-step transitions."""
  spec = {
    name: specs.ExtendedTensorSpec(shape, tf.float32, name, time_offsets=0)
    for name, shape in _FIELDS.items()
  }
  spec["next_obs"] = specs.ExtendedTensorSpec((17,), tf.float32, "obs", time_offsets=1)
  return spec


def filled_with_windows(work: Work) -> replay.ReplayBuffer:
  """Makes a buffer of all steps of the work."""
  num_steps = work.num_episodes * work.num_steps
  buffer = replay.ReplayBuffer(
    works.window_specs(work), num_steps, seed=1, padding="drop"
  )
  with buffer.writer() as writer:
    for episode in works.make_episodes(work):
      for t in range(work.num_steps):
        writer.append({name: values[t] for name, values in episode.items()})
      writer.end_episode()
  return buffer


def filled_with_transitions(work: TransitionWork, **options: Any) -> Any:
  """Makes a buffer of all transitions of the work, joined when they are sampled."""
  num_steps = work.num_episodes * (work.num_steps + 1)
  n_step = (work.n, work.gamma)
  buffer = replay.ReplayBuffer(
    transition_spec(), num_steps, n_step=n_step, seed=1, **options
  )
  with buffer.writer() as writer:
    for episode in transition_work.make_episodes(work):
      for t in range(work.num_steps):
        writer.append({name: values[t] for name, values in episode.items()})
      last = {name: np.zeros_like(values[0]) for name, values in episode.items()}
      writer.append({**last, "obs": episode["obs"][-1]})
      writer.end_episode()
  return buffer


def sampled_windows(work: Work) -> Iterator[Any]:
  """Windows as numpy arrays."""
  return _samples(filled_with_windows(work), work.batch_size)


def sample_in_threads(work: Work, num_threads: int) -> Run:
  """Makes the run in which threads sample windows, each batches of its own."""
  buffer = filled_with_windows(work)

  def sample(thread: int) -> None:
    for _ in range(thread, work.num_batches, num_threads):
      buffer.sample(work.batch_size)

  return limits.in_threads(sample, num_threads, work.num_batches * work.batch_size)


def dataset_of_windows(work: Work) -> Iterable[Any]:
  """Windows as tensors."""
  return filled_with_windows(work).dataset(work.batch_size)


def sampled_transitions(work: TransitionWork) -> Iterator[Any]:
  """Transitions as numpy arrays."""
  return _samples(filled_with_transitions(work), work.batch_size)


def dataset_of_transitions(work: TransitionWork) -> Iterable[Any]:
  """Transitions as tensors."""
  return filled_with_transitions(work).dataset(work.batch_size)


def prioritized_transitions(work: TransitionWork) -> Iterator[Any]:
  """Transitions by priority, with importance weights."""
  buffer = filled_with_transitions(work, sampler=replay.Prioritized(0.6))
  while True:
    info, batch = buffer.sample_with_info(work.batch_size)
    yield batch, replay.importance_weights(info, 0.4)


def updated_transitions(work: TransitionWork) -> Iterator[Any]:
  """The same, and new priorities for each batch."""
  buffer = filled_with_transitions(work, sampler=replay.Prioritized(0.6))
  priorities = np.random.default_rng(0).random(work.batch_size)
  while True:
    info, batch = buffer.sample_with_info(work.batch_size)
    yield batch, replay.importance_weights(info, 0.4)
    buffer.update_priorities(info.key, priorities)


def insert_steps(work: InsertWork, **options: Any) -> Run:
  """Makes the run that appends transitions one by one."""
  buffer = replay.ReplayBuffer(
    transition_spec(), work.capacity, padding="drop", **options
  )
  writer = buffer.writer()
  steps = list(work.steps())

  def insert() -> int:
    for episode in range(work.num_episodes):
      for t in range(work.num_steps):
        writer.append(steps[(episode + t) % len(steps)])
      writer.end_episode()
    return work.num_episodes * work.num_steps

  return lambda: insert


def insert_batches(work: InsertWork, **options: Any) -> Run:
  """Makes the run that appends a step of each of several environments at once."""
  num = work.num_environments
  buffer = replay.ReplayBuffer(
    transition_spec(), work.capacity, num_writers=num, padding="drop", **options
  )
  writers = [buffer.writer() for _ in range(num)]
  batches = list(work.batches())

  def insert() -> int:
    for episode in range(work.num_episodes):
      for t in range(work.num_steps):
        batch = batches[(episode + t) % len(batches)]
        for row, writer in enumerate(writers):
          writer.append({path: value[row] for path, value in batch.items()})
      for writer in writers:
        writer.end_episode()
    return work.num_episodes * work.num_steps * num

  return lambda: insert


def insert_frames(work: Work) -> Run:
  """Makes the run that appends steps with images one by one."""
  episode = next(works.make_episodes(work))
  capacity = 10 * work.num_steps
  writer = replay.ReplayBuffer(
    works.window_specs(work), capacity, padding="drop"
  ).writer()

  def insert() -> int:
    for t in range(work.num_steps):
      writer.append({name: values[t] for name, values in episode.items()})
    writer.end_episode()
    return work.num_steps

  return lambda: lambda: sum(insert() for _ in range(10))


def _samples(buffer: replay.ReplayBuffer, batch_size: int) -> Iterator[Any]:
  while True:
    yield buffer.sample(batch_size)
