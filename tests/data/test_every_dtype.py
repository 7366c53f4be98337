"""Every dtype, as steps and as a feature of the episode, by every way to windows."""

from __future__ import annotations

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, records, replay, specs, store, windows
from t2r_seq.data.streams import streamed_windows
from t2r_seq.specs import ExtendedTensorSpec as Spec

DTYPES = (
  *(tf.bool, tf.int8, tf.int16, tf.int32, tf.int64),
  *(tf.uint8, tf.uint16, tf.uint32, tf.uint64),
  *(tf.float16, tf.bfloat16, tf.float32, tf.float64),
  *(tf.complex64, tf.complex128, tf.string),
)
OFFSETS = (-2, 0, 1)
LENGTHS = (1, 4, 7)
# Windows of one episode come together, too.
BATCH_SIZE = 8


def _values(dtype, shape, rng):
  if dtype == tf.string:
    return rng.integers(0, 10**6, shape).astype("S8").astype(object)
  if dtype == tf.bool:
    return rng.random(shape) < 0.5
  if dtype.is_integer:
    low, high = dtype.limits
    return rng.integers(low, high, shape, dtype.as_numpy_dtype, endpoint=True)
  return rng.normal(size=shape).astype(dtype.as_numpy_dtype)


SPEC = specs.TensorSpecStruct()
for _dtype in DTYPES:
  _name = _dtype.name
  SPEC[f"step/{_name}"] = Spec((3, 2), _dtype, f"s_{_name}", time_offsets=OFFSETS)
  SPEC[f"episode/{_name}"] = Spec((), _dtype, f"e_{_name}")
# Large enough to be gathered in the graph by a dataset of a replay.
SPEC["wide"] = Spec((3, 1500), tf.uint16, "wide", time_offsets=OFFSETS)
FLAT = windows.flat_specs(SPEC)


def _episodes():
  rng = np.random.default_rng(0)
  episodes = []
  for num_steps in LENGTHS:
    episodes.append({})
    for path, spec in FLAT.items():
      values = _values(spec.dtype, (num_steps, *spec.shape), rng)
      episodes[-1][path] = values if spec.is_sequence else values[0]
  return episodes


def _bytes(value):
  value = np.asarray(value)
  as_bytes = str(value.tolist()).encode() if value.dtype == object else value.tobytes()
  return str(value.dtype).encode(), value.shape, as_bytes


def _counted(batches):
  """Counts windows that are the same in every bit."""
  counts = collections.Counter()
  for batch in batches:
    by_path = {path: np.asarray(value) for path, value in sorted(batch.items())}
    for i in range(len(by_path["wide"])):
      counts[tuple((path, _bytes(all_[i])) for path, all_ in by_path.items())] += 1
  return counts


def _expected(padding):
  """The windows as an index into arrays, and nothing else."""
  made = []
  for episode, num_steps in zip(_episodes(), LENGTHS, strict=True):
    for t in range(num_steps):
      places = np.array(OFFSETS) + t
      real = (places >= 0) & (places < num_steps)
      if padding == "drop" and not real.all():
        continue
      window = {}
      for path, spec in SPEC.items():
        value = episode[path]
        if spec.time_offsets is not None:
          value = value[np.clip(places, 0, num_steps - 1)]
          if padding == "zero":
            value[~real] = b"" if spec.dtype == tf.string else 0
        window[path] = np.asarray(value)[np.newaxis]
      made.append(window)
  return _counted(made)


def _write_store(folder):
  with store.EpisodeStore.create(folder, FLAT) as writer:
    for episode in _episodes():
      writer.append_episode(episode)


def _store(order):
  def read(folder, padding):
    _write_store(folder / "store")
    return data.StoreWindowLoader(
      folder / "store", SPEC, BATCH_SIZE, order, padding=padding, drop_remainder=False
    ).dataset()

  return read


def _numpy(folder, padding):
  _write_store(folder / "store")
  return data.StoreWindowLoader(
    folder / "store", SPEC, BATCH_SIZE, padding=padding, drop_remainder=False
  ).numpy_batches()


def _parsed(folder):
  records.write_records(str(folder / "a"), FLAT, _episodes())
  parse_fn = records.create_parse_tf_example_fn(FLAT)
  return tf.data.TFRecordDataset(str(folder / "a")).map(parse_fn)


def _dataset(folder, padding):
  return windows.windows(_parsed(folder), SPEC, padding=padding).batch(BATCH_SIZE)


def _streamed(folder, padding):
  return streamed_windows(_parsed(folder), SPEC, BATCH_SIZE, seed=1, padding=padding)


def _indexed(folder, padding):
  records.write_records(str(folder / "a"), FLAT, _episodes())
  records.write_index(str(folder / "a"), FLAT)
  options = {"batch_size": BATCH_SIZE, "padding": padding, "mode": "eval"}
  return data.windows_of(str(folder / "a"), SPEC, format="tfrecord", **options)


def _replayed(padding, **options):
  buffer = replay.ReplayBuffer(SPEC, 50, seed=0, padding=padding, **options)
  with buffer.writer() as writer:
    for episode, num_steps in zip(_episodes(), LENGTHS, strict=True):
      for t in range(num_steps):
        writer.append(
          {
            path: episode[path][t] if FLAT[path].is_sequence else episode[path]
            for path in episode
          }
        )
      writer.end_episode()
  return buffer


def _sampled(_, padding):
  buffer = _replayed(padding, sampler=replay.Fifo(), max_times_sampled=1)
  return [buffer.sample(buffer.counters.num_items)]


WAYS = {
  "store, sequential": _store("sequential"),
  "store, global": _store("global"),
  "store, quasi_random": _store("quasi_random"),
  "numpy": _numpy,
  "dataset": _dataset,
  "streamed": _streamed,
  "index": _indexed,
  "replay": _sampled,
}


# Under 'drop' there are some of the windows of 'repeat', and no others. What pads is
# one thing for all dtypes: each way meets one form of it.
@pytest.mark.parametrize(
  "way, padding", zip(WAYS, itertools.cycle(["repeat", "zero"]), strict=False)
)
def test_windows_are_the_same(way, padding, tmp_path):
  assert _counted(WAYS[way](tmp_path, padding)) == _expected(padding)


@pytest.mark.parametrize("padding", ["drop", "zero"])
def test_dataset_of_a_replay(padding):
  batches = _replayed(padding).dataset(BATCH_SIZE).take(20)
  assert set(_counted(batches)) == set(_expected(padding))
