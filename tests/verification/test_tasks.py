"""Exports that learn tasks see what training saw, and what they learn is training's."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  errors,
  layers,
  lite,
  meta_learning,
  models,
  policies,
  specs,
  training,
  verification,
  viewing,
)
from t2r_seq.store import EpisodeStore

_SPEC = specs.ExtendedTensorSpec
LENGTHS = (6, 1, 4)


class StackModel(models.RegressionModel):
  """Two positions and, where a task is embedded, that; says a pose, or a chunk."""

  def __init__(self, has_embedding, ahead=1, **kwargs):
    super().__init__(action_size=2, **kwargs)
    self._has_embedding = has_embedding
    self._ahead = ahead

  def get_feature_specification(self, mode):
    spec = specs.TensorSpecStruct(
      x=_SPEC((2, 3), tf.float32, "pos", time_offsets=(-2, 0))
    )
    if self._has_embedding:
      spec.task_embedding = _SPEC((4,), tf.float32)
    return spec

  def get_label_specification(self, mode):
    shape = (2,) if isinstance(self._ahead, int) else (len(self._ahead), 2)
    target = _SPEC(shape, tf.float32, "pose", time_offsets=self._ahead)
    return specs.TensorSpecStruct(target=target)

  def create_network(self):
    return {"dense": tf.keras.layers.Dense(4), "decoder": self.create_action_decoder()}

  def a_func(self, features, mode):
    parts = [tf.reshape(features.x, [-1, 6])]
    if self._has_embedding:
      parts.append(features.task_embedding)
    prediction = self.network["dense"](tf.concat(parts, axis=-1))
    return self.network["decoder"](prediction, training=mode == specs.ModeKeys.TRAIN)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
  path, rng = str(tmp_path_factory.mktemp("data") / "store"), np.random.default_rng(0)
  stored = {
    "x": _SPEC((3,), tf.float32, "pos", is_sequence=True),
    "pose": _SPEC((2,), tf.float32, "pose", is_sequence=True),
  }
  with EpisodeStore.create(path, stored) as writer:
    for length in LENGTHS:
      writer.append_episode(
        {
          "x": rng.normal(size=(length, 3)).astype(np.float32),
          "pose": rng.normal(size=(length, 2)).astype(np.float32),
        }
      )
  return path


def build(kind, **options):
  """Returns a model with its weights."""
  tf.keras.utils.set_random_seed(0)
  model = base = StackModel(kind == "tec", **options)
  if kind == "tec":
    model = meta_learning.TaskEmbeddingModel(base)
  elif kind == "maml":
    inner = meta_learning.MAMLInnerLoopGradientDescent(0.1)
    model = meta_learning.MAMLModel(base, inner_loop=inner)
  model.build()
  return model


def exported(kind, folder, **options):
  """Returns a model, and a predictor of its export."""
  model = build(kind, **options)
  training.export_saved_model(model, str(folder), global_step=3)
  predictor = policies.ExportedSavedModelPredictor(str(folder), timeout=0.0)
  predictor.restore()
  return model, predictor


@pytest.mark.parametrize("kind", ["maml", "tec"])
def test_adapted_policies_are_verified_and_viewed(kind, store, tmp_path):
  model, predictor = exported(kind, tmp_path / "export")
  reference = policies.ModelPredictor(model)
  reference.restore()
  for given in (model, None):
    report = verification.verify(predictor, store, given, reference=reference)
    assert report.is_identical, str(report)
    assert (report.num_episodes, report.num_steps) == (3, sum(LENGTHS))
    text = " ".join(str(report).split())
    assert "windows of x, bit for bit" in text
    assert "inference_output with the checkpoint's network" in text
    assert "task learned from the episode itself" in text
    page = tmp_path / "page.html"
    viewing.view(store, page, model=given, predictor=predictor)
    text = page.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    (source,) = json.loads(found[1])["sources"]
    detail = source["detail"]["0"]
    assert len(detail["predicted"]["error"]) == LENGTHS[0]
    (seen,) = [
      each for each in detail["windows"]["paths"] if each["path"] == "features/x"
    ]
    assert seen["offsets"] == [-2, 0]


def test_windows_are_where_labels_are_too(store, tmp_path):
  """Without padding training has no window of a last step, whose labels are beyond."""
  options = {"padding": "drop", "ahead": (0, 1, 2)}
  model, predictor = exported("maml", tmp_path / "export", **options)
  report = verification.verify(predictor, store, model)
  assert report.is_identical, str(report)
  assert "inference_output" in str(report)


@pytest.mark.parametrize("kind", ["maml", "tec"])
def test_chunks_are_executed_of_what_was_learned(kind, store, tmp_path):
  execution = policies.ChunkExecution(num_executed=2)
  options = {"execution": execution, "ahead": (0, 1, 2), "padding": "repeat"}
  model, predictor = exported(kind, tmp_path / "export", **options)
  report = verification.verify(predictor, store, model)
  assert report.is_identical, str(report)
  assert "the execution of the chunks of inference_output" in str(report)


@pytest.mark.parametrize("kind", ["maml", "tec", None])
def test_sampled_chunk_is_executed_unchanged(kind, store, tmp_path):
  options = {
    "action_decoder_cls": layers.FlowMatchingDecoder,
    "execution": policies.ChunkExecution(num_executed=2),
    "ahead": (0, 1, 2),
    "padding": "repeat",
  }
  model, predictor = exported(kind, tmp_path / "export", **options)
  report = verification.verify(predictor, store, model)
  assert report.is_identical, str(report)
  assert "the execution of the chunks of inference_output" in str(report)
  # Other weights say other things on the mean, and what does not draw is none of it.
  other = build(kind, **options)
  for variable in other.variables:
    variable.assign(variable + 0.1)
  reference = policies.ModelPredictor(other)
  reference.restore()
  found = verification.verify(predictor, store, model, reference=reference)
  assert ("inference_output", "output") in [
    (difference.path, difference.stage) for difference in found.differences
  ]
  still = verification.verify(Still(predictor), store, model)
  assert ("inference_output", "action") in [
    (difference.path, difference.stage) for difference in still.differences
  ]


class Still:
  """A predictor whose steps always say the same."""

  def __init__(self, predictor):
    self._predictor = predictor

  def __getattr__(self, name):
    return getattr(self._predictor, name)

  def step(self, *args, **kwargs):
    prediction = self._predictor.step(*args, **kwargs)
    return {name: np.full_like(value, 7) for name, value in prediction.items()}


def test_stochastic_policies_are_verified(store, tmp_path):
  model, predictor = exported(
    "tec", tmp_path / "export", action_decoder_cls=layers.FlowMatchingDecoder
  )
  report = verification.verify(predictor, store, model)
  assert report.is_identical, str(report)


def test_verify_reports_that_a_lite_folder_does_not_adapt(store, tmp_path):
  pytest.importorskip("ai_edge_litert")
  model, predictor = exported("tec", tmp_path / "export")
  policies.export_lite(str(tmp_path / "export"), str(tmp_path / "lite"))
  policy = lite.LitePolicy(str(tmp_path / "lite"))
  report = verification.verify(policy, store, model, reference=predictor)
  assert "the export's network learns a task" in " ".join(str(report).split())


class Forgetful:
  """A reference that has learned another task."""

  def __init__(self, predictor):
    self._predictor = predictor

  def predict(self, features):
    label = "condition/labels/target"
    return self._predictor.predict({**features, label: features[label] + 1})


@pytest.mark.parametrize("kind", ["maml", "tec"])
def test_another_task_is_another_output(kind, store, tmp_path):
  model, predictor = exported(kind, tmp_path / "export")
  report = verification.verify(predictor, store, model, reference=Forgetful(predictor))
  assert [(d.path, d.stage) for d in report.differences] == [
    ("inference_output", "output")
  ]


def test_support_labels_are_required(store, tmp_path):
  model, predictor = exported("maml", tmp_path / "export")
  lacking = str(tmp_path / "lacking")
  spec = {"x": _SPEC((3,), tf.float32, "pos", is_sequence=True)}
  with EpisodeStore.create(lacking, spec) as writer:
    writer.append_episode({"x": np.zeros((3, 3), np.float32)})
  with pytest.raises(errors.SpecError, match="labels/target: expected"):
    verification.verify(predictor, lacking, model)
