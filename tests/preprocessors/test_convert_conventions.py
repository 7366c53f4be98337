import functools

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, preprocessors, specs, statistics
from t2r_seq.preprocessors import ConvertConventions
from t2r_seq.preprocessors.convert_conventions import restore_outputs
from t2r_seq.specs import Convention, TensorSpecStruct
from t2r_seq.store import EpisodeStore

Spec = specs.ExtendedTensorSpec
DATA = Convention(
  control="absolute",
  elements=[
    (0, 3, Convention(unit="mm")),
    (3, 7, Convention(rotation="quaternion_wxyz")),
    (7, 8, Convention(gripper=(0, 1))),
  ],
)
MODEL, SIZE = DATA.replace(
  8,
  unit="m",
  rotation="rot6d_columns",
  gripper=(1, 0),
  control="tool_relative",
  reference="state",
)


def features_of(mode, convention=DATA, offsets=(-1, 0)):
  del mode
  shape = (len(offsets), 8) if isinstance(offsets, tuple) else (8,)
  return {
    "state": Spec(
      shape, tf.float32, "state", time_offsets=offsets, convention=convention
    ),
    "image": Spec((4, 4, 3), tf.uint8, "image", convention={"channels": "rgb"}),
  }


def labels_of(mode):
  del mode
  target = Spec(
    (5, SIZE), tf.float32, "action", time_offsets=range(5), convention=MODEL
  )
  return {"target": target}


def make(data, feature_fn=features_of, label_fn=labels_of):
  return ConvertConventions(feature_fn, label_fn, data=data)


def make_batch(seed=0):
  rng = np.random.default_rng(seed)
  state, action = rng.normal(size=(3, 2, 8)), rng.normal(size=(3, 5, 8))
  for each in (state, action):
    each[..., 3:7] /= np.linalg.norm(each[..., 3:7], axis=-1, keepdims=True)
    each[..., :3] *= 100
  image = rng.integers(0, 256, (3, 4, 4, 3), np.uint8)
  features = {"state": state.astype(np.float32), "image": image}
  return features, {"target": action.astype(np.float32)}


ALL = {"action": DATA, "state": DATA.to_json(), "image": {"channels": "bgr"}}


def test_data_is_converted_and_outputs_are_restored():
  stage = make(ALL)
  target = stage.get_in_label_specification("train")["target"]
  assert target.shape.as_list() == [5, 8] and target.convention == DATA
  image = stage.get_in_feature_specification("train")["image"]
  assert image.convention == Convention(channels="bgr")
  features, labels = make_batch()
  found, moved = stage.preprocess(features, labels, "train")
  assert moved["target"].shape == (3, 5, SIZE)
  np.testing.assert_array_equal(found["image"], features["image"][..., ::-1])
  np.testing.assert_array_equal(found["state"], features["state"])
  outputs = {"inference_output": moved["target"], "other": tf.ones([3])}
  chain = preprocessors.ComposedPreprocessor.of_stages([stage])
  names = {"inference_output": "target"}
  restored = restore_outputs(chain, features, outputs, names)
  assert set(restored) == {"inference_output", "other"}
  back, want = restored["inference_output"].numpy(), labels["target"]
  np.testing.assert_allclose(back[..., :3], want[..., :3], atol=1e-4)  # Millimetres.
  np.testing.assert_allclose(back[..., 7], want[..., 7], atol=1e-6)
  alike = np.abs((back[..., 3:7] * want[..., 3:7]).sum(-1))
  np.testing.assert_allclose(alike, 1, atol=1e-6)


def test_undeclared_values_are_unchanged():
  stage = make(None, lambda mode: features_of(mode, None), lambda mode: {})
  features, _ = make_batch()
  found, _ = stage.preprocess(features, None, "infer")
  np.testing.assert_array_equal(found["image"], features["image"])
  np.testing.assert_array_equal(found["state"], features["state"])


def test_one_side_warns_once(caplog):
  for _ in range(2):
    make({"state": DATA}, lambda mode: features_of(mode, None), lambda mode: {})
  texts = [r.getMessage() for r in caplog.records if "declares" in r.getMessage()]
  states = [text for text in texts if "features/state" in text]
  assert len(states) == 1, texts
  assert "Declare it in the other's spec, too" in states[0]
  assert "unit='mm'" in states[0]


ERRORS = {
  "an unknown path": ({"actoin": DATA}, features_of, "got 'actoin'"),
  "a state of later steps": (
    {"action": DATA},
    functools.partial(features_of, offsets=(-2, -1)),
    "expected time offsets with the present step, 0",
  ),
  "no state": ({"action": DATA}, lambda mode: {}, "expected the path of a feature"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_at_construction(name):
  data, feature_fn, match = ERRORS[name]
  with pytest.raises(errors.SpecError, match=match):
    make(data, feature_fn)


def test_data_set_gives_its_own_declarations(tmp_path):
  flat = {
    name: Spec((8,), tf.float32, name, is_sequence=True, convention=DATA)
    for name in ("state", "action")
  }
  with EpisodeStore.create(tmp_path / "store", flat) as writer:
    features, labels = make_batch()
    for state, action in zip(features["state"], labels["target"], strict=True):
      writer.append_episode(
        {"state": state.repeat(3, 0), "action": action.repeat(2, 0)[:6]}
      )
  stage = make(tmp_path / "store")
  assert stage.get_in_label_specification("train")["target"].convention == DATA


def test_statistics_are_of_one_representation(tmp_path):
  rows = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
  flat = {"action": Spec((8,), tf.float32, "action", is_sequence=True, convention=DATA)}
  with EpisodeStore.create(tmp_path / "store", flat) as writer:
    writer.append_episode({"action": rows})
  path = tmp_path / "statistics.json"
  statistics.compute_statistics(tmp_path / "store", path)
  other, _ = DATA.replace(8, rotation="quaternion_xyzw")
  for convention, is_right in ((DATA, True), (None, True), (other, False)):
    spec = Spec((8,), tf.float32, "action", convention=convention)
    normalize = functools.partial(
      preprocessors.Normalize,
      lambda mode: {},
      lambda mode, spec=spec: TensorSpecStruct({"action": spec}),
      statistics_path=path,
      modes={"action": "mean_std"},
    )
    if is_right:
      normalize()
      continue
    with pytest.raises(errors.SpecError) as caught:
      normalize()
    text = str(caught.value)
    assert "quaternion_xyzw" in text and "quaternion_wxyz" in text
    assert "t2r_seq stats SOURCE --policy" in text
