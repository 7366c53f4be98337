"""A replay under threads: each window is one that was written, whole."""

from __future__ import annotations

import collections
import random
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import replay, specs

_HISTORY = (-3, -2, -1, 0)
_SPEC = {
  "obs": specs.ExtendedTensorSpec((4, 2), tf.int64, "obs", time_offsets=_HISTORY),
  "next_obs": specs.ExtendedTensorSpec((2,), tf.int64, "obs", time_offsets=1),
  "wide": specs.ExtendedTensorSpec((500,), tf.int64, "wide", time_offsets=0),
}
_BATCH = 64


class ThreadAttack:
  """Writes, samples and updates priorities in threads, and looks at every window.

  Attributes:
    counts: windows that were looked at, and buffers.
  """

  def __init__(self, seed: int, folder: str, say: Callable[[str, Any], None]) -> None:
    del folder  # Nothing of it is on a disk.
    self._seed = seed
    self._say = say
    self.counts: collections.Counter[str] = collections.Counter()

  def run(self, number: int, count: int) -> None:
    """Attacks so many buffers."""
    for i in range(count):
      where = f"buffer {i} of round {number} of seed {self._seed}"
      self._say("at", where)
      rng = random.Random(f"threads/{self._seed}/{number}/{i}")
      for wrong in self._attack(rng):
        self._say("wrong", f"{where}: {wrong}")
      self.counts["buffers"] += 1

  def _attack(self, rng: random.Random) -> list[str]:
    num_writers, wrong = rng.randrange(1, 4), list[str]()
    sampler = rng.choice([replay.Uniform(), replay.Prioritized(0.7)])
    buffer = replay.ReplayBuffer(
      *(_SPEC, rng.choice([200, 1000]) * num_writers),
      num_writers=num_writers,
      sampler=sampler,
      timeout=60.0,
      padding="drop",
    )
    is_over = threading.Event()

    def guarded(function: Callable[..., None], *args: Any) -> threading.Thread:
      def run() -> None:
        try:
          function(*args)
        except BaseException:
          wrong.append(traceback.format_exc()[-1500:])
          is_over.set()

      thread = threading.Thread(target=run)
      thread.start()
      return thread

    is_weighted = isinstance(sampler, replay.Prioritized)
    threads = [
      guarded(_write, buffer, writer, random.Random(rng.random()), is_over)
      for writer in range(num_writers)
    ]
    samplers = [
      guarded(self._sample, buffer, is_weighted, wrong, is_over) for _ in range(2)
    ]
    for thread in samplers:
      thread.join()
    is_over.set()
    for thread in threads:
      thread.join()
    return wrong

  def _sample(
    self,
    buffer: replay.ReplayBuffer,
    is_weighted: bool,
    wrong: list[str],
    is_over: threading.Event,
  ) -> None:
    for _ in range(60):
      info, batch = buffer.sample_with_info(_BATCH)
      if is_over.is_set():
        return
      now, before = batch["next_obs"] - [0, 1], batch["obs"]
      episode, step = now[:, 0], now[:, 1]
      want = step[:, None] + _HISTORY
      if (before[..., 1] != want).any() or (before[..., 0] != episode[:, None]).any():
        wrong.append(f"a window of other steps: {before[:2].tolist()}")
      if (batch["wide"] != (episode * 1000 + step)[:, None]).any():
        wrong.append("a step of two others")
      if is_weighted:
        buffer.update_priorities(info.key, 1.0 + step % 3)
      self.counts["windows"] += _BATCH


def _write(
  buffer: replay.ReplayBuffer, writer: int, rng: random.Random, is_over: threading.Event
) -> None:
  with buffer.writer() as own:
    for episode in range(writer, 1 << 30, 10):
      length = rng.randrange(2, 60)
      for step in range(length):
        if is_over.is_set():
          return
        wide = np.full(500, episode * 1000 + step)
        own.append({"obs": [episode, step], "wide": wide})
      own.end_episode()
