"""Critics and classifiers: outputs, losses, metrics of whole evaluations, exports."""

from __future__ import annotations

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, models, specs, training, windows
from t2r_seq.training.evaluation import evaluate
from t2r_seq.training.trainer import Trainer

_SPEC = specs.ExtendedTensorSpec


@gin.configurable(module="test_model_families")
class ReachCritic(models.CriticModel):
  """The value is minus the squared distance of the action to the state."""

  def __init__(self, **kwargs):
    super().__init__(**kwargs)
    self.encoded = []

  def get_state_specification(self):
    return specs.TensorSpecStruct(place=_SPEC((2,), tf.float32, "place"))

  def get_action_specification(self):
    return specs.TensorSpecStruct(move=_SPEC((2,), tf.float32, "move", time_offsets=1))

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(reward=_SPEC((), tf.float32, "reward"))

  def create_network(self):
    return {
      "tower": tf.keras.layers.Dense(8),
      "q": tf.keras.Sequential(
        [tf.keras.layers.Dense(32, activation="relu"), tf.keras.layers.Dense(1)]
      ),
    }

  def state_func(self, state, mode):
    self.encoded.append(state.place.shape[0])
    return self.network["tower"](state.place)

  def q_func(self, state, action, mode):
    values = self.network["q"](tf.concat([state, action.move], axis=-1))
    return {"q_predicted": values[:, 0], "seen": state}


def _experience(num_examples=256):
  rng = np.random.default_rng(0)
  place, move = rng.uniform(-1, 1, (2, num_examples, 2)).astype(np.float32)
  reward = -np.sum((place - move) ** 2, axis=-1)
  return place, move, reward


def _examples():
  for place, move, reward in zip(*_experience(), strict=True):
    features = {"state": {"place": place}, "action": {"move": move}}
    yield features, {"reward": reward}


def test_critic_learns_by_gin_and_its_export_values_many_actions(tmp_path):
  gin.parse_config("""
    ReachCritic.action_batch_size = 64
    ReachCritic.create_optimizer_fn = @create_adam_optimizer
    ReachCritic.use_avg_model_params = True
    ReachCritic.avg_model_params_decay = 0.9
    create_adam_optimizer.learning_rate_fn = @create_constant_learning_rate
    create_constant_learning_rate.initial_learning_rate = 0.01
  """)
  model = ReachCritic()
  generator = lambda: data.GeneratorInputGenerator(_examples, batch_size=32)  # noqa: E731
  result = training.train_eval_model(
    model,
    generator(),
    generator(),
    max_train_steps=300,
    model_dir=str(tmp_path),
    eval_throttle_secs=3600,
    run_config=training.RunConfig(seed=1),
  )
  assert result["loss"] < 0.1 * np.var(_experience()[2])
  (version,) = training.exports.export_versions(str(tmp_path / "export" / "latest"))
  loaded = tf.saved_model.load(str(tmp_path / "export" / "latest" / str(version)))
  place, moves = _experience()[0][:3], np.stack([_experience()[1][:64]] * 3)
  moves[1:] *= 0.5
  asked = {"state_place": tf.constant(place), "action_move": tf.constant(moves)}
  values = loaded.signatures["serving_default"](**asked)["q_predicted"].numpy()
  assert values.shape == (3, 64)
  best = moves[0][np.argmax(values[0])]
  assert np.linalg.norm(best - place[0]) < 0.5
  # Each value is that of its own state and action, whatever stands beside them.
  with model.averaged_weights():
    for row, column in ((0, 0), (1, 63), (2, 17)):
      features = {
        "state/place": place[row : row + 1],
        "action/move": moves[row : row + 1, column],
      }
      outputs = model.inference_network_fn(
        specs.pack_flat_sequence_to_spec_structure(
          model.get_feature_specification("eval"),
          {path: tf.constant(value) for path, value in features.items()},
        ),
        None,
        "eval",
      )
      np.testing.assert_allclose(
        outputs["q_predicted"][0], values[row, column], rtol=1e-4, atol=1e-5
      )
  state = loaded.signatures["initial_state"](seeds=tf.constant([0, 1, 2]))
  is_first = tf.constant([True] * 3)
  step = loaded.signatures["step"](**asked, **state, is_first=is_first)
  np.testing.assert_allclose(step["q_predicted"], values, rtol=1e-5)


def test_state_is_encoded_once_for_all_actions():
  model = ReachCritic(action_batch_size=5)
  model.build()
  model.encoded.clear()
  features = specs.TensorSpecStruct(
    {"state/place": tf.ones([2, 2]), "action/move": tf.ones([2, 5, 2])}
  )
  outputs = model.inference_network_fn(features, None, "infer")
  assert model.encoded == [2]
  assert outputs["q_predicted"].shape == (2, 5) and outputs["seen"].shape == (2, 5, 8)


def test_critic_actions_have_a_batch_axis_in_inference_only():
  spec = ReachCritic(action_batch_size=5).get_feature_specification("infer")
  assert spec.action.move.is_identical_to(_SPEC((5, 2), tf.float32, "move"))
  spec = ReachCritic().get_feature_specification("infer")
  assert spec.action.move.is_identical_to(_SPEC((2,), tf.float32, "move"))
  spec = ReachCritic(action_batch_size=5).get_feature_specification("train")
  assert spec.action.move.time_offsets == 1 and list(spec) == [
    "state/place",
    "action/move",
  ]


@pytest.mark.parametrize(
  ("function", "want"),
  [
    (models.losses.squared_error, [(0.25 - 1) ** 2, 0.25]),
    (models.losses.log_loss, [-np.log(0.25), -np.log(0.5)]),
  ],
)
def test_critic_loss_averages_unpadded_steps(function, want):
  model = ReachCritic(loss_function=function)
  outputs = {"q_predicted": tf.constant([0.25, 0.5])}
  labels = specs.TensorSpecStruct(reward=tf.constant([1.0, 0.0]))
  assert float(model.loss_fn(None, labels, outputs)) == pytest.approx(np.mean(want))
  labels["reward_mask"] = tf.constant([False, True])
  assert float(model.loss_fn(None, labels, outputs)) == pytest.approx(want[1])


class _Wide(ReachCritic):
  def q_func(self, state, action, mode):
    values = super().q_func(state, action, mode)["q_predicted"]
    return {"q_predicted": values[:, tf.newaxis]}


class _Misspelt(ReachCritic):
  def q_func(self, state, action, mode):
    return {"q_predict": tf.zeros([1])}


_BAD_CRITICS = {
  "values of another shape": (
    lambda: _Wide().build(),
    r"loss_fn: q_predicted: expected the shape of labels.reward, \(1,\) float32, got "
    r"\(1, 1\) float32. Reshape one of them: broadcast",
  ),
  "no values": (
    lambda: _Misspelt().build(),
    r"_Misspelt.q_func: q_predicted: expected this output, .* Did you mean 'q_predict'",
  ),
  "no action": (
    lambda: ReachCritic(action_batch_size=0),
    r"ReachCritic: action_batch_size: expected at least 1, got 0",
  ),
}


@pytest.mark.parametrize("case", _BAD_CRITICS)
def test_wrong_critics_are_refused(case):
  create, message = _BAD_CRITICS[case]
  with pytest.raises(errors.SpecError, match=message):
    create()


@gin.configurable(module="test_model_families")
class Sector(models.ClassificationModel):
  """In which third of the circle a point is; with 'sigmoid' yes or no for each."""

  def __init__(self, label_shape=(), label_dtype=tf.int64, **kwargs):
    super().__init__(**kwargs)
    self.label = _SPEC(label_shape, label_dtype, "sector")

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(point=_SPEC((2,), tf.float32, "point"))

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(classes=self.label)

  def create_network(self):
    return tf.keras.layers.Dense(3)

  def a_func(self, features, mode):
    return {"logits": self.network(features.point)}


def _points(num_points=200):
  rng = np.random.default_rng(0)
  angle = rng.uniform(0, 2 * np.pi, num_points)
  points = np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32)
  return points, (angle * 3 / (2 * np.pi)).astype(np.int64)


_SECTORS = {
  "softmax": (lambda sector: sector, ()),
  "sigmoid": (lambda sector: np.eye(3, dtype=np.int64)[sector], (3,)),
}


@pytest.mark.parametrize("activation", _SECTORS)
def test_importance_weights_multiply_the_errors_of_a_classifier(activation):
  as_label, label_shape = _SECTORS[activation]
  model = Sector(label_shape=label_shape, activation=activation)
  logits = tf.random.normal([3, 3], seed=1)
  classes = tf.stack([as_label(n) for n in (2, 0, 1)])
  weights = [0.0, 0.5, 2.0]

  def loss(rows, **weight):
    labels = specs.TensorSpecStruct(classes=classes[rows], **weight)
    return model.loss_fn(labels, {"logits": logits[rows]}, "train")

  want = sum(w * loss(slice(i, i + 1)) for i, w in enumerate(weights)) / len(weights)
  weighted = loss(slice(None), sample={"weight": tf.constant(weights)})
  np.testing.assert_allclose(weighted, want, rtol=1e-5)


@pytest.mark.parametrize("activation", _SECTORS)
def test_classifier_learns_by_gin_and_exports_probabilities(activation, tmp_path):
  as_label, label_shape = _SECTORS[activation]
  gin.parse_config(f"""
    Sector.activation = '{activation}'
    Sector.create_optimizer_fn = @create_adam_optimizer
    create_adam_optimizer.learning_rate_fn = @create_constant_learning_rate
    create_constant_learning_rate.initial_learning_rate = 0.1
    BestExporter.metric = 'auc'
    BestExporter.larger_is_better = True
  """)

  def examples():
    for point, sector in zip(*_points(), strict=True):
      yield {"point": point}, {"classes": as_label(sector)}

  result = training.train_eval_model(
    Sector(label_shape=label_shape),
    data.GeneratorInputGenerator(examples, batch_size=50),
    data.GeneratorInputGenerator(examples, batch_size=50),
    max_train_steps=100,
    model_dir=str(tmp_path),
    eval_throttle_secs=3600,
    run_config=training.RunConfig(seed=1),
  )
  assert result["auc"] > 0.97 and result["accuracy"] > 0.85
  (version,) = training.exports.export_versions(str(tmp_path / "export" / "best"))
  loaded = tf.saved_model.load(str(tmp_path / "export" / "best" / str(version)))
  points, sectors = _points()
  outputs = loaded.signatures["serving_default"](point=tf.constant(points))
  predicted = outputs["a_predicted"].numpy()
  assert (
    outputs.keys() == {"a_predicted"} and predicted.min() >= 0 and predicted.max() <= 1
  )
  assert np.mean(predicted.argmax(axis=-1) == sectors) > 0.95
  if activation == "softmax":
    np.testing.assert_allclose(predicted.sum(axis=-1), 1, rtol=1e-5)


def _pairs(scores, is_true):
  """AUC by its definition: how often a true one is above a false one."""
  above = np.sign(scores[is_true][:, None] - scores[~is_true][None])
  return np.mean((above + 1) / 2)


class _Given(Sector):
  """Says what the features say."""

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(logits=_SPEC(self.logits, tf.float32, "logits"))

  def get_label_specification(self, mode):
    mask = _SPEC((), tf.bool, "mask")
    return specs.TensorSpecStruct(classes=self.label, classes_mask=mask)

  def a_func(self, features, mode):
    return {"logits": features.logits + 0.0 * self.network(tf.zeros([1, 2]))[0, 0]}


@pytest.mark.parametrize(
  ("activation", "shape"), [("softmax", (4,)), ("sigmoid", (4,)), ("sigmoid", ())]
)
def test_metrics_cover_the_evaluation_without_padding(activation, shape):
  rng = np.random.default_rng(3)
  num, is_softmax = 100, activation == "softmax"
  logits = rng.normal(0, 3, (num, *shape)).astype(np.float32)
  # Nothing is of class 3, though the logits say so at times.
  num_classes = 3 if is_softmax else 2
  classes = rng.integers(0, num_classes, num if is_softmax else (num, *shape))
  mask = rng.random(num) < 0.8
  model = _Given(label_shape=() if is_softmax else shape, activation=activation)
  model.logits = shape
  trainer = Trainer(model, tf.distribute.get_strategy())
  batches = [
    (
      {"logits": tf.constant(logits[part])},
      {"classes": tf.constant(classes[part]), "classes_mask": tf.constant(mask[part])},
    )
    for part in (slice(0, 50), slice(50, 60), slice(60, 100))
  ]
  got = evaluate(trainer, batches, None)

  logits, classes = logits[mask].astype(np.float64), classes[mask]
  if is_softmax:
    odds = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    truth = np.eye(4, dtype=bool)[classes]
    predicted = np.eye(4, dtype=bool)[logits.argmax(-1)]
    accuracy = np.mean(logits.argmax(-1) == classes)
  else:
    odds = logits.reshape(len(logits), -1)
    truth, predicted = classes.reshape(odds.shape) == 1, odds > 0
    accuracy = np.mean(truth == predicted)
  hits = (truth & predicted).sum(0)
  ratio = lambda whole: np.mean(hits / np.maximum(whole.sum(0), 1))  # noqa: E731
  aucs = [
    _pairs(odds[:, c], truth[:, c]) for c in range(odds.shape[1]) if truth[:, c].any()
  ]
  assert got["accuracy"] == pytest.approx(accuracy)
  assert got["precision"] == pytest.approx(ratio(predicted))
  assert got["recall"] == pytest.approx(ratio(truth))
  assert got["auc"] == pytest.approx(np.mean(aucs), abs=2e-3)
  assert model.eval_metric_names() == ["accuracy", "auc", "loss", "precision", "recall"]


_BAD_CLASSIFIERS = {
  "an activation": (
    lambda: Sector(activation="relu"),
    r"Sector: activation: expected one of \[sigmoid, softmax\], got 'relu'",
  ),
  "one-hot labels of a softmax": (
    lambda: Sector(label_shape=(3,)).build(),
    r"Sector: labels.classes: expected integers, the numbers of classes, of the shape "
    r"\(1,\) for logits \(1, 3\) float32, got \(1, 3\) int64",
  ),
  "numbers of classes for a sigmoid": (
    lambda: Sector(activation="sigmoid").build(),
    r"Sector: labels.classes: expected 0 or 1, of the shape \(1, 3\) for",
  ),
}


@pytest.mark.parametrize("case", _BAD_CLASSIFIERS)
def test_wrong_classifiers_are_refused(case):
  create, message = _BAD_CLASSIFIERS[case]
  with pytest.raises(errors.SpecError, match=message):
    create()


def test_targets_of_another_shape_are_not_broadcast():
  class Wide(models.RegressionModel):
    def get_feature_specification(self, mode):
      return specs.TensorSpecStruct(x=_SPEC((2,), tf.float32, "x"))

    def get_label_specification(self, mode):
      target = specs.TensorSpecStruct(target=_SPEC((), tf.float32, "y", time_offsets=1))
      return windows.add_mask_specs(target)

    def create_network(self):
      return tf.keras.layers.Dense(1)

    def a_func(self, features, mode):
      return {"inference_output": self.network(features.x)}

  with pytest.raises(
    errors.SpecError, match=r"loss_fn: inference_output: expected the"
  ):
    Wide(1).build()
