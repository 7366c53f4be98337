"""Training from LeRobot's folders: windows are LeRobot's, each frame the right one."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, preprocessors, specs, windows
from t2r_seq.formats.lerobot_folder import LeRobotFolder, delta_time_offsets
from t2r_seq.windows.cut import mask_paths
from tests.convert import lerobot_sets as sets

Spec = specs.ExtendedTensorSpec
CAMERA = sets.CAMERA


class Model:
  """What an input generator asks of a model."""

  def __init__(self, features, padding="repeat"):
    self.features, self.padding = features, padding

  @property
  def preprocessor(self):
    struct = specs.TensorSpecStruct
    return preprocessors.NoOpPreprocessor(
      lambda mode: struct(self.features), lambda mode: struct()
    )


IMAGE = {"image": Spec((3, 48, 64, 3), tf.uint8, CAMERA, time_offsets=(-2, -1, 0))}


@pytest.fixture(scope="module", name="own")
def fixture_own(tmp_path_factory):
  """A dataset of our own writer."""
  here = os.getcwd()
  os.chdir(tmp_path_factory.mktemp("own"))
  folder = os.path.abspath(sets.make_folder())
  os.chdir(here)
  return folder


def batches(folder, mode="eval", model=None, take=None, **options):
  options = {"batch_size": 3, "seed": 1, **options}
  generator = data.LeRobotInputGenerator(folder, **options)
  generator.set_specification_from_model(model, mode)
  with generator.explain_failures():
    dataset = generator.create_dataset(mode)
    return list(dataset if take is None else dataset.take(take)), generator


def test_pools_keep_within_the_budget_and_a_run_resumes(own, monkeypatch):
  """Of an episode only the steps that a pool shows are decoded."""
  read, most = LeRobotFolder.read, []

  def watched(folder, *args):
    values = read(folder, *args)
    most.append(len(values[CAMERA]))
    return values

  monkeypatch.setattr(LeRobotFolder, "read", watched)
  model = Model({"place": Spec((), tf.int64, "index"), **IMAGE})
  options = {"batch_size": 2, "memory_budget": 1}
  found, _ = batches(own, "train", model, 9, **options)
  assert max(sets.LENGTHS) == 6 and max(most) <= 4  # Two windows, and two steps before.
  generator = data.LeRobotInputGenerator(own, seed=1, **options)
  generator.set_specification_from_model(model, "train")
  resumed = generator.create_dataset("train", start_step=7).take(2)
  for (features, _), (want, _) in zip(resumed, found[7:], strict=True):
    assert features.place.numpy().tolist() == want.place.numpy().tolist()
    np.testing.assert_array_equal(features.image, want.image)


ONE = {"place": Spec((), tf.int64, "index", time_offsets=0)}
CHOICES = {
  "numbers": ({"episodes": [3, 0]}, [0, 1, 2, 10, 11, 12, 13]),
  "a split": ({"split": "train"}, list(range(14))),
  "both": ({"split": "train", "episodes": "keep.txt"}, [9]),
}


@pytest.mark.parametrize("name", CHOICES)
def test_some_episodes(own, name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  pathlib.Path("keep.txt").write_text("# the best\n2  # of them\n\n")
  options, want = CHOICES[name]
  found, generator = batches(own, model=Model(ONE), **options)
  places = np.concatenate([features.place.numpy() for features, _ in found])
  assert places.tolist() == want
  assert generator.num_examples == len(want)


REFUSED = {
  "a key": (
    {"x": Spec((3,), tf.float32, "observation.stat", time_offsets=0)},
    {},
    r"x: expected \[T\] steps of \(3,\) float32, got nothing.*observation.st",
  ),
  "a dtype": (
    {"x": Spec((2,), tf.float32, "action", time_offsets=0)},
    {},
    r"x: expected \[T\] steps of .*, got \(None, 2\) float64 at 'action', its name",
  ),
  "no window": (
    {"x": Spec((2,), tf.float64, "action", time_offsets=9)},
    {},
    "episodes with at least the 10 steps of a window, got none: all 4 .* longest has 6",
  ),
  "an episode": (ONE, {"episodes": [4]}, "numbers from 0 to 3, got 4"),
  "a split": (ONE, {"split": "trian"}, r"got 'trian'. Did you mean 'train'"),
  "none": (ONE, {"episodes": []}, "episodes: expected some, got none"),
  "no list": (ONE, {"episodes": "no.txt"}, "no.txt: expected a file that lists"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(own, name):
  features, options, match = REFUSED[name]
  with pytest.raises(errors.SpecError, match=match):
    batches(own, model=Model(features, padding="drop"), **options)


def test_missing_files_of_a_folder_are_named(own, tmp_path):
  folder, model = tmp_path / "copy", Model(IMAGE)
  shutil.copytree(own, folder)
  os.remove(folder / f"videos/{CAMERA}/chunk-000/file-000.mp4")
  with pytest.raises(
    errors.ConversionError, match=f"episode 0: {CAMERA}: expected a vi"
  ):
    batches(folder, model=model)
  with pytest.raises(errors.ConversionError, match="expected a video file, got none"):
    batches(folder, "train", model, take=1)


# Done while its iterator still reads ahead, in threads of TensorFlow that call Python.
SCRIPT = """
import sys
import tensorflow as tf
from t2r_seq import data, specs
image = specs.ExtendedTensorSpec((48, 64, 3), tf.uint8, sys.argv[2])
generator = data.LeRobotInputGenerator(sys.argv[1], batch_size=2, memory_budget=40_000)
generator.set_feature_specifications({"image": image})
generator.set_label_specifications({})
iterator = iter(generator.create_dataset("train").repeat())
for _ in range(20):
  next(iterator)
"""


def test_script_ends_though_its_iterator_reads_ahead(own):
  # No fork of a warm process: those end without what ends an interpreter.
  command = [sys.executable, "-c", SCRIPT, own, CAMERA]
  done = subprocess.run(command, timeout=300, capture_output=True, check=False)
  assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("name", sets.REAL)
def test_windows_are_lerobots(name):
  """Of real sets what LeRobot's own reader gives for `delta_timestamps`."""
  manifest = json.loads((sets.REAL[name] / "MANIFEST.json").read_text())
  shown = manifest["windows"][0]
  offsets = delta_time_offsets(shown["delta_timestamps"], manifest["fps"])
  folder = LeRobotFolder(sets.REAL[name])
  wanted = [key for key in shown if f"{key}_is_pad" in shown]
  features = {"index": Spec((), tf.int64, "index")}
  for key in wanted:
    own = folder.spec[key]
    shape = (len(offsets), *own.shape)
    features[key] = Spec.from_spec(
      own, shape=shape, is_sequence=False, time_offsets=offsets
    )
  model = Model(windows.add_mask_specs(specs.TensorSpecStruct(features)))
  found, _ = batches(sets.REAL[name], model=model, batch_size=200)
  ((batch, _),) = found
  assert len(manifest["windows"]) == 2
  for window in manifest["windows"]:
    row = batch.index.numpy().tolist().index(window["index"])
    for key in wanted:
      got = batch[key].numpy()[row]
      masks = mask_paths(specs.TensorSpecStruct(model.features))
      (mask,) = [path for path, of in masks.items() if of == key]
      assert (~batch[mask].numpy()[row]).tolist() == window[f"{key}_is_pad"]
      if not key.startswith("observation.images."):
        assert got.tolist() == window[key]
        continue
      camera = manifest["cameras"][key.rpartition(".")[2]]
      stamps = [list(sets.stamp(frame, camera)) for frame in got]
      assert stamps == [frame["stamp"] for frame in window[key]]
