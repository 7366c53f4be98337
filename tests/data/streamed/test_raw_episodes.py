"""Streamed windows of large raw steps: the same from the file as from the parser."""

import os
import re
import sys

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, records, specs, windows
from t2r_seq.data.streamed import raw_episodes
from t2r_seq.records import framing, raw_steps
from tests.data.conftest import FakeModel, spec

STACK = (-2, -1, 0)
LENGTHS = ((9, 3, 14, 2), (6, 20, 8), (5,), (1, 30, 4))
BATCH_SIZE = 4


def structure(mode=None):
  del mode
  raw = {"data_format": "raw", "time_offsets": STACK}
  return specs.TensorSpecStruct(
    {
      "image": spec((3, 64, 64, 1), tf.uint8, "img", **raw),
      "depth": spec((3, 32, 48), tf.float32, "depth", **raw),
      # Too small, not aligned, and no number of numpy's.
      "small": spec((3, 8), tf.uint8, "small", **raw),
      "odd": spec((3, 4097), tf.uint8, "odd", **raw),
      "half": spec((3, 4096), tf.bfloat16, "half", **raw),
      # Names of what is kept beside the paths.
      "length": spec((3,), tf.int64, "count", time_offsets=STACK),
      "record": spec((), tf.int64, "record"),
      "background": spec((64, 64), tf.uint8, "background", data_format="raw"),
      "next": spec((2,), tf.float32, "state", time_offsets=1),
    }
  )


def few(mode=None):
  """Of these two are read from the file: graphs are smaller than of all."""
  paths = ("image", "depth", "length", "record", "next")
  return specs.TensorSpecStruct((path, structure(mode)[path]) for path in paths)


def make_episode(index, length):
  steps = np.arange(length)
  shown = index * 100 + steps
  return {
    "image": np.broadcast_to(
      shown.astype(np.uint8)[:, None, None, None], (length, 64, 64, 1)
    ),
    "depth": np.broadcast_to(shown.astype(np.float32)[:, None, None], (length, 32, 48)),
    "small": np.broadcast_to(shown.astype(np.uint8)[:, None], (length, 8)),
    "odd": np.broadcast_to(shown.astype(np.uint8)[:, None], (length, 4097)),
    "half": tf.cast(
      np.broadcast_to(steps[:, None], (length, 4096)), tf.bfloat16
    ).numpy(),
    "length": shown * 1_000_000,
    "record": np.int64(index),
    "background": np.full((64, 64), index, np.uint8),
    "next": np.stack([np.full(length, index), steps], 1).astype(np.float32),
  }


@pytest.fixture(autouse=True)
def _records_are_long(monkeypatch):
  monkeypatch.setattr(raw_episodes, "_MIN_RECORD_BYTES", 1000)


@pytest.fixture(name="paths", scope="module")
def fixture_paths(tmp_path_factory):
  folder = tmp_path_factory.mktemp("episodes")
  flat = windows.flat_specs(structure())
  index = 0
  for number, lengths in enumerate(LENGTHS):
    rows = [make_episode(index + i, length) for i, length in enumerate(lengths)]
    records.write_records(str(folder / f"{number}.tfrecord"), flat, rows)
    index += len(lengths)
  return str(folder / "*.tfrecord")


def make_dataset(patterns, features=structure, params=None, **kwargs):
  kwargs = {"seed": 5, "cycle_length": 2, "memory_budget": 20_600_000, **kwargs}
  generator = data.DefaultRecordInputGenerator(patterns, BATCH_SIZE, **kwargs)
  generator.set_specification_from_model(
    FakeModel(features=features, labels=lambda mode: {}), specs.ModeKeys.TRAIN
  )
  return generator, generator.create_dataset(specs.ModeKeys.TRAIN, params)


def values(batches):
  return [
    {path: value.numpy() for path, value in features.items()}
    for features, *_ in batches
  ]


def assert_same(got, want):
  assert len(got) == len(want)
  for number, (one, other) in enumerate(zip(got, want, strict=True)):
    assert sorted(one) == sorted(other)
    for path, value in one.items():
      assert value.dtype == other[path].dtype, (number, path)
      np.testing.assert_array_equal(value, other[path], f"batch {number}: {path}")


@pytest.fixture(name="reads")
def fixture_reads(monkeypatch):
  """Counts the records that are read without the parser."""
  found = []
  read = raw_steps.RawSteps.read

  def counting(self, filename, *args):
    found.append((filename, sorted(self.step_bytes)))
    return read(self, filename, *args)

  monkeypatch.setattr(raw_steps.RawSteps, "read", counting)
  return found


@pytest.fixture(name="no_crc")
def fixture_no_crc(monkeypatch):
  monkeypatch.setitem(sys.modules, "google_crc32c", None)
  raw_steps.can_read_raw_steps.cache_clear()
  yield
  raw_steps.can_read_raw_steps.cache_clear()


# Three epochs, and pools of some episodes.
NUM_BATCHES = 3 * sum(max(0, n - 3) for file in LENGTHS for n in file) // BATCH_SIZE


def test_same_batches_as_from_the_parser(paths, reads, request, caplog):
  caplog.set_level("INFO", logger="absl")
  generator, dataset = make_dataset(paths, num_parallel_calls=None)
  got = values(dataset.take(NUM_BATCHES))
  assert len(reads) > 20
  assert all(names == ["depth", "img"] for _, names in reads)
  report = generator.report

  request.getfixturevalue("no_crc")
  reads.clear()
  generator, parsed = make_dataset(paths)
  assert_same(got, values(parsed.take(NUM_BATCHES)))
  assert not reads
  assert "pip install 't2r_seq[crc]'" in caplog.text
  assert 0 < report.pool_bytes <= report.memory_budget


def test_windows_are_what_was_written(paths, reads):
  epoch = NUM_BATCHES // 3
  seen = set()
  for batch in values(make_dataset(paths)[1].take(epoch)):
    for i, index in enumerate(batch["record"]):
      anchor = int(batch["next"][i, 1]) - 1
      shown = index * 100 + anchor + np.array(STACK)
      wanted = np.broadcast_to(shown[:, None, None, None], (3, 64, 64, 1))
      np.testing.assert_array_equal(batch["image"][i], wanted.astype(np.uint8))
      np.testing.assert_array_equal(batch["depth"][i][:, 3, 4], shown)
      seen.add((int(index), anchor))
  assert len(seen) == epoch * BATCH_SIZE
  assert reads


def test_large_steps_only(paths, reads):
  def features(mode):
    return specs.TensorSpecStruct({"image": structure(mode)["image"]})

  batches = values(make_dataset(paths, features)[1].take(5))
  assert all(batch["image"].shape == (BATCH_SIZE, 3, 64, 64, 1) for batch in batches)
  assert {tuple(names) for _, names in reads} == {("img",)}


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_restored_iterator_goes_on_with_the_next_batch(
  paths, tmp_path, reads, policy
):
  _, dataset = make_dataset(
    paths, few, params={"is_checkpointed": True}, on_bad_record=policy
  )
  want = values(dataset.take(NUM_BATCHES // 2 + 6))
  iterator, num_read = iter(dataset), 0
  for stop in (1, 7, NUM_BATCHES // 2):
    while num_read < stop:
      next(iterator)
      num_read += 1
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "at"))
    restored = iter(dataset)
    tf.train.Checkpoint(iterator=restored).restore(path)
    got = values([next(restored) for _ in range(6)])
    assert_same(got, want[num_read : num_read + 6])
  assert reads


def test_one_feature_by_two_paths_goes_through_the_parser(paths, reads):
  def features(mode):
    found = few(mode)
    later = specs.ExtendedTensorSpec.from_spec(found["image"], time_offsets=(0, 1, 2))
    return specs.TensorSpecStruct({"image": found["image"], "later": later})

  for batch in values(make_dataset(paths, features)[1].take(5)):
    np.testing.assert_array_equal(batch["image"][:, 2], batch["later"][:, 0])
  assert not reads


@pytest.mark.parametrize(("min_bytes", "is_raw"), [(200_000, True), (10**6, False)])
def test_short_records_go_through_the_parser(
  paths, reads, monkeypatch, min_bytes, is_raw
):
  monkeypatch.setattr(raw_episodes, "_MIN_RECORD_BYTES", min_bytes)
  assert len(values(make_dataset(paths, few)[1].take(2))) == 2
  assert bool(reads) == is_raw


def test_skipping_gives_the_same_batches(paths, reads):
  got = values(make_dataset(paths, on_bad_record="skip")[1].take(NUM_BATCHES))
  assert len(reads) > 20
  assert_same(values(make_dataset(paths)[1].take(NUM_BATCHES)), got)


def test_compressed_files_go_through_the_parser(tmp_path, reads):
  path = str(tmp_path / "some.tfrecord.gz")
  flat = windows.flat_specs(structure())
  records.write_records(path, flat, [make_episode(0, 12)], compression="GZIP")
  assert len(values(make_dataset(path, few)[1].take(3))) == 3
  assert not reads


@pytest.fixture(name="damaged")
def fixture_damaged(tmp_path):
  """Writes two episodes; returns the file, and where the second one's frame starts."""
  path = str(tmp_path / "some.tfrecord")
  flat = windows.flat_specs(structure())
  records.write_records(path, flat, [make_episode(i, 12) for i in range(2)])
  return path, framing.FRAME_SIZE + len(next(records.iterate_records(path)).data)


@pytest.mark.parametrize(
  ("position", "message"),
  [
    (5_000, "data with a fitting checksum"),
    (100, "data with a fitting checksum"),
    (3, "a length with a fitting checksum"),
  ],
)
def test_damage_is_explained(damaged, reads, position, message):
  path, start = damaged
  generator, dataset = make_dataset(path, few)
  with open(path, "r+b") as file:
    file.seek(start + position)
    byte = file.read(1)[0]
    file.seek(start + position)
    file.write(bytes([byte ^ 0x10]))
  with (
    pytest.raises(
      errors.RecordError, match=rf"record 1 of .*some.*byte {start}.*{message}"
    ),
    generator.explain_failures(),
  ):
    list(dataset.take(20))


def test_a_file_that_was_cut_is_explained(damaged):
  path, start = damaged
  generator, dataset = make_dataset(path, few)
  with open(path, "r+b") as file:
    file.truncate(start + 9_000)
  with (
    pytest.raises(errors.RecordError, match=rf"byte {start}.*the file is truncated"),
    generator.explain_failures(),
  ):
    list(dataset.take(20))


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_file_that_is_replaced_is_an_error_and_no_mixture_of_both(
  tmp_path, reads, policy
):
  path, other = str(tmp_path / "some.tfrecord"), str(tmp_path / "other")
  flat = windows.flat_specs(structure())
  records.write_records(path, flat, [make_episode(i, 20) for i in range(8)])
  # Records of the same lengths, and other values.
  records.write_records(other, flat, [make_episode(i + 8, 20) for i in range(8)])
  generator, dataset = make_dataset(
    path, memory_budget=14_400_000, on_bad_record=policy
  )
  iterator = iter(dataset.take(NUM_BATCHES))
  first = values([next(iterator)])[0]
  assert (first["record"] < 8).all()
  os.replace(other, path)
  with (
    pytest.raises(
      errors.RecordError,
      match=rf"record of {path} \(byte \d+\): .* replaced or written to. Make the",
    ),
    generator.explain_failures(),
  ):
    for element in iterator:
      # What is still delivered was read before.
      (batch,) = values([element])
      assert (batch["record"] < 8).all()
      shown = batch["record"] * 100 + batch["next"][:, 1] - 1
      np.testing.assert_array_equal(batch["depth"][:, -1, 0, 0], shown)


def test_steps_of_another_size_are_explained(tmp_path):
  def features(mode):
    found = structure(mode)
    larger = spec(
      (3, 64, 65, 1), tf.uint8, "img", data_format="raw", time_offsets=STACK
    )
    return specs.TensorSpecStruct({"image": larger, "next": found["next"]})

  path = str(tmp_path / "some.tfrecord")
  flat = windows.flat_specs(structure())
  records.write_records(path, flat, [make_episode(0, 12)])
  with pytest.raises(errors.RecordError, match=r"record 0 of .*image.*4160.*4096"):
    make_dataset(path, features)


# Bad records are left out.

NUM_EPISODES, NUM_STEPS = 6, 11


@pytest.fixture(name="several")
def fixture_several(tmp_path):
  """Writes some episodes; returns the file, and where each one's frame starts."""
  path = str(tmp_path / "several.tfrecord")
  flat = windows.flat_specs(structure())
  rows = [make_episode(i, NUM_STEPS) for i in range(NUM_EPISODES)]
  records.write_records(path, flat, rows)
  return path, [record.offset for record in records.iterate_records(path)]


def read_epochs(path, num_good, **kwargs):
  """Reads two epochs; returns the generator, and windows by number of the episode."""
  per_episode = NUM_STEPS - 3
  generator, dataset = make_dataset(path, few, on_bad_record="skip", **kwargs)
  num_batches = 2 * num_good * per_episode // BATCH_SIZE
  counts = dict.fromkeys(range(NUM_EPISODES), 0)
  for batch in values(dataset.take(num_batches)):
    shown = batch["record"] * 100 + batch["next"][:, 1] - 1
    np.testing.assert_array_equal(batch["depth"][:, -1, 0, 0], shown)
    for index in batch["record"]:
      counts[int(index)] += 1
  return generator, counts


# name: (byte in the frame of episode 2, what is said)
FLIPPED = {
  "in a frame": (5_000, "data with a fitting checksum"),
  "in the proto": (100, "data with a fitting checksum"),
  "in the length": (3, "a length with a fitting checksum"),
}


@pytest.mark.parametrize("name", FLIPPED)
def test_damaged_episodes_are_left_out(several, reads, name):
  path, starts = several
  place, message = FLIPPED[name]
  with open(path, "r+b") as file:
    file.seek(starts[2] + place)
    byte = file.read(1)[0]
    file.seek(starts[2] + place)
    file.write(bytes([byte ^ 0x10]))
  generator, counts = read_epochs(path, NUM_EPISODES - 1)
  assert reads
  assert counts.pop(2) == 0
  assert set(counts.values()) == {2 * (NUM_STEPS - 3)}
  (problem,) = generator.report.problems
  assert (problem.filename, problem.record, problem.offset, problem.kind) == (
    *(path, 2, starts[2]),
    "frame",
  )
  assert message in str(problem)
  report = generator.report.window_report
  assert report.windows == report.episodes * (NUM_STEPS - 3)


def test_the_episode_at_which_a_file_was_cut_is_left_out(several, reads):
  path, starts = several
  with open(path, "r+b") as file:
    file.truncate(starts[5] + 9_000)
  generator, counts = read_epochs(path, NUM_EPISODES - 1)
  assert reads
  assert counts[5] == 0
  (problem,) = generator.report.problems
  assert (problem.record, problem.offset) == (5, starts[5])
  assert "the file is truncated" in str(problem)


def drop_image(features):
  del features["img"]


def shorten_state(features):
  del features["state"].feature[-1]


def shorten_image(features):
  del features["img"].feature[-1]


def cut_a_frame(features):
  features["img"].feature[3].bytes_list.value[0] = b"short"


def spoil_count(features):
  features["count"].feature[3].bytes_list.value.append(b"no number")


# name: (change of episode 1, what is said)
SPOILED = {
  "no frames": (drop_image, r"image \(feature 'img'\): expected"),
  "fewer states": (shorten_state, r"\(feature 'state'\): expected 11 steps.*10 steps"),
  "fewer frames": (shorten_image, r"expected 1[01] steps.*got 1[01] steps"),
  "a short frame": (cut_a_frame, r"image \(feature 'img'\).*5 bytes"),
  "another kind": (spoil_count, r"\(feature 'count'\): expected an int64 list"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_episodes_that_do_not_fit_are_left_out(several, reads, name):
  path, starts = several
  change, message = SPOILED[name]
  rows = [record.data for record in records.iterate_records(path)]
  proto = tf.train.SequenceExample.FromString(rows[1])
  change(proto.feature_lists.feature_list)
  rows[1] = proto.SerializeToString(deterministic=True)
  with tf.io.TFRecordWriter(path) as writer:
    for row in rows:
      writer.write(row)
  generator, counts = read_epochs(path, NUM_EPISODES - 1)
  assert reads
  assert counts.pop(1) == 0
  assert set(counts.values()) == {2 * (NUM_STEPS - 3)}
  found = generator.report.problems
  assert {(p.filename, p.record, p.offset) for p in found} == {(path, 1, starts[1])}
  assert re.search(message, "\n".join(map(str, found)))


def test_too_many_bad_episodes_are_an_error(several):
  path, starts = several
  for start in (starts[2], starts[4]):
    with open(path, "r+b") as file:
      file.seek(start + 5_000)
      file.write(b"damage")
  generator, dataset = make_dataset(path, few, on_bad_record="skip", max_bad_records=1)
  want = rf"max_bad_records: expected at most 1, got one more: record 4 of {path}"
  with pytest.raises(errors.RecordError, match=want), generator.explain_failures():
    list(dataset.take(40))
