"""Seeded mismatches of data, policy and robot: verify finds and names them."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import models, policies, specs, training, verification
from t2r_seq.episodes import open_episodes
from t2r_seq.specs import Convention, Converter
from t2r_seq.specs import rotations as rotations_lib
from t2r_seq.store import EpisodeStore

Spec = specs.ExtendedTensorSpec
STEPS = 24
POSE = Convention(
  control="absolute",
  elements=[
    (0, 3, Convention(unit="m", frame="base")),
    (3, 7, Convention(rotation="quaternion_xyzw", frame="base")),
    (7, 8, Convention(gripper=(1, 0))),
  ],
)
ACTION, _ = POSE.replace(8, rotation="axis_angle")
RGB = Convention(channels="rgb")
FEATURES = {
  "state": Spec((8,), tf.float32, "state", convention=POSE, time_offsets=0),
  "camera": Spec((6, 6, 3), tf.uint8, "camera", convention=RGB, time_offsets=0),
}
LABEL = Spec((7,), tf.float32, "action", convention=ACTION, time_offsets=0)


class Model(models.RegressionModel):
  """Predicts an action of what it sees."""

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(FEATURES)

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(target=LABEL)

  def create_network(self):
    return tf.keras.layers.Dense(7, kernel_initializer="zeros")

  def a_func(self, features, mode):
    pixels = tf.reshape(tf.cast(features.camera, tf.float32), [-1, 108])
    net = self.network(tf.concat([features.state, pixels], -1))
    return {"inference_output": net + features.state[:, :7]}


def convert(source, target, values):
  sizes = [rotations_lib.SIZES[layout] for layout in (source, target)]
  converter = Converter(
    Convention(rotation=source), Convention(rotation=target), *sizes
  )
  return converter(np.asarray(values, np.float64))


def make_episode(seed):
  rng = np.random.default_rng(seed)
  pose = rng.normal(size=(STEPS + 1, 8))
  pose[:, 3:7] /= np.linalg.norm(pose[:, 3:7], axis=1, keepdims=True)
  pose[:, 7] = rng.uniform(size=STEPS + 1)
  turns = convert("quaternion_xyzw", "axis_angle", pose[1:, 3:7])
  action = np.concatenate([pose[1:, :3], turns, pose[1:, 7:]], 1)
  return {
    "state": pose[:-1].astype(np.float32),
    "action": action.astype(np.float32),
    "camera": rng.integers(0, 255, (STEPS, 6, 6, 3), np.uint8),
  }


@pytest.fixture(name="bench", scope="module")
def fixture_bench(tmp_path_factory):
  folder = tmp_path_factory.mktemp("bench")
  stored = {
    path: Spec(
      spec.shape, spec.dtype, path, is_sequence=True, convention=spec.convention
    )
    for path, spec in {**FEATURES, "action": LABEL}.items()
  }
  with EpisodeStore.create(folder / "store", stored) as writer:
    for seed in range(2):
      writer.append_episode(make_episode(seed))
  model = Model()
  model.build()
  training.export_saved_model(model, str(folder / "export"), global_step=1)
  predictor = policies.ExportedSavedModelPredictor(str(folder / "export"), timeout=0)
  assert predictor.restore()
  return predictor, folder / "store"


def part(start, stop, change):
  def changed(vector, begins):
    new = np.array(vector)
    new[start:stop] = change(vector[start:stop])
    return new

  return changed


def layout(source, target):
  return lambda x: convert(source, target, x).astype(np.float32)


class Late:
  """Gives what it got some steps before."""

  def __init__(self, steps):
    self.steps, self.seen = steps, []

  def __call__(self, value, begins):
    self.seen = [value] if begins else [*self.seen, value]
    return self.seen[max(0, len(self.seen) - 1 - self.steps)]


ACT, DATA = "act", "data"

# kind: (side, what happens there, the cause that is named). Observations are in
# test_diagnoses and test_verify.
MISMATCHES = {
  "rotation: Euler for axis-angle": (
    ACT, part(3, 6, layout("axis_angle", "euler_xyz_extrinsic")),
    r"elements 3 to 5: Euler angles \(xyz, fixed axes\) for an axis-angle"),
  "rotation: declared w first": (
    DATA, {"state": POSE.replace(8, rotation="quaternion_wxyz")[0]},
    "rotation 'quaternion_wxyz' for 'quaternion_xyzw'"),
  "rotation: declared Euler angles": (
    DATA, {"action": ACTION.replace(7, rotation="euler_xyz_extrinsic")[0]},
    "rotation 'euler_xyz_extrinsic' for 'axis_angle'"),
  "gripper: inverted": (ACT, part(6, 7, lambda g: 1 - g), "inverted"),
  "gripper: declared open at 0": (
    DATA, {"action": ACTION.replace(7, gripper=(0, 1))[0]}, "gripper"),
  "action: declared relative": (
    DATA, {"action": ACTION.replace(7, control="relative", reference="state")[0]},
    "control 'relative' for 'absolute'"),
  "state: declared millimetres": (
    DATA, {"state": POSE.replace(8, unit="mm")[0]}, "unit 'mm' for 'm'"),
  "time: a late command": (ACT, Late(1), "1 step late"),
  "image: declared BGR": (
    DATA, {"camera": {"channels": "bgr"}}, "channels 'bgr' for 'rgb'"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISMATCHES)
def test_mismatches_are_found_and_named(bench, name):
  predictor, store = bench
  side, change, want = MISMATCHES[name]
  options = {}
  if side == DATA:
    store = open_episodes(store, conventions=change)
  else:
    options["act"] = lambda outputs, begins: change(outputs["inference_output"], begins)
  report = verification.verify(predictor, store, **options)
  assert not report.is_identical
  causes = " ".join(report.differences[0].causes)
  assert re.search(want, causes), str(report)


RIGHT = {
  "nothing": ({}, {}),
  "code that changes nothing": ({"act": lambda out, _: out["inference_output"]}, {}),
  "the same declarations": ({}, {"state": POSE.to_json(), "action": ACTION}),
  "a part that is declared": ({}, {"action": {"control": "absolute"}}),
  "other names": ({}, {"action": {"names": [*"abcdefg"]}}),
  **{
    f"a robot of {rotation}": ({"robot": dict(rotation=rotation)}, {})
    for rotation in [*rotations_lib.SIZES][:20]
  },
  "a robot in mm": ({"robot": dict(unit="mm")}, {}),
  "a robot in degrees": ({"robot": dict(rotation="axis_angle", unit="deg")}, {}),
  "a robot that is open at 0": ({"robot": dict(gripper=(0, 1))}, {}),
  "a robot in -1 ... 1": ({"robot": dict(gripper=(-1, 1))}, {}),
  "a robot whose observations pass": ({"observe": lambda seen, _: dict(seen)}, {}),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_pairs_raise_no_alarm(bench, name):
  predictor, store = bench
  options, conventions = RIGHT[name]
  options = dict(options)
  if "robot" in options:
    words = options.pop("robot")
    robot, size = ACTION, 7
    for field, value in words.items():
      robot, size = robot.replace(size, **{field: value})
    convert_to_robot = Converter(ACTION, robot, 7, size)

    def act(outputs, begins):
      return convert_to_robot(outputs["inference_output"])

    act.convention = robot
    options["act"] = act
  episodes = open_episodes(store, conventions=conventions or None)
  report = verification.verify(predictor, episodes, **options)
  assert report.is_identical, str(report)
