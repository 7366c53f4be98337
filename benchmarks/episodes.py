"""Seeded episodes for the benchmarks, written once flat and once stacked."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import measure
from t2r_seq import records, specs, windows


@dataclasses.dataclass(frozen=True)
class Work:
  """What the pipelines are to do.

  Attributes:
    folder: where the records are.
    data_format: 'raw' or 'jpeg'.
    num_episodes: episodes in the file.
    num_steps: T of every episode.
    image_size: height and width of the frames, three channels.
    num_frames: K, frames in a window.
    batch_size: windows in a batch.
    shuffle_buffer_size: windows (not frames) among which every pipeline shuffles.
    num_batches: batches that a measured run delivers.
  """

  folder: str
  data_format: str
  num_episodes: int
  num_steps: int
  image_size: int
  num_frames: int = 4
  batch_size: int = 64
  shuffle_buffer_size: int = 2000
  num_batches: int = 200

  @property
  def flat_path(self) -> str:
    """The file of episodes, each frame once."""
    return os.path.join(self.folder, f"flat_{self.data_format}.tfrecord")

  @property
  def stacked_path(self) -> str:
    """The file of windows, each frame in up to K of them."""
    return os.path.join(self.folder, f"stacked_{self.data_format}.tfrecord")

  @property
  def frame_shape(self) -> tuple[int, int, int]:
    """Shape of one frame."""
    return self.image_size, self.image_size, 3

  @property
  def windows_per_episode(self) -> int:
    """Full windows in an episode."""
    return self.num_steps - self.num_frames + 1

  @property
  def num_windows(self) -> int:
    """Full windows in the file."""
    return self.num_episodes * self.windows_per_episode


def window_specs(work: Work) -> specs.TensorSpecStruct:
  """Returns the one declaration that our pipelines are made from."""
  spec = specs.ExtendedTensorSpec(
    (work.num_frames, *work.frame_shape),
    tf.uint8,
    "image",
    data_format=work.data_format,
    time_offsets=tuple(range(1 - work.num_frames, 1)),
  )
  return specs.TensorSpecStruct(image=spec)


def write(work: Work) -> None:
  """Writes the flat and the stacked file; the bytes of a frame are the same in both."""
  flat_spec = windows.flat_specs(window_specs(work))
  records.write_records(
    work.flat_path, flat_spec, ({"image": frames} for frames in stored_episodes(work))
  )
  with tf.io.TFRecordWriter(work.stacked_path) as writer:
    for frames in stored_episodes(work):
      for start in range(work.windows_per_episode):
        writer.write(_stacked_example(frames[start : start + work.num_frames]))


def disk_column(
  work: Work, candidates: Iterable[measure.Candidate], stacked: str
) -> dict[str, dict[str, str]]:
  """Returns a table's column with the size of the file that each candidate reads.

  Args:
    work: whose files are written.
    candidates: all; limits get an empty cell.
    stacked: the candidate that reads the stacked file.
  Returns:
    Header to cell by name.
  """
  cells = {}
  for candidate in candidates:
    path = work.stacked_path if candidate.name == stacked else work.flat_path
    if candidate.role != "limit":
      cells[candidate.name] = f"{os.path.getsize(path) / 2**20:,.0f}"
  return {"on disk, MiB": cells}


def stored_episodes(work: Work) -> Iterator[Any]:
  """Yields the frames of each episode as they are stored: pixels, or JPEG bytes."""
  for frames in make_episodes(work):
    if work.data_format == "raw":
      yield frames
    else:
      yield [tf.io.encode_jpeg(frame, quality=95).numpy() for frame in frames]


def make_episodes(work: Work) -> Iterator[np.ndarray]:
  """Yields [T, h, w, 3] uint8: two blobs that move over a gradient, and some noise."""
  rng = np.random.default_rng(7)
  grid = np.linspace(0.0, 1.0, work.image_size, dtype=np.float32)
  for _ in range(work.num_episodes):
    start, velocity = rng.random((2, 2)), rng.normal(0, 0.01, (2, 2))
    color = rng.uniform(60, 190, (3, 3)).astype(np.float32)
    frames = np.empty((work.num_steps, *work.frame_shape), np.uint8)
    for t in range(work.num_steps):
      frame = grid[:, None, None] * color[2] + rng.normal(0, 3, work.frame_shape)
      for blob in range(2):
        row, column = np.mod(start[blob] + t * velocity[blob], 1.0)
        distance = np.square(grid - row)[:, None] + np.square(grid - column)
        frame += np.exp(-60 * distance)[..., None] * color[blob]
      frames[t] = np.clip(frame, 0, 255)
    yield frames


def _stacked_example(frames: Any) -> bytes:
  stored = [frame if isinstance(frame, bytes) else frame.tobytes() for frame in frames]
  feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=stored))
  features = tf.train.Features(feature={"image": feature})
  return tf.train.Example(features=features).SerializeToString()
