"""A small exported policy, made by hand with the signatures that exports have."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import policies, specs, tensorspec_utils
from t2r_seq.lite.policy_io import Leaf
from t2r_seq.specs.assets import create_t2r_assets, write_t2r_assets_to_file

STATE = "policy_state_float32"
FEATURES = specs.TensorSpecStruct(
  [
    (
      "state/pos",
      specs.ExtendedTensorSpec((2, 3), tf.float32, "pos", time_offsets=(-1, 0)),
    ),
    ("goal", specs.ExtendedTensorSpec((1,), tf.float32, "goal")),
    ("hint", specs.ExtendedTensorSpec((5,), tf.float32, "hint", is_optional=True)),
  ]
)
LABELS = specs.TensorSpecStruct(
  [("target", specs.ExtendedTensorSpec((3,), tf.float32, "target"))]
)


class _SummingModel(tf.Module):
  """The action is `scale * (sum of the stacked positions) + goal`."""

  def __init__(self, scale: float) -> None:
    super().__init__()
    self._scale = tf.Variable(scale)

  def _act(self, window, goal):
    action = self._scale * tf.reduce_sum(window, axis=1) + goal
    return {"inference_output": action, "goal_seen": goal}

  @tf.function(
    input_signature=[
      tf.TensorSpec([None, 2, 3], name="state_pos"),
      tf.TensorSpec([None, 1], name="goal"),
    ]
  )
  def serve(self, state_pos, goal):
    return self._act(state_pos, goal)

  @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
  def parse(self, examples):
    parsed = tf.io.parse_example(
      examples,
      {
        "pos": tf.io.FixedLenFeature([2, 3], tf.float32),
        "goal": tf.io.FixedLenFeature([1], tf.float32),
      },
    )
    return self._act(parsed["pos"], parsed["goal"])

  @tf.function(
    input_signature=[
      tf.TensorSpec([None, 3], name="state_pos"),
      tf.TensorSpec([None, 1], name="goal"),
      tf.TensorSpec([None], tf.bool, name="is_first"),
      tf.TensorSpec([None, 3], name=STATE),
    ]
  )
  def step(self, state_pos, goal, is_first, past):
    past = tf.where(is_first[:, tf.newaxis], state_pos, past)
    window = tf.stack([past, state_pos], axis=1)
    return {**self._act(window, goal), STATE: state_pos}

  @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="seeds")])
  def initial_state(self, seeds):
    return {STATE: tf.zeros([tf.size(seeds), 3])}


def write_export(
  export_dir, version, scale=1.0, global_step=0, assets=True, features=FEATURES
) -> str:
  """Writes one export and returns its folder."""
  path = os.path.join(export_dir, str(version))
  model = _SummingModel(scale)
  signatures = {
    "serving_default": model.serve,
    "parse_tf_example": model.parse,
    "step": model.step,
    "initial_state": model.initial_state,
  }
  tf.saved_model.save(model, path, signatures=signatures)
  if assets:
    folder = os.path.join(path, tensorspec_utils.EXTRA_ASSETS_DIRECTORY)
    os.makedirs(folder, exist_ok=True)
    write_t2r_assets_to_file(
      create_t2r_assets(features, LABELS, global_step),
      os.path.join(folder, tensorspec_utils.T2R_ASSETS_FILENAME),
    )
    kept = {"history/state/pos": Leaf(STATE, (3,), np.dtype(np.float32))}
    with open(os.path.join(folder, "policy.json"), "w", encoding="utf-8") as f:
      f.write(policies.policy_model.PolicyRecord(state=kept).to_json())
  return path


@pytest.fixture(name="write_export", scope="session")
def fixture_write_export():
  """Writes exports: `write_export(export_dir, version, scale=1.0, ...)`."""
  return write_export


@pytest.fixture(name="export_dir", scope="session")
def fixture_export_dir(tmp_path_factory):
  """A folder with one export, version 7 at step 70; tests must not change it."""
  export_dir = tmp_path_factory.mktemp("exports")
  write_export(export_dir, 7, scale=1.0, global_step=70)
  return str(export_dir)
