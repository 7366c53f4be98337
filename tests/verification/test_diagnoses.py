"""Which cause `verify` names for a mismatch: the right one, or none."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import models, policies, preprocessors, specs, training, verification
from t2r_seq.store import EpisodeStore
from t2r_seq.verification import rotations

_SPEC = specs.ExtendedTensorSpec
STEPS = 12
SHAPES = {
  "camera": (6, 6, 3),
  "pose": (7,),  # A position, an axis-angle vector, a gripper.
  "angles": (3,),
  "rot6d": (9,),  # A position, and two columns of a rotation.
  "arms": (12,),  # A position and an axis-angle vector of each.
  "quaternion": (4,),
  "gripper": (),
  "bytes": (2,),
}
DTYPES = {"camera": tf.uint8, "bytes": tf.uint8}


class Model(models.RegressionModel):
  """Looks at one step, and predicts a pose and a gripper."""

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(
      (path, _SPEC(shape, DTYPES.get(path, tf.float32), path, time_offsets=0))
      for path, shape in SHAPES.items()
    )

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(
      target=_SPEC((7,), tf.float32, "pose", time_offsets=0)
    )

  def create_network(self):
    return tf.keras.layers.Dense(7, kernel_initializer="zeros")

  def a_func(self, features, mode):
    flat = [
      tf.cast(tf.reshape(features[path], [-1, int(np.prod(SHAPES[path]))]), tf.float32)
      for path in SHAPES
    ]
    actions = self.network(tf.concat(flat, axis=-1)) + features.pose
    return {"inference_output": self.change(actions)}

  def change(self, actions):
    """Changes the actions; by default nothing."""
    return actions


class Changed(Model):
  """Acts otherwise than the model that was trained."""

  def __init__(self, change, **kwargs):
    super().__init__(**kwargs)
    self._change = change

  def change(self, actions):
    return self._change(actions)


def _matrix(rng, n):
  vectors = rng.normal(0, 0.7, [n, 3])
  return rotations.convert(vectors, "axis_angle", "matrix").reshape(n, 3, 3)


def _episode(rng, n=STEPS):
  matrix = _matrix(rng, n)
  quaternion = rng.normal(size=[n, 4])
  return {
    "camera": rng.integers(0, 255, (n, 6, 6, 3), np.uint8),
    "pose": np.concatenate(
      [rng.normal(size=[n, 3]), rng.normal(0, 0.7, [n, 3]), rng.uniform(size=[n, 1])], 1
    ),
    "angles": rng.uniform(-1.2, 1.2, [n, 3]),
    "rot6d": np.concatenate(
      [rng.normal(size=[n, 3]), matrix[:, :, 0], matrix[:, :, 1]], 1
    ),
    "arms": rng.normal(0, 0.7, [n, 12]),
    "quaternion": quaternion / np.linalg.norm(quaternion, axis=1, keepdims=True),
    "gripper": np.float32(np.arange(n) // 3 % 2),
    "bytes": rng.integers(0, 255, (n, 2), np.uint8),
  }


def _symmetric(rng):
  """Pictures whose mirror image is that of swapped channels; still, on one axis."""
  episode = _episode(rng)
  left = rng.integers(0, 255, (STEPS, 6, 3, 3), np.uint8)
  episode["camera"] = np.concatenate([left, left[:, :, ::-1, ::-1]], 2)
  episode["pose"][:] = [0.5, 0.5, 0.5, 0, 0, 0, 1]
  episode["angles"][:, 1:] = 0
  episode["gripper"][:] = 1
  return episode


def _rising(rng):
  episode = _episode(rng)
  episode["pose"] = np.arange(STEPS)[:, None] * np.linspace(0.1, 0.7, 7)
  episode["gripper"] = np.float32(np.where(np.arange(STEPS) % 4 < 2, 0.0, 0.08))
  return episode


DATA = {
  "usual": _episode,
  "symmetric": _symmetric,
  "rising": _rising,
  "short": functools.partial(_episode, n=1),
  "two steps": functools.partial(_episode, n=2),
}


class Bench:
  """The data, and an export."""

  def __init__(self, folder):
    self.stores = {}
    stored = {
      path: _SPEC(shape, DTYPES.get(path, tf.float32), path, is_sequence=True)
      for path, shape in SHAPES.items()
    }
    for name, make in DATA.items():
      self.stores[name] = str(folder / name)
      with EpisodeStore.create(self.stores[name], stored) as writer:
        episode = make(np.random.default_rng(0))
        dtypes = {p: spec.dtype.as_numpy_dtype for p, spec in stored.items()}
        writer.append_episode({p: v.astype(dtypes[p]) for p, v in episode.items()})
    self.model = Model()
    self.model.build()
    training.export_saved_model(self.model, str(folder / "export"), global_step=1)
    self.predictor = policies.ExportedSavedModelPredictor(
      str(folder / "export"), timeout=0
    )
    assert self.predictor.restore()


@pytest.fixture(name="bench", scope="module")
def fixture_bench(tmp_path_factory):
  tf.keras.utils.set_random_seed(0)
  return Bench(tmp_path_factory.mktemp("bench"))


def _part(start, stop, change):
  """Changes some elements of a vector."""

  def changed(vector):
    new = np.array(vector)
    new[start:stop] = change(vector[start:stop])
    return new

  return changed


def _turned(values, source, target):
  return rotations.convert(np.float64([values]), source, target)[0].astype(np.float32)


_TURN = _turned([0.3, 0.5, -0.2], "axis_angle", "matrix").reshape(3, 3)


def _euler(vector, layout="euler_xyz_extrinsic"):
  return _turned(vector, "axis_angle", layout)


def _vector(angles):
  return _turned(angles, "euler_zyx_intrinsic", "axis_angle")


def _rows(six):
  first, second = six[:3], six[3:]
  matrix = np.stack([first, second, np.cross(first, second)], 1)
  return matrix[:2].ravel()


class Late:
  """Glue that is some steps late."""

  def __init__(self, steps):
    self._steps, self._seen = steps, []

  def __call__(self, value):
    self._seen.append(value)
    return self._seen[max(len(self._seen) - 1 - self._steps, 0)]


def _noisy():
  rng = np.random.default_rng(1)
  return lambda x: (x + rng.normal(0, 0.01, x.shape)).astype(np.float32)


# What a robot does: data, path, change, what is named ("" for nothing), and what not.
OBSERVED = {
  "Euler for axis-angle": (
    "usual", "pose", _part(3, 6, _euler),
    r"elements 3 to 5: Euler angles \(xyz, fixed axes\) for an axis-angle", "noise",
  ),
  "Euler for axis-angle, of both arms": (
    "usual", "arms", lambda x: _part(3, 6, _euler)(_part(9, 12, _euler)(x)),
    r"elements 3 to 5 and 9 to 11: Euler angles \(xyz, fixed axes\) for an axis-angle",
    "noise",
  ),
  "Euler in degrees for axis-angle": (
    "usual", "angles", lambda x: np.rad2deg(_euler(x)),
    r"Euler angles \(xyz, fixed axes\) in degrees for an axis-angle", "noise",
  ),
  "Euler for axis-angle, another convention": (
    "usual", "angles", lambda x: _euler(x, "euler_zyx_intrinsic"),
    r"Euler angles \(zyx\) for an axis-angle", "noise",
  ),
  "axis-angle for Euler": (
    "usual", "angles", _vector,
    r"an axis-angle vector for Euler angles \(zyx\)", "noise",
  ),
  "Euler in another order": (
    "usual", "angles", lambda x: x[::-1].copy(), r"another order: \[2, 1, 0\]", "Euler",
  ),
  "Euler of another convention": (
    "usual", "angles",
    lambda x: _turned(x, "euler_xyz_intrinsic", "euler_zxy_intrinsic"),
    "^Euler angles in another convention$", "noise",
  ),
  "rot6d rows": (
    "usual", "rot6d", _part(3, 9, _rows),
    "elements 3 to 8: a 6D rotation of rows for columns", "noise",
  ),
  "another frame": (
    "usual", "pose", _part(0, 3, lambda x: np.float32(_TURN @ x + [0.1, 0.2, 0.2])),
    "elements 0 to 2: it is in another coordinate frame: turned by 35.3 degrees and "
    "moved by 0.3", "statistics|noise",
  ),
  "another frame, of a symmetric one": (
    "usual", "pose", _part(0, 3, lambda x: x * np.float32([-1, -1, 1])),
    "other sign", "frame",
  ),
  "quaternion, w first": (
    "usual", "quaternion", lambda x: x[[3, 0, 1, 2]],
    r"another order: \[3, 0, 1, 2\]", "",
  ),
  "the inverse rotation": (
    "usual", "quaternion", lambda x: x * np.float32([-1, -1, -1, 1]),
    "the inverse rotation, of quaternions with w last", "statistics",
  ),
  "a thresholded gripper": (
    "usual", "pose", _part(6, 7, lambda x: np.float32(x > 0.6)),
    r"element \[6\]: it is thresholded: 0 below 0\.\d+, 1 above", "repeat|late|clip",
  ),
  "a thresholded gripper, inverted": (
    "usual", "pose", _part(6, 7, lambda x: np.float32(1 - 2 * (x > 0.6))),
    r"element \[6\]: it is thresholded: 1 below 0\.\d+, -1 above", "repeat|late|clip",
  ),
  "an inverted gripper": (
    "usual", "gripper", lambda x: 1 - x, "it is inverted", "late|early|either",
  ),
  "an inverted gripper of a width": (
    "rising", "gripper", lambda x: np.float32(0.08) - x, "it is inverted: 0.08 for 0",
    "late|early|either",
  ),
  "an inverted gripper of a pose": (
    "usual", "pose", _part(6, 7, lambda x: 1 - x), r"element \[6\]: it is inverted",
    "late|either",
  ),
  "a gripper in -1 ... 1": (
    "usual", "gripper", lambda x: 2 * x - 1, "in -1 ... 1 where training has 0 ... 1",
    "late|either",
  ),
  "an inverted gripper in -1 ... 1": (
    "usual", "gripper", lambda x: 1 - 2 * x, "inverted, in -1 ... 1 where",
    "late|either",
  ),
  "a late gripper": (
    "usual", "gripper", Late(1), "it comes 1 step late", "inverted|threshold",
  ),
  "a late pose": ("usual", "pose", Late(1), "it comes 1 step late", "either"),
  "a late pose that rises": (
    "rising", "pose", Late(2), "it comes 2 steps late", "times",
  ),
  "a pose that is 3 times as large, and rises": (
    "rising", "pose", lambda x: 3 * x, "it is 3 times training's", "late",
  ),
  "BGR": (
    "usual", "camera", lambda x: x[..., ::-1], "^its channels are swapped: BGR",
    "either",
  ),
  "BGR of symmetric pictures": (
    "symmetric", "camera", lambda x: x[..., ::-1],
    "^either it is mirrored, or its channels are swapped: BGR for RGB$", "",
  ),
  "a quarter turn": (
    "usual", "camera", lambda x: np.rot90(x).copy(),
    "turned by 90 degrees to the left", "",
  ),
  "a negative": ("usual", "camera", lambda x: 255 - x, "inverted, as a negative", ""),
  "bytes that are divided": (
    "usual", "bytes", lambda x: x // 2, "times training's", "255",
  ),
  "degrees": ("usual", "angles", np.rad2deg, "in degrees where training", "times"),
  "wrapped angles": (
    "usual", "angles", lambda x: np.mod(x, np.float32(2 * np.pi)), "wrapped to 0",
    "noise",
  ),
  "an offset": (
    "usual", "angles", lambda x: x + np.float32(0.3), "it is off by 0.3", "statistics",
  ),
  "statistics": (
    "usual", "angles", lambda x: x * np.float32([1, 2, 3]) + np.float32([3, 2, 1]),
    "stale statistics", "",
  ),
  "whole numbers": ("usual", "angles", np.round, "rounded to whole numbers", "noise"),
  "bfloat16": (
    "usual", "angles", lambda x: tf.cast(tf.cast(x, tf.bfloat16), tf.float32).numpy(),
    "it went through bfloat16", "noise",
  ),
  "noise": ("usual", "angles", _noisy(), "nearly the same", "Euler|axis|either"),
  "random numbers": (
    "usual", "angles", lambda x: np.random.default_rng(int(1e6 * abs(x[0]))).normal(
      size=3).astype(np.float32), "", "Euler|axis|late|noise",
  ),
  "zeros": ("usual", "angles", np.zeros_like, "same at every step", "swapped|late"),
  # Ambiguous data.
  "another constant": ("symmetric", "gripper", lambda x: x * 0, "", "still|late|sign"),
  "a constant pose": (
    "symmetric", "pose", lambda x: x + np.float32(1), "", "late|still",
  ),
  "the sign of one value": ("short", "gripper", lambda x: x - 1, "", "sign|inverted"),
  "an offset of one step": (
    "short", "angles", lambda x: x + np.float32(0.3), "", "late|noise|statistics",
  ),
  "the sign of one step": (
    "short", "angles", np.negative, "of the other sign", "either",
  ),
  "BGR of one step": (
    "short", "camera", lambda x: x[..., ::-1], "BGR for RGB", "either",
  ),
  "a scale by two steps": (
    "two steps", "angles", lambda x: x * np.float32(2), "it is 2 times", "late|stat",
  ),
  "Euler about one axis": ("symmetric", "angles", lambda x: _euler(x) + 0, None, ""),
  # Nothing is wrong.
  **{
    f"nothing, {name}": (name, "camera", np.array, None, "") for name in DATA
  },
}  # fmt: skip


def _check(report, path, want, never):
  if want is None:
    assert report.is_identical, str(report)
    return
  first = report.differences[0]
  causes = " ".join(first.causes)
  assert first.path == path
  assert re.search(want, causes) if want else not first.causes, causes
  assert not never or not re.search(never, causes), causes


@pytest.mark.parametrize("case", OBSERVED)
def test_cause_of_what_a_robot_does_is_named(bench, case):
  data, path, change, want, never = OBSERVED[case]

  def observe(observed, begins):
    return {**observed, path: change(observed[path])}

  report = verification.verify(
    bench.predictor, bench.stores[data], bench.model, observe=observe
  )
  _check(report, path, want, never)


def _of_part(change):
  return lambda x: tf.concat([x[:, :6], change(x[:, 6:])], axis=-1)


# What an export does to its actions.
ACTED = {
  "a thresholded gripper": (
    _of_part(lambda x: tf.cast(x > 0.5, tf.float32)),
    r"\[6\]: it is thresholded: 0 below",
  ),
  "an inverted gripper": (_of_part(lambda x: 1 - x), r"\[6\]: it is inverted"),
  "another sign": (tf.negative, "of the other sign"),
  "clipped": (lambda x: tf.clip_by_value(x, -0.8, 0.8), "clipped to -0.8 ... 0.8"),
  "right": (lambda x: x, None),
}  # fmt: skip


@pytest.mark.parametrize("case", ACTED)
def test_cause_of_what_an_export_does_is_named(bench, case):
  change, want = ACTED[case]
  predictors = []
  for model in (Changed(change), Model()):
    predictor = policies.CheckpointPredictor(model)
    predictor.init_randomly()
    predictors.append(predictor)
  changed, reference = predictors
  report = verification.verify(
    changed, bench.stores["usual"], bench.model, reference=reference
  )
  _check(report, "inference_output", want, "late|noise")


class Scaling(preprocessors.NoOpPreprocessor):
  """Does something to features where the policy runs."""

  def _preprocess_fn(self, features, labels, mode):
    if mode == specs.ModeKeys.INFER:
      features["rot6d"] = tf.concat(
        [
          features.rot6d[..., :3],
          tf.gather(features.rot6d, [3, 6, 4, 7, 5, 8], axis=-1),
        ],
        axis=-1,
      )
    return features, labels


def test_cause_of_what_a_preprocessor_does_is_named(bench):
  predictor = policies.CheckpointPredictor(Model(preprocessor_cls=Scaling))
  predictor.init_randomly()
  report = verification.verify(predictor, bench.stores["usual"], bench.model)
  assert report.differences[0].stage == "network input"
  _check(report, "rot6d", r"another order: \[0, 1, 2, 3, 6, 4, 7, 5, 8\]", "noise")
