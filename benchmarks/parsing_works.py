"""Records that are examples as they are, and the pipelines one would write by hand."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.measure import Round, Run
from t2r_seq import data, records, specs

_AUTOTUNE = tf.data.AUTOTUNE
Spec = specs.ExtendedTensorSpec

FEATURES: dict[str, dict[str, Spec]] = {
  # Tensor2Robot's way: the stack is stored.
  "raw": {"image": Spec((4, 96, 96, 3), tf.uint8, "image", data_format="raw")},
  "jpeg": {"image": Spec((4, 128, 128, 3), tf.uint8, "image", data_format="jpeg")},
  "state": {"observation": Spec((17,), tf.float32, "observation")},
}
LABELS = {"action": Spec((6,), tf.float32, "action")}
_ACTION = tf.io.FixedLenFeature([6], tf.float32)


@dataclasses.dataclass(frozen=True)
class ParsingWork:
  """Records of one kind, to be read in batches.

  Attributes:
    folder: of the files.
    kind: one of `FEATURES`.
    num_files: how many there are.
    num_records: of a file.
    batch_size: B.
    num_batches: read in a round.
    shuffle_buffer_size: records.
  """

  folder: str
  kind: str
  num_files: int
  num_records: int
  batch_size: int
  num_batches: int
  shuffle_buffer_size: int = 1000

  @property
  def pattern(self) -> str:
    """Matches the files."""
    return os.path.join(self.folder, f"{self.kind}-*.tfrecord")


def write(work: ParsingWork) -> None:
  """Writes the files; those of many records repeat some."""
  rng = np.random.default_rng(0)
  spec = {**FEATURES[work.kind], **LABELS}
  distinct = [
    records.encode_example(spec, _random(spec, rng))
    for _ in range(min(64, work.num_records))
  ]
  for number in range(work.num_files):
    path = os.path.join(work.folder, f"{work.kind}-{number:04d}.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
      for i in range(work.num_records):
        writer.write(distinct[i % len(distinct)])


def _random(spec: dict[str, Spec], rng: np.random.Generator) -> dict[str, Any]:
  return {
    path: rng.integers(0, 256, s.shape, np.uint8)
    if s.dtype == tf.uint8
    else rng.normal(size=s.shape).astype(np.float32)
    for path, s in spec.items()
  }


def make_generator(
  work: ParsingWork, **options: Any
) -> data.DefaultRecordInputGenerator:
  """Returns our generator of the records, set up as a model would."""
  generator = data.DefaultRecordInputGenerator(
    work.pattern, work.batch_size, work.shuffle_buffer_size, seed=1, **options
  )
  generator.set_feature_specifications(FEATURES[work.kind], FEATURES[work.kind])
  generator.set_label_specifications(LABELS, LABELS)
  return generator


def by_hand(work: ParsingWork) -> tf.data.Dataset:
  """What one writes without a library: the same order, buffer and threads."""
  files = tf.data.Dataset.list_files(work.pattern, seed=1)
  serialized = files.interleave(
    tf.data.TFRecordDataset,
    cycle_length=min(8, work.num_files),
    num_parallel_calls=min(8, work.num_files),
    deterministic=True,
  )
  batches = (
    serialized.shuffle(work.shuffle_buffer_size, seed=1)
    .repeat()
    .batch(work.batch_size, drop_remainder=True)
  )
  parsed = batches.map(_PARSERS[work.kind], _AUTOTUNE, deterministic=True)
  return parsed.prefetch(_AUTOTUNE)


def _parse_raw(serialized: tf.Tensor) -> Any:
  shape = FEATURES["raw"]["image"].shape
  features = {"image": tf.io.FixedLenFeature([], tf.string), "action": _ACTION}
  parsed = tf.io.parse_example(serialized, features)
  pixels = tf.io.decode_raw(parsed["image"], tf.uint8)
  return {"image": tf.reshape(pixels, [-1, *shape])}, {"action": parsed["action"]}


def _parse_jpeg(serialized: tf.Tensor) -> Any:
  shape = FEATURES["jpeg"]["image"].shape
  features = {"image": tf.io.FixedLenFeature([4], tf.string), "action": _ACTION}
  parsed = tf.io.parse_example(serialized, features)
  encoded = tf.reshape(parsed["image"], [-1])
  images = tf.map_fn(tf.io.decode_jpeg, encoded, fn_output_signature=tf.uint8)
  return {"image": tf.reshape(images, [-1, *shape])}, {"action": parsed["action"]}


def _parse_state(serialized: tf.Tensor) -> Any:
  observation = tf.io.FixedLenFeature([17], tf.float32)
  features = {"observation": observation, "action": _ACTION}
  parsed = tf.io.parse_example(serialized, features)
  return {"observation": parsed["observation"]}, {"action": parsed["action"]}


_PARSERS = {"raw": _parse_raw, "jpeg": _parse_jpeg, "state": _parse_state}


def deliver(dataset: tf.data.Dataset, num_batches: int) -> Run:
  """Makes the run that draws batches, once the first has come."""
  dataset = dataset.take(1 + num_batches)

  def run() -> Round:
    batches: Iterator[Any] = iter(dataset)
    next(batches)
    return lambda: sum(len(tf.nest.flatten(batch)[0]) for batch in batches)

  return run
