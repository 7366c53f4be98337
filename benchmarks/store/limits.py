"""What no loader can do without: to copy what it delivers, and to decode it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures

import numpy as np
import tensorflow as tf

from benchmarks.measure import Round, Run
from benchmarks.store import tf_peers
from benchmarks.store.works import Work
from t2r_seq.store import EpisodeStore

_RING = 4
"""Buffers that a copy goes to in turn, as loaders with buffers of their own do it."""


def copy(work: Work, num_threads: int, reuse: bool = True) -> Run:
  """Makes the run that copies as many bytes as there are to deliver, and nothing else.

  Each batch is one memcpy from a random place of the store's mapped images: longer
  pieces than any window, with no order and no index to compute.

  Args:
    work: whose images are copied.
    num_threads: threads that take turns, a batch each.
    reuse: copies to buffers that are used again; otherwise to new memory every time, as
      a loader must whose batches can be kept.
  Returns:
    The run.
  """
  images = np.asarray(EpisodeStore(work.store_path).column("image")).reshape(-1)
  size = min(work.batch_size * work.window_bytes, len(images))
  starts = np.random.default_rng(5).integers(
    len(images) - size + 1, size=work.num_batches
  )

  def copy_some(thread: int) -> None:
    ring = [np.empty(size, np.uint8) for _ in range(_RING)]
    for batch in range(thread, work.num_batches, num_threads):
      target = ring[batch // num_threads % _RING] if reuse else np.empty(size, np.uint8)
      np.copyto(target, images[starts[batch] : starts[batch] + size])

  return in_threads(copy_some, num_threads, work.num_batches * work.batch_size)


def decode(work: Work) -> Run:
  """Makes the run in which two threads decode by `map_fn`; units are frames."""
  column = EpisodeStore(work.store_path).column("image")
  encoded = column.rows(0, len(column)).reshape(work.num_episodes, work.num_steps)
  return decode_frames(work, encoded)


def decode_frames(work: Work, encoded: np.ndarray) -> Run:
  """Makes the run that decodes frames from memory, byte strings [episodes, T]."""

  def decode_episode(frames: tf.Tensor) -> tf.Tensor:
    # Of a value, not of the shape: that is known without decoding anything.
    return tf_peers.decode_all(work, frames)[-1, -1, -1]

  episodes_for_ever = tf.data.Dataset.from_tensor_slices(tf.constant(encoded)).repeat()
  decoded = episodes_for_ever.map(decode_episode, num_parallel_calls=2)
  num_episodes = -(-work.num_batches * work.batch_size // work.num_steps)

  def run() -> Round:
    episodes = iter(decoded.take(1 + num_episodes))
    next(episodes)
    return lambda: sum(work.num_steps for _ in episodes)

  return run


def decode_by_turbojpeg(work: Work) -> Run:
  """Makes the run in which two threads call libjpeg-turbo; units are frames."""
  import simplejpeg

  column = EpisodeStore(work.store_path).column("image")
  frames = column.rows(0, len(column)).tolist()
  num_frames = work.num_batches * work.batch_size

  def decode_some(thread: int) -> None:
    shape = (1, work.image_size, work.image_size, 3)
    target = np.empty(shape, np.uint8)[0]
    for i in range(thread, num_frames, 2):
      simplejpeg.decode_jpeg(
        frames[i % len(frames)], "RGB", fastdct=True, buffer=target
      )

  return in_threads(decode_some, 2, num_frames)


def in_threads(work_in_thread: Callable[[int], None], num: int, units: int) -> Run:
  """Makes the run in which threads share the work.

  Args:
    work_in_thread: does the part of one of them, given its number.
    num: threads.
    units: that they do together.
  Returns:
    The run.
  """

  def run() -> Round:
    ready = threading.Barrier(num + 1)
    executor = futures.ThreadPoolExecutor(num)

    def start(thread: int) -> None:
      ready.wait()
      work_in_thread(thread)

    running = [executor.submit(start, thread) for thread in range(num)]

    def do_round() -> int:
      ready.wait()
      for future in running:
        future.result()
      executor.shutdown()
      return units

    return do_round

  return run
