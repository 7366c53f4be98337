"""Optimizers by gin: decay, clipping, accumulation, groups, projected gradients."""

from __future__ import annotations

import functools

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, models, specs
from t2r_seq.models.updates import project_gradients
from t2r_seq.training.trainer import Trainer

_SPEC = specs.ExtendedTensorSpec
_X = np.linspace(-1, 1, 8, dtype=np.float32)[:, None]
_FEATURES = {"x": tf.constant(_X)}
_LABELS = {"target": tf.constant(3 * _X + 1)}


@gin.configurable
class TwoLayers(models.RegressionModel):
  """One layer behind the other, and a normalisation."""

  def __init__(self, **kwargs):
    super().__init__(action_size=1, **kwargs)

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(x=_SPEC((1,), tf.float32, "x"))

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(target=_SPEC((1,), tf.float32, "y"))

  def create_network(self):
    dense = tf.keras.layers.Dense
    first, second = [tf.keras.initializers.RandomNormal(0, 1, seed=i) for i in (1, 2)]
    return {
      "tower": dense(3, kernel_initializer=first),
      "norm": tf.keras.layers.LayerNormalization(),
      "head": dense(1, kernel_initializer=second, bias_initializer="ones"),
    }

  def a_func(self, features, mode):
    seen = self.network["norm"](self.network["tower"](features.x))
    return {"inference_output": self.network["head"](seen)}


def _trained(num_steps=1, create=None, targets=(_LABELS["target"],), **kwargs):
  """Trains by what gin says, or by an optimizer; returns the trainer."""
  if create is not None:
    kwargs["create_optimizer_fn"] = create
  trainer = Trainer(TwoLayers(**kwargs), tf.distribute.get_strategy())
  for step in range(num_steps):
    trainer.train_step(_FEATURES, {"target": targets[step % len(targets)]})
  return trainer


def test_default_optimizer_takes_the_binding_of_tensor2robot():
  gin.parse_config("default_create_optimizer_fn.learning_rate = 0.5")
  before = _by_name(_trained(0))
  after = _by_name(_trained(1))
  step = np.abs(after["head/kernel"] - before["head/kernel"])
  # The first step of Adam is as long as the learning rate.
  np.testing.assert_allclose(step, 0.5, rtol=1e-3)


def _by_name(trainer):
  return {k: np.copy(v) for k, v in trainer.model.named_variables.items()}


def _steps(trainer):
  """Returns by how much the first step has changed each variable."""
  before, after = _by_name(_trained(0)), _by_name(trainer)
  return {name: after[name] - before[name] for name in before}


@pytest.fixture(name="plain", scope="module")
def fixture_plain():
  """The first step of plain gradient descent, by name; the rate is 0.1."""
  return _steps(_trained(create=lambda: tf.keras.optimizers.SGD(0.1)))


_BASE = """
  TwoLayers.create_optimizer_fn = @create_gradient_descent_optimizer
  create_gradient_descent_optimizer.learning_rate_fn = @create_constant_learning_rate
  create_constant_learning_rate.initial_learning_rate = 0.1
"""
_OPTION = "create_gradient_descent_optimizer."


def _norm(steps):
  return np.sqrt(sum(np.sum(step**2) for step in steps.values()))


_OPTIONS = {
  "clipnorm": (
    "clipnorm = 0.5",
    lambda step, plain: step * min(1, 0.05 / np.linalg.norm(step)),
  ),
  "clipvalue": ("clipvalue = 0.5", lambda step, plain: np.clip(step, -0.05, 0.05)),
  "global_clipnorm": (
    "global_clipnorm = 0.5",
    lambda step, plain: step * 0.05 / _norm(plain),
  ),
}


@pytest.mark.parametrize("case", _OPTIONS)
def test_gradients_are_clipped_by_gin(case, plain):
  binding, clip = _OPTIONS[case]
  gin.parse_config(_BASE + _OPTION + binding)
  got = _steps(_trained())
  for name, step in plain.items():
    np.testing.assert_allclose(got[name], clip(step, plain), rtol=1e-4, err_msg=name)
  assert not np.allclose(_norm(got), _norm(plain))


_DECAYED = {
  "by default neither biases nor norms": ("", {"tower/kernel", "head/kernel"}),
  "all but the excluded": ("('head/*',)", {"tower/", "norm/"}),
}


@pytest.mark.parametrize("case", _DECAYED)
def test_weights_decay_but_those_that_are_excluded(case, plain):
  exclude, decayed = _DECAYED[case]
  gin.parse_config(_BASE + _OPTION + "weight_decay = 0.5")
  if exclude:
    gin.parse_config(f"{_OPTION}weight_decay_exclude = {exclude}")
  before, got = _by_name(_trained(0)), _steps(_trained())
  for name, step in plain.items():
    is_decayed = any(name.startswith(scope) for scope in decayed)
    want = step - 0.1 * 0.5 * before[name] * is_decayed
    np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-6, err_msg=name)


def test_accumulated_steps_train_as_one_of_all_their_examples():
  one, other = _LABELS["target"], -_LABELS["target"]
  gin.parse_config(_BASE + _OPTION + "gradient_accumulation_steps = 2")
  got = _trained(2, targets=(one, other))
  # The mean of the gradients: squares differ by what does not depend on the weights.
  want = _trained(create=lambda: tf.keras.optimizers.SGD(0.1), targets=(0 * one,))
  for name, value in _by_name(want).items():
    np.testing.assert_allclose(_by_name(got)[name], value, rtol=1e-5, atol=1e-6)
  assert int(got.optimizer.iterations) == 1 and got.global_step == 2
  changed = _steps(_trained(1))
  assert not any(np.any(step) for step in changed.values())


_GROUPS = """
  TwoLayers.create_optimizer_fn = @create_grouped_optimizer
  create_grouped_optimizer.groups = {
    'head/*': @fast/create_momentum_optimizer,
    '*': @create_gradient_descent_optimizer,
  }
  create_momentum_optimizer.learning_rate_fn = @fast/create_constant_learning_rate
  create_gradient_descent_optimizer.learning_rate_fn = @create_constant_learning_rate
  fast/create_constant_learning_rate.initial_learning_rate = 0.2
  create_constant_learning_rate.initial_learning_rate = 0.1
"""


def test_groups_have_separate_optimizers(plain, tmp_path):
  gin.parse_config(_GROUPS)
  trainer = _trained(use_avg_model_params=True)
  for name, step in _steps(trainer).items():
    factor = 2 if name.startswith("head/") else 1
    np.testing.assert_allclose(step, factor * plain[name], rtol=1e-4, atol=1e-7)
  rates = {"learning_rate/head/*": 0.2, "learning_rate/*": 0.1}
  assert trainer.learning_rates == pytest.approx(rates)

  path = trainer.checkpoint().write(str(tmp_path / "checkpoint"))
  keys = "\n".join(tf.train.load_checkpoint(path).get_variable_to_shape_map())
  assert "optimizer/head.S*/" in keys and "averages/" in keys
  restored = _trained(0, use_avg_model_params=True)
  restored.checkpoint().read(path).assert_existing_objects_matched().assert_consumed()
  for each in (trainer, restored):
    each.train_step(_FEATURES, _LABELS)
  for name, value in _by_name(trainer).items():
    np.testing.assert_array_equal(_by_name(restored)[name], value, err_msg=name)
  with trainer.model.averaged_weights():
    averaged = _by_name(trainer)
  assert not np.array_equal(averaged["head/kernel"], _by_name(trainer)["head/kernel"])


def test_groups_scale_their_losses_together():
  half = tf.keras.mixed_precision.LossScaleOptimizer
  sgd = lambda: half(tf.keras.optimizers.SGD(0.1), initial_scale=2.0**100)  # noqa: E731
  groups = {"head/*": sgd, "*": sgd}
  trainer = _trained(0, lambda: models.create_grouped_optimizer(groups))
  before = _by_name(trainer)
  huge = tf.fill([8, 1], 1e10)
  for target, is_skipped in ((huge, True), (_LABELS["target"], False)):
    trainer.train_step(_FEATURES, {"target": target})
    for name, value in _by_name(trainer).items():
      if not name.endswith("/bias"):  # By symmetry they have no gradient.
        assert np.array_equal(value, before[name]) == is_skipped, name
  assert trainer.first_bad_step is None


def _adam():
  return tf.keras.optimizers.Adam(0.1)


def _grouped(groups, num_steps=0, **options):
  create = functools.partial(models.create_grouped_optimizer, groups, **options)
  return lambda: _trained(num_steps, create)


def test_iterations_of_groups_count_all_updates():
  create = _grouped({"head/*": _adam, "*": _adam}, intervals={"head/*": 2}, num_steps=3)
  assert int(create().optimizer.iterations) == 3


_BAD = {
  "no pattern for a variable": (
    _grouped({"head/*": _adam, "tower/kernel": _adam}),
    r"create_grouped_optimizer: groups: expected a pattern for each variable, got none "
    r"for \[norm/beta, norm/gamma, tower/bias\]. Add a last group '\*'",
  ),
  "no variable for a pattern": (
    _grouped({"heads/*": _adam, "*": _adam}),
    r"expected patterns of variables, got none for \[heads/\*\]. The variables are \[",
  ),
  "an interval of no group": (
    _grouped({"head/*": _adam, "*": _adam}, intervals={"heads/*": 2}),
    r"intervals: expected patterns of groups before the last one .*, got 'heads/\*'",
  ),
  "an interval of the last group": (
    _grouped({"head/*": _adam, "*": _adam}, intervals={"*": 2}),
    r"intervals: expected patterns of groups before the last one .*, got '\*'",
  ),
  "an interval of no steps": (
    _grouped({"head/*": _adam, "*": _adam}, intervals={"head/*": 0}),
    r"create_grouped_optimizer: intervals: head/\*: expected an integer of at least 1",
  ),
  "an optimizer in place of its factory": (
    lambda: models.create_grouped_optimizer({"*": _adam()}),
    r"groups: expected functions that create optimizers, got .* leave out the paren",
  ),
  "groups that accumulate differently": (
    _grouped(
      {
        "head/*": _adam,
        "*": lambda: models.create_adam_optimizer(gradient_accumulation_steps=2),
      }
    ),
    r"gradient_accumulation_steps: expected the same of all groups, got \{'head/\*': 1",
  ),
  "no such optimizer": (
    lambda: models.create_keras_optimizer("Adamm"),
    r"create_keras_optimizer: optimizer: expected one of .* Did you mean 'Adam",
  ),
  "two ways to clip": (
    lambda: models.create_keras_optimizer("SGD", clipnorm=1.0, clipvalue=1.0),
    r"clipping: expected one way of it, got \{'clipnorm': 1.0, 'clipvalue': 1.0\}",
  ),
  "no steps": (
    lambda: models.create_keras_optimizer("SGD", gradient_accumulation_steps=0),
    r"gradient_accumulation_steps: expected an integer of at least 1, got 0",
  ),
}


@pytest.mark.parametrize("case", _BAD)
def test_wrong_optimizers_are_refused(case):
  make, message = _BAD[case]
  with pytest.raises(errors.SpecError, match=message):
    make()


# name: (gradients of each loss in one variable of two numbers, what is applied)
CASES = {
  "no conflict": ([[1.0, 0.0], [0.0, 2.0]], [1.0, 2.0]),
  # (1, 0) loses its part along (-1, 1), and that its part along (1, 0).
  "a conflict": ([[1.0, 0.0], [-1.0, 1.0]], [0.5, 1.5]),
  "one against itself is none": ([[3.0, -1.0]], [3.0, -1.0]),
  "a loss that is flat": ([[1.0, 2.0], [0.0, 0.0]], [1.0, 2.0]),
}


@pytest.mark.parametrize(("given", "want"), CASES.values(), ids=CASES)
def test_conflicts_are_projected_away(given, want):
  (applied,) = project_gradients([[tf.constant(each)] for each in given])
  np.testing.assert_allclose(applied, want, atol=1e-6)


def test_conflicts_are_of_all_variables_together():
  first = [tf.constant([[1.0]]), tf.constant([0.0]), None, tf.constant([2.0])]
  second = [tf.constant([[-1.0]]), tf.constant([1.0]), None, None]
  applied = project_gradients([first, second])
  assert applied[2] is None
  # Along (-1, 1, 0): -1 / 2 of it; along (1, 0, 2): -1 / 5.
  np.testing.assert_allclose(applied[0], [[0.5 - 0.8]], atol=1e-6)
  np.testing.assert_allclose(applied[1], [0.5 + 1.0], atol=1e-6)
  np.testing.assert_allclose(applied[3], [2.0 + 0.4], atol=1e-6)


@pytest.mark.parametrize("given", [[], [[tf.zeros(1)], []]])
def test_gradients_that_do_not_fit_are_refused(given):
  with pytest.raises(errors.SpecError, match="project_gradients: gradients: expected"):
    project_gradients(given)
