"""The works of the store's benchmarks: what there is to read, and what is delivered."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from t2r_seq import specs, windows
from t2r_seq.store import EpisodeStore

Episode = dict[str, np.ndarray]
"""Field to values, [T, ...]; encoded images are byte strings [T]."""


@dataclasses.dataclass(frozen=True)
class Work:
  """Windows of K steps of all fields.

  Attributes:
    folder: where the files are.
    num_episodes: episodes in the files.
    num_steps: T of every episode.
    image_size: height and width of the frames, three channels.
    is_jpeg: frames are stored as JPEG; otherwise as they are, with `state`, `action`
      and `reward` beside them.
    num_frames: K, steps in a window.
    sequence_length: L, windows in a sequence; None for single windows.
    batch_size: windows, or sequences, in a batch.
    shuffle_buffer_size: windows among which peers shuffle that need a buffer.
    num_batches: batches in a round.
  """

  folder: str
  num_episodes: int
  num_steps: int
  image_size: int
  is_jpeg: bool = False
  num_frames: int = 4
  sequence_length: int | None = None
  batch_size: int = 64
  shuffle_buffer_size: int = 2000
  num_batches: int = 2000

  @property
  def store_path(self) -> str:
    """The episode store."""
    return os.path.join(self.folder, f"store_{self._data_format}")

  @property
  def records_path(self) -> str:
    """TFRecords, an Example per episode; every field is one serialized tensor.

    This is the form of dlimp, and the cheapest to parse.
    """
    return os.path.join(self.folder, f"episodes_{self._data_format}.tfrecord")

  @property
  def beton_path(self) -> str:
    """FFCV's file."""
    return os.path.join(self.folder, f"episodes_{self._data_format}.beton")

  @property
  def fields(self) -> dict[str, tf.TensorSpec]:
    """One decoded step."""
    image = tf.TensorSpec((self.image_size, self.image_size, 3), tf.uint8)
    if self.is_jpeg:
      return {"image": image}
    return {
      "image": image,
      "state": tf.TensorSpec((16,), tf.float32),
      "action": tf.TensorSpec((7,), tf.float32),
      "reward": tf.TensorSpec((), tf.float32),
    }

  @property
  def num_flat(self) -> int:
    """Steps that a sequence reads."""
    return (self.sequence_length or 1) + self.num_frames - 1

  @property
  def windows_per_episode(self) -> int:
    """Full windows, or sequences, in an episode."""
    return self.num_steps - self.num_flat + 1

  @property
  def num_windows(self) -> int:
    """Full windows, or sequences, in the files."""
    return self.num_episodes * self.windows_per_episode

  @property
  def window_bytes(self) -> int:
    """Bytes of one window, or sequence, as it is delivered, stacked."""
    rows = self.num_frames * (self.sequence_length or 1)
    return rows * sum(
      spec.dtype.size * spec.shape.num_elements() for spec in self.fields.values()
    )

  def parse_episode(self, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses a record, as the usual pipelines do; images stay as they are stored."""
    features = {name: tf.io.FixedLenFeature((), tf.string) for name in self.fields}
    parsed = tf.io.parse_single_example(serialized, features)
    return {name: self._parse_field(name, parsed[name]) for name in self.fields}

  def _parse_field(self, name: str, serialized: tf.Tensor) -> tf.Tensor:
    field = self.fields[name]
    if self.is_jpeg:
      return tf.ensure_shape(
        tf.io.parse_tensor(serialized, tf.string), [self.num_steps]
      )
    parsed = tf.io.parse_tensor(serialized, field.dtype)
    return tf.ensure_shape(parsed, [self.num_steps, *field.shape])

  @property
  def _data_format(self) -> str:
    return "jpeg" if self.is_jpeg else "raw"


def window_specs(work: Work) -> specs.TensorSpecStruct:
  """Declares the windows; sequences where the work has a length for them."""
  offsets = tuple(range(1 - work.num_frames, 1))
  return specs.TensorSpecStruct(
    (
      name,
      specs.ExtendedTensorSpec(
        [work.num_frames, *field.shape],
        field.dtype,
        name,
        data_format="jpeg" if work.is_jpeg else None,
        is_sequence=work.sequence_length is not None,
        time_offsets=offsets,
      ),
    )
    for name, field in work.fields.items()
  )


def make_episodes(work: Work) -> Iterator[Episode]:
  """Yields the episodes as they are stored, the same ones every time."""
  for index in range(work.num_episodes):
    rng = np.random.default_rng([11, index])
    if work.is_jpeg:
      frames = _smooth_frames(work, rng)
      encoded = [tf.io.encode_jpeg(frame, quality=90).numpy() for frame in frames]
      yield {"image": np.array(encoded, object)}
      continue
    episode = {}
    for name, field in work.fields.items():
      shape = (work.num_steps, *field.shape)
      # Noise: what is copied costs the same whatever it shows.
      if field.dtype == tf.uint8:
        episode[name] = np.frombuffer(rng.bytes(int(np.prod(shape))), np.uint8)
        episode[name] = episode[name].reshape(shape)
      else:
        episode[name] = rng.standard_normal(shape, np.float32)
    yield episode


def decoded(work: Work, episode: Episode) -> Episode:
  """Returns the episode with its images decoded, [T, h, w, 3]."""
  if not work.is_jpeg:
    return episode
  frames = [tf.io.decode_jpeg(frame).numpy() for frame in episode["image"]]
  return {"image": np.stack(frames)}


def write(work: Work) -> None:
  """Writes the store and the records, in one pass."""
  flat = windows.flat_specs(window_specs(work))
  with (
    EpisodeStore.create(work.store_path, flat, commit_every=100) as writer,
    tf.io.TFRecordWriter(work.records_path) as records_writer,
  ):
    for episode in make_episodes(work):
      writer.append_episode(episode)
      records_writer.write(_episode_example(episode))


def _episode_example(episode: Episode) -> bytes:
  feature = {
    name: tf.train.Feature(
      bytes_list=tf.train.BytesList(
        value=[tf.io.serialize_tensor(tf.constant(values)).numpy()]
      )
    )
    for name, values in episode.items()
  }
  features = tf.train.Features(feature=feature)
  return tf.train.Example(features=features).SerializeToString()


def _smooth_frames(work: Work, rng: np.random.Generator) -> np.ndarray:
  """Pans over a smooth random texture, [T, h, w, 3] uint8; 5 to 8 KB a JPEG of 128."""
  size = work.image_size
  wide = 2 * size
  frequency = np.hypot(np.fft.fftfreq(wide)[:, None], np.fft.rfftfreq(wide)[None])
  spectrum = np.exp(-np.square(frequency / rng.uniform(0.10, 0.17)))
  spectrum = spectrum / (frequency + 0.01)
  texture = np.empty((wide, wide, 3), np.float32)
  for channel in range(3):
    phases = np.exp(2j * np.pi * rng.random(spectrum.shape))
    texture[..., channel] = np.fft.irfft2(spectrum * phases, (wide, wide))
  texture = np.clip(128 + 45 * texture / texture.std(), 0, 255).astype(np.uint8)
  turn = 2 * np.pi * (rng.random(2) + np.arange(work.num_steps)[:, None] / 150)
  corners = np.rint(size / 2 * (1 + np.sin(turn))).astype(int)
  return np.stack([texture[r : r + size, c : c + size] for r, c in corners])
