"""Frames of columns of videos, by the number of their step.

An episode's video is one byte string of its column, as every checksum, commit and merge
has it. Step i is the frame at i / fps, told by the time stamp that the file has of it.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from concurrent import futures
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.imports import tf
from t2r_seq.process import PythonCalls
from t2r_seq.store import videos
from t2r_seq.store.layout import Column
from t2r_seq.store.mapped import empty_array

# Videos that are decoded at a time.
_DECODED_AT_ONCE = 4


def decode(
  column: Column,
  data: MappedFile,
  episode: int,
  steps: np.ndarray,
  out: np.ndarray | None = None,
  num_threads: int | None = None,
) -> np.ndarray:
  """Decodes frames of an episode: whole groups of pictures, or by seeking.

  Args:
    column: of videos.
    data: the episode's.
    episode: its number in its segment.
    steps: rising, int64 [N].
    out: where the frames go; None makes room.
    num_threads: of the decoder; None leaves it to that.
  Returns:
    [N, height, width, channels].
  Raises:
    ImportError: PyAV is not installed.
    StoreError: a video that is damaged, or a frame that is not where its step is.
  """
  assert column.video is not None
  if out is None:
    out = _empty(column, len(steps))
  if not len(steps):
    return out
  times = steps / column.video.fps
  # A key frame is nearer than so many frames.
  seek_after = (column.video.gop + 0.5) / column.video.fps
  where = f"EpisodeStore: {data.name}: episode {episode}: {column.path}: expected"
  try:
    depth = column.video.depth
    return videos.read_frames(data, times, out, seek_after, num_threads, depth)
  except videos.MissingFrameError as error:
    got = "none: the video ends before"
    if error.difference is not None:
      got = f"the nearest one {error.difference:+.6f} s from there"
    step = int(steps[error.index])
    raise errors.StoreError(
      f"{where} the frame of step {step} at {times[error.index]:.6f} s, got {got}. "
      "The file is damaged, or another program wrote it: t2r_seq doctor tells."
    ) from error
  except errors.RecordError as error:
    raise errors.StoreError(
      f"{where} a video that can be decoded, got an error ({error}). t2r_seq doctor "
      "tells which episodes are whole."
    ) from error


def _empty(column: Column, count: int) -> np.ndarray:
  shape = (count, *column.spec.shape.as_list())
  return empty_array(shape, column.spec.dtype.as_numpy_dtype)


class MappedFile:
  """A part of a mapped file, as a file.

  Attributes:
    name: of the file.
  """

  def __init__(self, name: str, data: np.ndarray, start: int, end: int) -> None:
    """Opens bytes `start` to `end`."""
    self.name = name
    self._data, self._start, self._size = data, start, end - start
    self._place = 0

  def read(self, count: int = -1) -> bytes:
    """Reads some bytes, fewer at the end."""
    left = self._size - self._place
    count = left if count < 0 else min(count, left)
    start = self._start + self._place
    self._place += max(count, 0)
    return self._data[start : start + max(count, 0)].tobytes()

  def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
    """Goes to a place."""
    base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}
    self._place = base[whence] + offset
    return self._place

  def tell(self) -> int:
    """Returns the place."""
    return self._place


class VideoFrames:
  """The frames of a column of videos, by the number of their step in the store."""

  def __init__(
    self,
    column: Column,
    lengths: np.ndarray,
    decode: Callable[..., Any],
    failures: list[Exception],
  ) -> None:
    """Looks where the episodes are.

    Args:
      column: of videos.
      lengths: of the episodes, int64 [episodes].
      decode: given an episode, its steps, where the frames go, and the number of the
        decoder's threads; see the function.
      failures: gets what was raised of frames that could not be read in a graph.
    """
    self._failures, self._calls = failures, PythonCalls()
    self._column = column
    self._decode = decode
    self._ends = np.cumsum(lengths)

  def take(self, rows: tf.Tensor) -> tf.Tensor:
    """Decodes frames; see `read`."""
    if tf.executing_eagerly():
      return tf.constant(self.read(rows.numpy()))
    spec = self._column.spec
    taken = tf.numpy_function(self._read_or_note, [rows], spec.dtype)
    return tf.ensure_shape(taken, rows.shape.concatenate(spec.shape))

  def _read_or_note(self, rows: np.ndarray) -> np.ndarray:
    with self._calls.one():
      try:
        return self.read(rows)
      except Exception as error:
        self._failures.append(error)
        raise

  def read(self, rows: np.ndarray) -> np.ndarray:
    """Decodes frames, each once.

    Args:
      rows: numbers of steps, int64 of any shape.
    Returns:
      rows.shape + [height, width, channels].
    Raises:
      StoreError: as `decode`.
    """
    flat = rows.ravel()
    distinct, places = np.unique(flat, return_inverse=True)
    # Of a pool, episodes in any order, each step once: decoded to where it stays.
    wanted = distinct if len(distinct) < len(flat) else flat
    out = _empty(self._column, len(wanted))
    of_episode = np.searchsorted(self._ends, wanted, "right")
    is_new = (np.diff(of_episode) != 0) | (np.diff(wanted) < 0)
    bounds = np.r_[0, np.flatnonzero(is_new) + 1, len(wanted)]
    parts = [(a, b) for a, b in itertools.pairwise(bounds) if a < b]

    def read_part(part: tuple[int, int]) -> None:
      self._calls.check()
      episode = int(of_episode[part[0]])
      first = int(self._ends[episode - 1]) if episode else 0
      steps, own = wanted[slice(*part)] - first, out[slice(*part)]
      self._decode(episode, steps, own, 1 if len(parts) > 1 else None)

    if len(parts) == 1:
      read_part(parts[0])
    else:
      with futures.ThreadPoolExecutor(_DECODED_AT_ONCE) as executor:
        list(executor.map(read_part, parts))
    if wanted is distinct:
      out = out[places]
    return out.reshape((*rows.shape, *out.shape[1:]))
