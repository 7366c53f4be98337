"""The JSON file: what is saved is read back, what has changed is named."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.statistics import compute_statistics, load_statistics
from t2r_seq.statistics.compute import check_statistics
from t2r_seq.store import EpisodeStore

Spec = specs.ExtendedTensorSpec


def test_file_goes_round(data, tmp_path):
  path = tmp_path / "statistics.json"
  saved = compute_statistics(data.records, path, spec=data.spec, images=True)
  loaded = load_statistics(path)
  assert loaded.to_json() == saved.to_json() == path.read_text()
  assert loaded.lengths == saved.lengths
  for name, found in saved.paths.items():
    again = loaded.paths[name]
    assert again.spec.is_identical_to(found.spec)
    for figure in ("count", "nan", "mean", "std", "min", "max"):
      np.testing.assert_array_equal(getattr(again, figure), getattr(found, figure))
    for fraction, values in found.quantiles.items():
      np.testing.assert_array_equal(again.quantiles[fraction], values)


def test_figures_of_nothing_are_null(tmp_path):
  spec = specs.TensorSpecStruct(x=Spec((2,), tf.float32, is_sequence=True))
  with EpisodeStore.create(tmp_path / "store", spec, allow_nan=True) as writer:
    writer.append_episode({"x": np.asarray([[1, np.nan]], np.float32)})
  found = compute_statistics(tmp_path / "store", tmp_path / "out.json")
  assert json.loads((tmp_path / "out.json").read_text())["paths"]["x"]["mean"] == [
    1.0,
    None,
  ]
  assert np.isnan(load_statistics(tmp_path / "out.json").paths["x"].max[1])
  assert found.paths["x"].std[0] == 0


def test_output_in_a_folder_that_is_not_there(data, tmp_path):
  output = tmp_path / "none" / "out.json"
  want = rf"^statistics: {output}: expected a file in a folder that exists, got no fo"
  with pytest.raises(FileNotFoundError, match=want):
    compute_statistics(data.store, output)
  found = compute_statistics(data.store)
  with pytest.raises(FileNotFoundError, match=f"statistics: {output}: No such file"):
    found.save(output)


def test_file_that_is_not_there(tmp_path):
  want = f"statistics: {tmp_path}/none.json: No such file or directory. `t2r_seq stats "
  with pytest.raises(FileNotFoundError, match=want):
    load_statistics(tmp_path / "none.json")


@pytest.fixture(name="files")
def fixture_files(data, tmp_path):
  """Copies of record files, and their statistics."""
  for index in range(3):
    shutil.copy(data.folder / f"part-{index}.tfrecord", tmp_path)
  path = tmp_path / "statistics.json"
  compute_statistics(f"{tmp_path}/part-*.tfrecord", path, spec=data.spec)
  return tmp_path, path


def remove(folder, data):
  (folder / "part-1.tfrecord").unlink()


def change(folder, data):
  records.write_records(folder / "part-1.tfrecord", data.spec, data.episodes[:9])


def flip(folder, data):
  content = bytearray((folder / "part-1.tfrecord").read_bytes())
  content[len(content) // 2] ^= 1
  (folder / "part-1.tfrecord").write_bytes(content)


def add(folder, data):
  shutil.copy(folder / "part-1.tfrecord", folder / "part-9.tfrecord")


CHANGES = {
  remove: "part-1.tfrecord is gone",
  change: "part-1.tfrecord has changed",
  flip: "part-1.tfrecord has changed",
  add: "part-9.tfrecord is new",
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_files_are_named(files, data, name):
  folder, path = files
  pattern = f"{folder}/part-*.tfrecord"
  assert check_statistics(path, pattern).num_items == 30
  name(folder, data)
  with pytest.raises(errors.SpecError, match=CHANGES[name]):
    check_statistics(path, pattern)


def test_copied_files_are_the_same(files, tmp_path):
  folder, path = files
  other = tmp_path / "elsewhere"
  other.mkdir()
  for index in range(3):
    shutil.copyfile(folder / f"part-{index}.tfrecord", other / f"part-{index}.tfrecord")
  check_statistics(path, f"{other}/*.tfrecord")


def test_store_fingerprint_changes_on_growth_not_on_merge(data, tmp_path):
  folder, path = tmp_path / "store", tmp_path / "statistics.json"
  shutil.copytree(data.store, folder)
  compute_statistics(folder, path)
  EpisodeStore.merge(folder)
  check_statistics(path, folder)
  with EpisodeStore.append(folder, segment="a") as writer:
    writer.append_episode(EpisodeStore(data.store).episode(0))
  with pytest.raises(
    errors.SpecError, match=r"another: episodes has changed\. Compute"
  ):
    check_statistics(path, folder)


FILES = {
  "no JSON": ("{", "got no JSON: Expecting property name"),
  "no text": ("\udcff", "got no JSON: 'utf-8' codec can't decode"),
  "other JSON": ('{"mean": 1}', "got other JSON"),
  "a list": ("[1]", "got other JSON"),
  "another file": ('{"format": "x", "version": 1}', "got format 'x', version 1"),
  "newer": (
    '{"format": "t2r_seq.statistics", "version": 9}',
    "version 9. Upgrade t2r_seq",
  ),
  "a part": ('{"format": "t2r_seq.statistics", "version": 1}', "KeyError: 'transform'"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_none(name, tmp_path):
  text, match = FILES[name]
  (tmp_path / "x.json").write_bytes(text.encode(errors="surrogateescape"))
  with pytest.raises(errors.SpecError, match=rf"load_statistics: .*x\.json.*{match}"):
    load_statistics(tmp_path / "x.json")


UNFIT = {
  "a size": ("mean", [1.0], r"mean: expected \(2,\) numbers without .*, got \(1,\)"),
  "a quantile's size": (
    "quantiles",
    {"0.5": 1},
    r"quantile 0\.5: expected \(2,\) numbers w",
  ),
  "another shape": ("count", [3, 3, 3], r"expected numbers of \(2,\) float32, got \(3"),
  "a count below 0": ("nan", [0, -1], r"nan: expected none below 0, got \[0, -1\]"),
  "a spread without end": (
    "std",
    [np.inf, 1],
    r"std: expected \(2,\) numbers without infinities, got \(2,\) \[inf",
  ),
  "a spread below 0": ("std", [-3, 1], r"std: expected none below 0, got \[-3"),
  "no range": ("min", [9, 9], "min: expected none above max"),
  "an endless count": ("count", [float("inf"), 3], "OverflowError"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_figures_that_cannot_be(name, tmp_path):
  spec = specs.TensorSpecStruct(x=Spec((2,), tf.float32, is_sequence=True))
  with EpisodeStore.create(tmp_path / "store", spec) as writer:
    writer.append_episode({"x": np.asarray([[1, 2], [3, 5], [4, 4]], np.float32)})
  path = tmp_path / "x.json"
  compute_statistics(tmp_path / "store", path)
  values = json.loads(path.read_text())
  field, changed, match = UNFIT[name]
  assert field in values["paths"]["x"]
  values["paths"]["x"][field] = changed
  path.write_text(json.dumps(values))
  with pytest.raises(errors.SpecError, match=rf"load_statistics: {path}: .*{match}"):
    load_statistics(path)


def test_file_that_is_nested_without_end(tmp_path):
  (tmp_path / "x.json").write_text("[" * 100_000)
  with pytest.raises(
    errors.SpecError, match=r"load_statistics: .*got no JSON: maximum"
  ):
    load_statistics(tmp_path / "x.json")
