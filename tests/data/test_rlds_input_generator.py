"""RLDS episodes as input: windows, and which action belongs to which observation."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, layers, records, specs
from t2r_seq.records.files import get_data_format_and_filenames
from t2r_seq.records.rlds import drop_last_step
from tests.records import rlds_data

Spec = specs.ExtendedTensorSpec
F32 = tf.float32

# A model's specs: nothing of RLDS in them.
FEATURES = {
  "observation/image": Spec(
    (2, 8, 10, 3), tf.uint8, data_format="jpeg", time_offsets=(-1, 0)
  ),
  "state": Spec((2, 3), F32, "observation/state", time_offsets=(-1, 0)),
}
LABELS = {
  "action": Spec((2, 2), F32, "action", time_offsets=(0, 1)),
  "is_last": Spec((2,), tf.bool, "is_last", time_offsets=(0, 1)),
}


def generator(
  features: Any, labels: Any, padding: str = "drop", **arguments: Any
) -> data.RldsInputGenerator:
  made = data.RldsInputGenerator(
    arguments.pop("file_patterns", rlds_data.FILES), **arguments
  )
  made.set_feature_specifications(specs.TensorSpecStruct(sorted(features.items())))
  made.set_label_specifications(specs.TensorSpecStruct(sorted(labels.items())))
  made.set_padding(padding)
  return made


def batches(made: data.RldsInputGenerator, mode: str = "eval") -> list[Any]:
  return list(made.create_dataset(mode))


def test_windows_of_all_episodes() -> None:
  ((features, labels),) = batches(generator(FEATURES, LABELS, batch_size=8))
  want: dict[str, list[np.ndarray]] = {"state": [], "action": [], "is_last": []}
  for number in rlds_data.EPISODES:
    values = rlds_data.values(number)
    for t in range(1, rlds_data.NUM_STEPS[number] - 1):
      want["state"].append(values["observation/state"][t - 1 : t + 1])
      want["action"].append(values["action"][t : t + 2])
      want["is_last"].append(values["is_last"][t : t + 2])
  np.testing.assert_array_equal(features["state"], want["state"])
  np.testing.assert_array_equal(labels["action"], want["action"])
  np.testing.assert_array_equal(labels["is_last"], want["is_last"])
  assert features["observation/image"].shape == (4, 2, 8, 10, 3)


def test_action_is_the_one_taken_on_its_observation() -> None:
  features = {"state": Spec((3,), F32, "observation/state", time_offsets=0)}
  labels = {
    "action": Spec((2,), F32, "action", time_offsets=0),
    "reward": Spec((), F32, "reward", time_offsets=0),
    "next_state": Spec((3,), F32, "observation/state", time_offsets=1),
  }
  ((features, labels),) = batches(generator(features, labels, batch_size=8))
  t = features["state"][:, 1].numpy()
  # The next observation is of no anchor at the last step: 4 + 2 transitions are left.
  assert t.tolist() == [0, 1, 2, 3, 0, 1]
  np.testing.assert_array_equal(labels["action"][:, 0], t)
  np.testing.assert_array_equal(labels["reward"], t + 1)
  np.testing.assert_array_equal(labels["next_state"][:, 1], t + 1)


def test_is_last_masks_the_action_that_means_nothing() -> None:
  labels = {
    "action": Spec((2,), F32, "action", time_offsets=0),
    "is_last": Spec((), tf.bool, "is_last", time_offsets=0),
  }
  features = {"state": Spec((3,), F32, "observation/state", time_offsets=0)}
  ((features, labels),) = batches(generator(features, labels, batch_size=8))
  error = tf.square(labels["action"] - features["state"][:, 1:2])
  error = tf.reduce_mean(error[:, :1], axis=-1)
  assert error.shape == (8,)
  assert tf.reduce_max(error) > 0
  assert layers.masked_mean(error, ~labels["is_last"]) == 0


def test_drop_last_step() -> None:
  spec = specs.TensorSpecStruct(sorted(rlds_data.SPEC.items()))
  _, files = get_data_format_and_filenames(rlds_data.FILES)
  episodes = records.serialized_to_parsed(records.record_dataset(files), spec)
  shorter = list(drop_last_step(episodes, spec))
  assert [len(episode["action"]) for episode in shorter] == [4, 2]
  assert not any(np.any(episode["is_last"]) for episode in shorter)
  for before, after in zip(episodes, shorter, strict=True):
    assert list(before) == list(after)
    for path, value in before.items():
      want = value[:-1] if spec[path].is_sequence else value
      np.testing.assert_array_equal(after[path], want, err_msg=path)


@pytest.mark.parametrize("index", [None, "require"])
def test_training_reads_on_with_and_without_an_index(
  index: str | None, tmp_path: pathlib.Path
) -> None:
  _, (file,) = get_data_format_and_filenames(rlds_data.FILES)
  path = str(tmp_path / "a.tfrecord")
  shutil.copy(file, path)
  if index:
    records.write_index(path)
  made = generator(
    FEATURES, LABELS, batch_size=4, seed=0, index=index, file_patterns=path
  )
  seen = set()
  for features, _ in made.create_dataset("train").take(3):
    seen |= {tuple(row) for row in features["state"][:, 1, :2].numpy().tolist()}
  assert seen == {(0, 1), (0, 2), (0, 3), (1, 1)}
  assert made.count_examples() == 4


def test_base_class_reads_marked_specs() -> None:
  made = data.DefaultRecordInputGenerator(rlds_data.FILES, batch_size=8)
  made.set_feature_specifications(records.rlds_specs(FEATURES))
  made.set_label_specifications(records.rlds_specs(LABELS))
  made.set_padding("drop")
  ((features, _),) = list(made.create_dataset("eval"))
  assert features["state"].shape == (4, 2, 3)


def test_skipping_bad_episodes(tmp_path: pathlib.Path) -> None:
  path = str(tmp_path / "a.tfrecord")
  spec = specs.TensorSpecStruct(sorted(rlds_data.SPEC.items()))
  good = [records.encode_example(spec, rlds_data.values(i)) for i in (0, 1)]
  bad = tf.train.Example.FromString(good[0])
  del bad.features.feature["steps/observation/state"].float_list.value[-1]
  with tf.io.TFRecordWriter(path) as writer:
    for serialized in (good[0], bad.SerializeToString(), good[1]):
      writer.write(serialized)
  made = generator(
    FEATURES, LABELS, batch_size=4, file_patterns=path, on_bad_record="skip"
  )
  ((features, _),) = batches(made)
  assert features["state"].shape == (4, 2, 3)


@pytest.mark.parametrize("has_index", [False, True])
def test_any_generator_reads_rlds_by_paths(
  has_index: bool, tmp_path: pathlib.Path
) -> None:
  """Specs that do not name `steps/...` read RLDS files, and the folder of TFDS."""
  folder = shutil.copytree(rlds_data.FOLDER, tmp_path / "1.0.0")
  if has_index:
    records.write_index(f"{folder}/*.tfrecord*")
  features = {
    path: Spec.from_spec(spec, name=spec.name or path)
    for path, spec in FEATURES.items()
  }
  want = next(iter(generator(features, LABELS, batch_size=4).create_dataset("eval")))
  for path in (folder, f"{folder}/tiny-train.tfrecord*"):
    batches = data.windows_of(
      path, features, LABELS, mode="eval", padding="drop", batch_size=4
    )
    for structure, got in zip(want, next(iter(batches)), strict=True):
      for name, value in got.items():
        np.testing.assert_array_equal(value, structure[name])
