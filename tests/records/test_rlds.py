"""RLDS episodes straight from the files that TFDS wrote, and by way of TFDS."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs, windows
from t2r_seq.records.check import examine_records, find_bad_record
from t2r_seq.records.files import get_data_format_and_filenames
from t2r_seq.records.index import read_index
from t2r_seq.records.protos import RecordContents
from tests.records import rlds_data

Spec = specs.ExtendedTensorSpec
F32 = tf.float32
SPEC = specs.TensorSpecStruct(sorted(rlds_data.SPEC.items()))


def check_equal(got: Any, want: dict[str, np.ndarray]) -> None:
  """Compares keys, dtypes and values; JPEGs of one color come back a little off."""
  assert list(got) == sorted(want)
  for path, array in want.items():
    value = got[path].numpy()
    assert np.asarray(value).dtype == array.dtype or array.dtype == object, path
    tolerance = 3 if path == "observation/image" else 0
    if array.dtype.kind in "fiu":
      np.testing.assert_allclose(value, array, atol=tolerance, rtol=0, err_msg=path)
    else:
      np.testing.assert_array_equal(value, array, err_msg=path)


def parsed(spec: Any, batch_size: int | None = None) -> list[Any]:
  _, files = get_data_format_and_filenames(rlds_data.FILES)
  dataset = records.record_dataset(files)
  if batch_size:
    dataset = dataset.batch(batch_size)
  return list(records.serialized_to_parsed(dataset, spec))


def test_every_kind_of_feature_is_read() -> None:
  episodes = parsed(SPEC)
  assert len(episodes) == 2
  for number, episode in zip(rlds_data.EPISODES, episodes, strict=True):
    check_equal(episode, rlds_data.values(number))


def test_batches_are_padded_and_counted() -> None:
  spec = specs.add_sequence_length_specs(SPEC)
  (batch,) = parsed(spec, batch_size=2)
  for row, number in enumerate(rlds_data.EPISODES):
    steps = rlds_data.NUM_STEPS[number]
    for path, array in rlds_data.values(number).items():
      value = batch[path][row].numpy()
      if SPEC[path].is_sequence:
        assert batch[f"{path}_length"][row] == steps
        assert len(value) == 5
        assert not np.any(value[steps:] != np.zeros([], value.dtype)) or (
          value.dtype == object
        )
        value = value[:steps]
      if path != "observation/image":
        np.testing.assert_array_equal(value, array, err_msg=path)


def test_writer_is_the_inverse() -> None:
  want = rlds_data.values(0)
  serialized = records.encode_example(SPEC, want)
  _, files = get_data_format_and_filenames(rlds_data.FILES)
  genuine = RecordContents(next(iter(records.record_dataset(files))).numpy())
  written = RecordContents(serialized)
  assert not written.steps
  assert sorted(written.context) == sorted(genuine.context)
  for name, feature in genuine.context.items():
    if name != "steps/observation/image":  # Other encoders write other bytes.
      assert len(written.context[name].bytes_list.value) == len(
        feature.bytes_list.value
      )
    if not feature.HasField("bytes_list"):
      assert written.context[name] == feature, name
  check_equal(records.create_parse_tf_example_fn(SPEC)(serialized), want)


def test_absent_optionals_get_the_steps_of_the_others() -> None:
  spec = specs.TensorSpecStruct(
    state=Spec((3,), F32, "observation/state", is_sequence=True),
    force=Spec((2,), F32, "observation/force", is_sequence=True, is_optional=True),
  )
  episodes = parsed(records.rlds_specs(spec))
  assert [episode["force"].shape for episode in episodes] == [(5, 2), (3, 2)]


NAMES = {
  "a name": (Spec((3,), F32, "observation/state", is_sequence=True), "steps/"),
  "the whole name": (Spec((3,), F32, "steps/observation/state", is_sequence=True), ""),
  "windowed": (Spec((2, 3), F32, "observation/state", time_offsets=(-1, 0)), "steps/"),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_steps(name: str) -> None:
  spec, prefix = NAMES[name]
  got = records.rlds_specs({"x": spec})["x"]
  want = Spec(
    **{**spec.fields(), "name": f"{prefix}{spec.name}", "is_concatenated": True}
  )
  assert got.is_identical_to(want)


def test_names_of_the_rest() -> None:
  given = windows.add_mask_specs(
    {
      "observation/state": Spec((2, 3), F32, time_offsets=(0, 1)),
      "episode_metadata/goal": Spec((2,), F32),
    }
  )
  got = records.rlds_specs(given)
  assert got["observation/state"].name == "steps/observation/state"
  goal = Spec((2,), F32, "episode_metadata/goal")
  assert got["episode_metadata/goal"].is_identical_to(goal)
  mask = "observation/state_mask"
  assert got[mask].is_identical_to(given[mask])


def _one(**fields: Any) -> dict[str, Spec]:
  given = {"is_sequence": True, "is_concatenated": True, **fields}
  return {"x": Spec(given.pop("shape", (3,)), F32, "steps/observation/state", **given)}


REFUSED = {
  "no sequence": (
    _one(is_sequence=False),
    "x: expected a sequence where the steps are concatenated, got one value per rec",
  ),
  "varlen": (_one(varlen_default_value=0.0), "got steps of varying length"),
  "no values": (
    _one(shape=(0,)),
    r"x: expected steps with values, got none in shape \(0,\)\. Leave the spec out",
  ),
  "both layouts": (
    {**_one(), "y": Spec((), F32, "reward", is_sequence=True)},
    "y: expected concatenated steps, as x has, got one list for each step",
  ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_specs_that_no_record_has_are_refused(name: str) -> None:
  spec, message = REFUSED[name]
  with pytest.raises(errors.SpecError, match=message):
    records.create_parse_tf_example_fn(spec)


MISFITS = {
  "another shape": (
    _one(shape=(4,)),
    r"x \(feature 'steps/observation/state'\): expected 4 values for shape \(4,\), got "
    "3 values at step 3",
  ),
  "missing": (
    records.rlds_specs({"x": Spec((3,), F32, "observation/stat", is_sequence=True)}),
    "expected a feature 'steps/observation/stat' in a tf.train.Example, got a record "
    "without it. Did you mean 'steps/observation/state'",
  ),
  "another kind": (
    records.rlds_specs({"x": Spec((), F32, "is_first", is_sequence=True)}),
    "expected a float list for dtype float32, got an int64 list of 1 value at step 0",
  ),
  "lists of steps": (
    {"x": Spec((3,), F32, "steps/observation/state", is_sequence=True)},
    "It is a context feature: drop is_sequence",
  ),
}


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("name", MISFITS)
def test_records_that_do_not_fit_fail_and_are_explained(
  name: str, batch_size: int | None
) -> None:
  spec, message = MISFITS[name]
  with pytest.raises(tf.errors.InvalidArgumentError):
    parsed(spec, batch_size)
  with pytest.raises(errors.RecordError, match=message):
    raise find_bad_record(rlds_data.FILES, spec)


def test_sequence_example_is_no_episode_without_steps(tmp_path: pathlib.Path) -> None:
  path = str(tmp_path / "a.tfrecord")
  spec = {"x": Spec((3,), F32, "steps/x", is_sequence=True)}
  records.write_records(path, spec, [{"x": np.zeros((4, 3), np.float32)}])
  wrong = records.rlds_specs(spec)
  with pytest.raises(tf.errors.InvalidArgumentError, match="at least one step"):
    list(records.serialized_to_parsed(records.record_dataset([path]), wrong))
  with pytest.raises(errors.RecordError, match="drop is_concatenated"):
    raise find_bad_record(path, wrong)


def test_proposed_with_features_json() -> None:
  summary = records.inspect_records(rlds_data.FILES)
  assert summary.is_rlds
  assert "2 records, tf.train.Example (RLDS episodes)" in str(summary)
  proposed = records.propose_spec(summary)
  assert list(proposed) == sorted(SPEC)
  for path, spec in proposed.items():
    assert spec.is_identical_to(SPEC[path]), path


def test_proposed_without_features_json(tmp_path: pathlib.Path) -> None:
  _, (file,) = get_data_format_and_filenames(rlds_data.FILES)
  path = str(tmp_path / "a.tfrecord")
  shutil.copy(file, path)
  proposed = records.propose_spec(records.inspect_records(path))
  assert list(proposed) == sorted(SPEC)
  # What a list of numbers does not tell.
  want = {
    "observation/grid": ((4,), tf.int64),
    "observation/phase": ((1,), tf.int64),
    "observation/torque": ((), tf.string),
    "observation/touched": ((2,), tf.int64),
  }
  for path_, spec in proposed.items():
    shape, dtype = want.get(path_, (SPEC[path_].shape, SPEC[path_].dtype))
    assert (spec.shape, spec.dtype) == (shape, dtype), path_
    assert spec.is_concatenated == SPEC[path_].is_concatenated
  assert find_bad_record(path, proposed) is None


def test_invalid_features_json_is_an_error(tmp_path: pathlib.Path) -> None:
  _, (file,) = get_data_format_and_filenames(rlds_data.FILES)
  shutil.copy(file, tmp_path / "a.tfrecord")
  (tmp_path / "features.json").write_text('{"featuresDict": 3}')
  summary = records.inspect_records(str(tmp_path / "a.tfrecord"))
  with pytest.raises(errors.RecordError, match=r"features.json: expected the features"):
    records.propose_spec(summary)
  with pytest.raises(errors.RecordError, match=r"features.json: expected the features"):
    examine_records(str(tmp_path / "a.tfrecord"))


@pytest.mark.parametrize("spec", [None, SPEC], ids=["no spec", "spec"])
def test_index_counts_steps(spec: Any, tmp_path: pathlib.Path) -> None:
  _, (file,) = get_data_format_and_filenames(rlds_data.FILES)
  path = str(tmp_path / "a.tfrecord")
  shutil.copy(file, path)
  (made,) = records.write_index(path, spec)
  assert not made.error
  want = [rlds_data.NUM_STEPS[i] for i in rlds_data.EPISODES]
  assert read_index(path).num_steps(SPEC).tolist() == want


def test_doctor_finds_nan_and_uneven_steps(tmp_path: pathlib.Path) -> None:
  path = str(tmp_path / "a.tfrecord")
  bad = {**rlds_data.values(0)}
  state = bad["observation/state"].copy()
  state[2, 1] = np.nan
  bad["observation/state"] = state
  proto = tf.train.Example.FromString(records.encode_example(SPEC, rlds_data.values(1)))
  del proto.features.feature["steps/reward"].float_list.value[2:]
  with tf.io.TFRecordWriter(path) as writer:
    writer.write(records.encode_example(SPEC, bad))
    writer.write(proto.SerializeToString())
  report = examine_records(path, SPEC)
  found = [(p.record, p.kind, p.text.partition(", got ")[2]) for p in report.problems]
  assert [each[:2] for each in found] == [(0, "nan"), (1, "lengths")]
  assert found[0][2].startswith("NaN at step 2, value 1, 1 of 12.")


def test_sequences_within_steps(
  tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
  # What TFDS writes of a Sequence(float32, length=2) in a step.
  proto = tf.train.Example.FromString(records.encode_example(SPEC, rlds_data.values(1)))
  stem = "steps/observation/force"
  values = proto.features.feature[f"{stem}/ragged_flat_values"].float_list.value
  values.extend([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
  lengths = proto.features.feature[f"{stem}/ragged_row_lengths_0"].int64_list.value
  lengths.extend([2, 2, 2])
  path = str(tmp_path / "a.tfrecord")
  with tf.io.TFRecordWriter(path) as writer:
    writer.write(proto.SerializeToString())
  proposed = records.propose_spec(records.inspect_records(path))
  assert list(proposed) == sorted(SPEC)
  assert f"No spec for '{stem}/ragged_flat_values': a sequence within" in caplog.text
  spec = records.rlds_specs(
    {"force": Spec((2,), F32, f"{stem}/ragged_flat_values", is_sequence=True)}
  )
  (episode,) = records.serialized_to_parsed(records.record_dataset([path]), spec)
  assert episode["force"].numpy().tolist() == [[0, 1], [2, 3], [4, 5]]
