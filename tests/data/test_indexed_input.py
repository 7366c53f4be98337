"""The record input generator by the files' index, and in order without one."""

from __future__ import annotations

import itertools
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.data import DefaultRecordInputGenerator, EpisodesInputGenerator
from t2r_seq.records.index import read_index
from t2r_seq.records.index_file import index_path

LENGTHS = ((5, 1, 9), (4, 12))


def write_files(kit, folder):
  names = [
    kit.write_episodes(folder / f"{i}.tfrecord", lengths, 10 * i)
    for i, lengths in enumerate(LENGTHS)
  ]
  records.write_index(names)
  return names


@pytest.fixture(name="files")
def fixture_files(kit, tmp_path):
  """Of one test alone, which may change them."""
  return write_files(kit, tmp_path)


@pytest.fixture(scope="module", name="in_order")
def fixture_in_order(kit, tmp_path_factory):
  """The batches of an evaluation of such files without their index."""
  files = write_files(kit, tmp_path_factory.mktemp("in_order"))
  return windows_of(kit, files, "eval")


def generator(kit, files, **options):
  made = DefaultRecordInputGenerator(files, batch_size=4, **options)
  return made, kit.FakeModel()


def windows_of(kit, files, mode, start_step=0, count=None, **options):
  made, model = generator(kit, files, **options)
  made.set_specification_from_model(model, mode)
  dataset = made.create_dataset(mode, start_step=start_step)
  batches = [
    {
      "state": features.state.numpy(),
      "image": features.image.numpy(),
      "task": features.task.numpy(),
      "next": labels["next"].numpy(),
    }
    for features, labels in (dataset if count is None else dataset.take(count))
  ]
  return batches


def assert_equal(got, want):
  assert len(got) == len(want)
  for one, other in zip(got, want, strict=True):
    for path in other:
      np.testing.assert_array_equal(one[path], other[path], err_msg=path)


def test_report_is_that_of_reading_without_the_index(kit, files):
  reports = {}
  for index in ("require", None):
    made, model = generator(kit, files, index=index)
    made.set_specification_from_model(model, "eval")
    for _ in made.create_dataset("eval"):
      pass
    reports[index] = made.report
  assert reports["require"].too_short == 1
  assert str(reports["require"]) == str(reports[None])


@pytest.mark.parametrize("index", ["auto", "require"])
def test_evaluation_is_as_without_the_index(index, kit, files, in_order):
  assert_equal(windows_of(kit, files, "eval", index=index), in_order)
  assert in_order[-1]["task"].shape[0] == 2  # The remainder is kept, too.


def test_training_shows_all_windows_and_resumes_at_the_next_batch(kit, files, in_order):
  want = in_order
  num_batches = sum(len(batch["task"]) for batch in want) // 4
  options = {"index": "require", "seed": 7}
  got = windows_of(kit, files, "train", count=3 * num_batches, **options)
  every = {tuple(row.ravel()) for batch in want for row in batch["state"]}
  for epoch in range(3):
    part = got[epoch * num_batches : (epoch + 1) * num_batches]
    rows = [tuple(row.ravel()) for batch in part for row in batch["state"]]
    assert len(set(rows)) == len(rows) == 4 * num_batches and set(rows) <= every
  rest = windows_of(kit, files, "train", 7, count=num_batches, **options)
  assert_equal(rest, got[7 : 7 + num_batches])
  unshuffled = windows_of(
    kit, files, "train", count=2, index="require", shuffle_buffer_size=0
  )
  assert_equal(unshuffled, want[:2])


def test_counts_come_from_the_index(kit, files, monkeypatch):
  made, model = generator(kit, files)
  made.set_specification_from_model(model, "eval")
  want = made.count_examples()
  made, model = generator(kit, files, index="require")
  made.set_specification_from_model(model, "eval")
  monkeypatch.setattr(tf.data, "TFRecordDataset", None)
  assert made.count_examples() == want == sum(max(0, n - 3) for n in (5, 1, 9, 4, 12))


def test_auto_reads_in_order_where_an_index_is_missing(kit, files):
  os.remove(index_path(files[1]))
  want = windows_of(kit, files, "train", count=5, seed=3)
  assert_equal(windows_of(kit, files, "train", count=5, seed=3, index="auto"), want)
  with pytest.raises(
    errors.RecordError, match=r"1\.tfrecord: expected an index at .*Ru"
  ):
    windows_of(kit, files, "train", index="require")


@pytest.mark.parametrize("index", ["auto", "require"])
def test_stale_index_is_refused(index, kit, files):
  kit.write_episodes(files[0], [20])
  with pytest.raises(errors.RecordError, match=r"0\.tfrecord: .*Run: t2r_seq index"):
    windows_of(kit, files, "eval", index=index)
  assert windows_of(kit, files, "eval")


def test_index_rejects_options_that_it_cannot_read(kit, files, tmp_path):
  with pytest.raises(
    errors.SpecError, match=r"index: expected None, .*Did you mean 'au"
  ):
    DefaultRecordInputGenerator(files, index="autom")
  two = {"a": files[:1], "b": files[1:]}
  spec = {
    key: kit.spec((2,), tf.float32, "state", time_offsets=0, dataset_key=key)
    for key in "ab"
  }
  made = DefaultRecordInputGenerator(two, batch_size=2, index="require")
  made.set_feature_specifications(spec)
  made.set_label_specifications({})
  with pytest.raises(
    errors.SpecError, match=r"expected files of one dataset, got thos"
  ):
    made.create_dataset("eval")


def test_failures_are_explained(kit, files):
  made, model = generator(kit, files, index="require")
  made.set_specification_from_model(model, "eval")
  dataset = made.create_dataset("eval")
  kit.write_episodes(files[1], [3])
  with (
    pytest.raises(errors.RecordError, match=r"1\.tfrecord: .*Run: t2r_seq index"),
    made.explain_failures(),
  ):
    list(dataset)


EXAMPLE = {
  "n": specs.ExtendedTensorSpec((), tf.int64, "n"),
  "image": specs.ExtendedTensorSpec((4, 4, 3), tf.uint8, "img", data_format="png"),
}


@pytest.fixture(scope="module", name="examples")
def fixture_examples(tmp_path_factory):
  folder, names = tmp_path_factory.mktemp("examples"), []
  for numbers in (range(20), (), range(20, 45), range(45, 47)):
    names.append(str(folder / f"{len(names)}.tfrecord"))
    rows = [{"n": n, "image": np.full((4, 4, 3), n, np.uint8)} for n in numbers]
    records.write_records(names[-1], EXAMPLE, rows)
  records.write_index(names)
  return names


def made_for(path, spec, **options):
  made = DefaultRecordInputGenerator(path, index="require", seed=3, **options)
  made.set_feature_specifications(spec)
  made.set_label_specifications({})
  return made


def flatten(batches):
  return list(itertools.chain.from_iterable(batches))


def numbers_of(dataset):
  found = []
  for features, _ in dataset:
    images = features["image"][:, 0, 0, 0]
    np.testing.assert_array_equal(images, features["n"])
    found.append(features["n"].numpy().tolist())
  return found


def test_examples_are_shuffled_over_all_files_resumed_and_sharded(examples):
  made = made_for(examples, EXAMPLE, batch_size=5)
  assert flatten(numbers_of(made.create_dataset("eval"))) == [*range(47)]
  assert made.count_examples() == 47
  whole = numbers_of(made.create_dataset("train").take(18))
  epochs = [flatten(whole[:9]), flatten(whole[9:])]
  for epoch in epochs:
    assert len({*epoch}) == 45 and epoch != sorted(epoch)
  assert epochs[0] != epochs[1]
  for start in (3, 9, 17):
    rest = made.create_dataset("train", start_step=start).take(18 - start)
    assert numbers_of(rest) == whole[start:]
  assert made.reads_shards
  shards = []
  for pipeline in range(2):
    context = tf.distribute.InputContext(2, pipeline, 2)
    dataset = made.create_dataset("train", batch_size=4, input_context=context)
    shards += flatten(numbers_of(dataset.take(11)))
  assert len(shards) == len({*shards}) == 44


def test_examples_with_sequences(tmp_path):
  spec = {
    "n": specs.ExtendedTensorSpec((), tf.int64, "n"),
    "s": specs.ExtendedTensorSpec((), tf.float32, "s", is_sequence=True),
  }
  rows = [{"n": n, "s": np.full(1 + n % 3, n, np.float32)} for n in range(9)]
  path = str(tmp_path / "a.tfrecord")
  records.write_records(path, spec, rows)
  records.write_index(path)
  for features, _ in made_for(path, spec, batch_size=3).create_dataset("eval"):
    assert features["s"].shape == (3, 3)
    np.testing.assert_array_equal(features["s"][:, 0], features["n"])


X = specs.ExtendedTensorSpec((2,), tf.float32, "x", is_sequence=True)
NOW = {"x": specs.ExtendedTensorSpec((2,), tf.float32, "x", time_offsets=0)}


def write(path, lengths, spec=None):
  episodes = [{"x": np.ones([n, 2], np.float32)} for n in lengths]
  records.write_records(str(path), spec or {"x": X}, episodes)
  return str(path)


def test_count_leaves_out_episodes_without_steps(tmp_path):
  name = write(tmp_path / "a", [2, 0, 3])
  records.write_index(name)
  made = made_for(name, NOW, batch_size=1, episodes=[1, 2])
  assert len([*made.create_dataset("eval")]) == made.count_examples() == 3


@pytest.mark.parametrize("kind", [DefaultRecordInputGenerator, EpisodesInputGenerator])
def test_splits_by_the_names_of_files(kind, tmp_path):
  for split, lengths in (("eval", [1, 0, 2]), ("train", [3, 0, 4])):
    write(tmp_path / f"a-{split}.tfrecord-00000-of-00001", lengths)
  path = str(tmp_path / "a-*")
  records.write_index(path)
  for options, want in (({}, 7), ({"episodes": [0, 5]}, 4)):
    if kind is DefaultRecordInputGenerator:
      options = {"index": "require", **options}
    elif "episodes" in options:  # Numbers of those that have steps.
      options = {"episodes": [0, 3]}
    made = kind(path, batch_size=1, split="train", **options)
    made.set_feature_specifications(NOW)
    made.set_label_specifications({})
    assert len([*made.create_dataset("eval")]) == want


def test_optional_features_that_the_first_record_lacks(tmp_path):
  more = specs.ExtendedTensorSpec((), tf.float32, "more", is_optional=True)
  stored = specs.ExtendedTensorSpec.from_spec(more, is_sequence=True)
  name = write(tmp_path / "a", [2, 3], {"x": X, "more": stored})
  records.write_index(name)
  more = specs.ExtendedTensorSpec.from_spec(more, time_offsets=0)
  made = made_for(name, {**NOW, "more": more}, batch_size=1)
  assert [*made.create_dataset("eval").element_spec[0]] == ["x"]


REFUSED = {
  "a compressed file": ("a.tfrecord.gz", [3], r"a\.tfrecord\.gz: expected a file with"),
  "no record": ("a.tfrecord", [], r"expected records, got none in 1 file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_cannot_be_read_by_an_index(name, tmp_path):
  file, lengths, message = REFUSED[name]
  path = write(tmp_path / file, lengths)
  records.write_index(path)
  with pytest.raises(errors.RecordError, match=message):
    made_for(path, NOW, batch_size=2).create_dataset("eval")


@pytest.mark.parametrize("spec", [NOW, {"n": EXAMPLE["n"]}])
def test_damage_after_indexing_is_found_by_the_checksum(spec, tmp_path, examples):
  path = tmp_path / "a.tfrecord"
  if spec is NOW:
    write(path, [5, 6])
  else:
    shutil.copy(examples[0], path)
  records.write_index(str(path))
  content, stat = bytearray(path.read_bytes()), os.stat(path)
  content[60] ^= 4
  path.write_bytes(content)
  os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
  made = made_for(str(path), spec, batch_size=2)
  with (
    pytest.raises(errors.RecordError, match=r"record 0 of .*flipped bits in its"),
    made.explain_failures(),
  ):
    list(made.create_dataset("train").take(30))


def test_no_flipped_byte_is_read(tmp_path):
  path = tmp_path / "a.tfrecord"
  write(path, [2, 1])
  records.write_index(str(path))
  index = read_index(str(path))
  content = path.read_bytes()
  assert len(index.read_many([1, 0])) == 2
  for place in range(len(content)):
    damaged = bytearray(content)
    damaged[place] ^= 1 << place % 8
    path.write_bytes(damaged)
    with pytest.raises(errors.RecordError, match=r"a\.tfrecord"):
      index.read_many([1, 0])


def test_thousand_files(tmp_path):
  names = [write(tmp_path / f"{number}.tfrecord", [2]) for number in range(1000)]
  records.write_index(names)
  dataset = made_for(names, NOW, batch_size=8).create_dataset("train")
  assert len(next(iter(dataset))[0]["x"]) == 8
