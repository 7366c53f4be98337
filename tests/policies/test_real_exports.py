"""Policies over exports as training makes them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import models, policies, records, specs, training, windows
from t2r_seq.policies.policy import pack_observation
from tests import warm_python

FEATURES = specs.TensorSpecStruct(
  [
    (
      "state/image",
      specs.ExtendedTensorSpec(
        (3, 4, 4, 3), tf.uint8, "image", data_format="png", time_offsets=(-3, -1, 0)
      ),
    ),
    ("state/last", specs.ExtendedTensorSpec((2,), tf.float32, "pos", time_offsets=-1)),
    ("goal", specs.ExtendedTensorSpec((2,), tf.float32, "goal")),
  ]
)
LABELS = specs.TensorSpecStruct(
  [("target", specs.ExtendedTensorSpec((2,), tf.float32, "target", time_offsets=0))]
)


class _Model(models.RegressionModel):
  """One linear layer on everything that it sees."""

  def get_feature_specification(self, mode):
    return FEATURES

  def get_label_specification(self, mode):
    return LABELS

  def create_network(self):
    return tf.keras.layers.Dense(2)

  def a_func(self, features, mode):
    images = tf.cast(tf.reshape(features.state.image, [-1, 3 * 48]), tf.float32) / 255
    seen = tf.concat([images, features.state.last, features.goal], axis=-1)
    return {"inference_output": self.network(seen)}


def _export(folder, padding="repeat"):
  model = _Model(padding=padding)
  model.build()
  return training.export_saved_model(model, str(folder), global_step=3)


def _episode(seed, num_steps):
  rng = np.random.default_rng(seed)
  return {
    "state/image": rng.integers(0, 256, [num_steps, 4, 4, 3], np.uint8),
    "state/last": rng.random([num_steps, 2], np.float32),
    "goal": rng.random([2], np.float32),
  }


def _observation(episode, step):
  return {
    "state": {
      "image": episode["state/image"][step],
      "last": episode["state/last"][step],
    },
    "goal": episode["goal"],
  }


@pytest.mark.parametrize("padding", ["repeat", "zero"])
def test_policy_sees_the_training_windows(tmp_path, padding):
  _export(tmp_path, padding)
  predictor = policies.ExportedSavedModelPredictor(tmp_path, timeout=0)
  policy = policies.RegressionPolicy(predictor)
  assert policy.restore()
  for seed, num_steps in ((0, 6), (1, 1), (2, 3)):
    episode = _episode(seed, num_steps)
    dataset = tf.data.Dataset.from_tensors(episode)
    wanted = list(
      windows.windows(dataset, FEATURES, padding=padding).as_numpy_iterator()
    )
    assert len(wanted) == num_steps
    policy.reset()
    for step, want in enumerate(wanted):
      observation = _observation(episode, step)
      spec = predictor.get_step_specification()
      packed = pack_observation(observation, spec)
      frames = {path: value[np.newaxis] for path, value in packed.items()}
      seen = predictor.inspect(frames, step == 0).seen
      action, _ = policy.sample_action(observation, 0.0)
      for path in ("state/image", "state/last"):
        np.testing.assert_array_equal(seen[path][0], want[path])
      batch = {path: value[np.newaxis] for path, value in want.items()}
      outputs = predictor.predict(batch)["inference_output"]
      np.testing.assert_allclose(action, outputs[0], rtol=1e-5, atol=1e-6)


SCRIPT = """
import json, sys
# Whether it is installed here or not: from now on it cannot be imported.
sys.modules["t2r_seq"] = None
import numpy as np
import tensorflow as tf

policy = tf.saved_model.load(sys.argv[1])
inputs = np.load(sys.argv[2])
step = policy.signatures["step"]
state = policy.signatures["initial_state"](seeds=tf.constant([0, 1]))
actions = []
for t in range(len(inputs["image"])):
  given = dict(
    state_image=tf.constant(inputs["image"][t]),
    state_last=tf.constant(inputs["last"][t]),
    goal=tf.constant(inputs["goal"]),
    is_first=tf.constant([t == 0, t in (0, 2)]),
  )
  seen = policy.signatures["inspect"](**given, **state)
  outputs = step(**given, **state)
  state = {name: outputs[name] for name in state}
  actions.append(outputs["inference_output"].numpy().tolist())
window = seen["seen_state_image"].numpy()
served = policy.signatures["serving_default"](
  state_image=tf.constant(window),
  state_last=tf.constant(inputs["last"][-2]),
  goal=tf.constant(inputs["goal"]),
)["inference_output"].numpy().tolist()
with open(sys.argv[3], "rb") as f:
  parsed = policy.signatures["parse_tf_example"](examples=tf.constant([f.read()]))
parsed = parsed["inference_output"].numpy().tolist()
loaded = [name for name, module in sys.modules.items()
          if module is not None and name.startswith("t2r_seq")]
print(json.dumps([actions, served, parsed, loaded]))
"""


def test_export_needs_no_t2r_seq(tmp_path):
  path = _export(tmp_path / "exports")
  episodes = [_episode(seed, 4) for seed in range(2)]
  inputs = {
    name: np.stack([episode[path] for episode in episodes], axis=1)
    for name, path in (("image", "state/image"), ("last", "state/last"))
  }
  inputs["goal"] = np.stack([episode["goal"] for episode in episodes])
  np.savez(tmp_path / "inputs.npz", **inputs)
  record = records.encode_example(windows.flat_specs(FEATURES), episodes[0])
  (tmp_path / "record").write_bytes(record)
  script = tmp_path / "script.py"
  script.write_text(SCRIPT)
  result = warm_python.run(
    *(script, path, tmp_path / "inputs.npz", tmp_path / "record"),
    cwd=tmp_path,
    timeout=120,
  )
  assert result.returncode == 0, result.stderr
  actions, served, parsed, loaded = json.loads(result.stdout)
  assert loaded == []

  predictor = policies.ExportedSavedModelPredictor(path, timeout=0)
  predictor.restore()
  predictor.reset(num_envs=2)
  for step, action in enumerate(actions):
    outputs = predictor.step(
      {
        "state": {"image": inputs["image"][step], "last": inputs["last"][step]},
        "goal": inputs["goal"],
      },
      is_first=[step == 0, step in (0, 2)],
    )
    np.testing.assert_allclose(outputs["inference_output"], action, rtol=1e-5)
  np.testing.assert_allclose(served, actions[-1], rtol=1e-5, atol=1e-6)
  # A record is predicted at its last step, which is where episode 0 got to.
  np.testing.assert_allclose(parsed[0], actions[-1][0], rtol=1e-5, atol=1e-6)
