"""The record input generator by the files' index, and in order without one."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records
from t2r_seq.data import DefaultRecordInputGenerator
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


def test_the_report_is_that_of_reading_without_the_index(kit, files):
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
def test_a_stale_index_is_refused(index, kit, files):
  kit.write_episodes(files[0], [20])
  with pytest.raises(errors.RecordError, match=r"0\.tfrecord: .*Run: t2r_seq index"):
    windows_of(kit, files, "eval", index=index)
  assert windows_of(kit, files, "eval")


def test_what_cannot_be_read_by_an_index(kit, files, tmp_path):
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
