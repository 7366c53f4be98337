"""MAML: gradients against hand-derived ones, training, adaptation in the export."""

from __future__ import annotations

import functools
import json
import pathlib

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  actors,
  errors,
  layers,
  meta_learning,
  models,
  policies,
  store,
  training,
)
from t2r_seq.actors.sinks import EpisodeSink
from t2r_seq.meta_learning.meta_policies import pack_condition
from t2r_seq.meta_learning.preprocessors import FixedLenMetaExamplePreprocessor
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct
from t2r_seq.training.trainer import Trainer
from tests import warm_python


class LineModel(models.RegressionModel):
  """y = w . x, by any network."""

  def __init__(self, create=None, **kwargs):
    super().__init__(action_size=1, **kwargs)
    self._create = create or (lambda: tf.keras.layers.Dense(1, use_bias=False))

  def get_feature_specification(self, mode):
    del mode
    return TensorSpecStruct(x=ExtendedTensorSpec((2,), tf.float32, name="x"))

  def get_label_specification(self, mode):
    del mode
    return TensorSpecStruct(target=ExtendedTensorSpec((1,), tf.float32, name="y"))

  def create_network(self):
    return self._create()

  def a_func(self, features, mode):
    network = self.network
    if not isinstance(network, tf.keras.layers.Layer):
      return {"inference_output": network(features.x)}
    return {"inference_output": network(features.x, training=mode == "train")}


class Module(tf.Module):
  def __init__(self):
    super().__init__()
    self.kernel = tf.Variable([[0.3], [-0.7]])

  def __call__(self, x):
    return x @ self.kernel


def tower():
  return tf.keras.Sequential(
    [
      tf.keras.layers.Dense(8, activation="tanh"),
      tf.keras.layers.BatchNormalization(),
      tf.keras.layers.Dense(1),
    ]
  )


def make_tasks(num_tasks=4, num_condition=3, num_inference=2, seed=0):
  """Returns features and labels of tasks y = w . x, each with a w of its own."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=[num_tasks, num_condition + num_inference, 2]).astype("float32")
  y = x @ rng.normal(size=[num_tasks, 2, 1]).astype("float32")
  n = num_condition
  features = {
    "condition/features/x": x[:, :n],
    "condition/labels/target": y[:, :n],
    "inference/features/x": x[:, n:],
  }
  struct = TensorSpecStruct((p, tf.constant(v)) for p, v in features.items())
  return struct, TensorSpecStruct(target=tf.constant(y[:, n:]))


def maml(create=None, steps=1, rate=0.1, preprocessor_cls=None, **inner):
  return meta_learning.MAMLModel(
    LineModel(create),
    preprocessor_cls,
    num_inner_loop_steps=steps,
    inner_loop=meta_learning.MAMLInnerLoopGradientDescent(rate, **inner),
    create_optimizer_fn=lambda: tf.keras.optimizers.SGD(0.05),
  )


def loss_by_hand(w, features, labels, steps, rate):
  """Returns the outer loss of linear regression, in float64 numpy."""
  losses = []
  for x, y, x_new, y_new in zip(
    features["condition/features/x"].numpy().astype(np.float64),
    features["condition/labels/target"].numpy(),
    features["inference/features/x"].numpy(),
    labels["target"].numpy(),
    strict=True,
  ):
    adapted = w
    for _ in range(steps):
      adapted = adapted - rate * 2 / len(x) * x.T @ (x @ adapted - y)
    losses.append(np.mean((x_new @ adapted - y_new) ** 2))
  return np.mean(losses)


@pytest.mark.parametrize(
  ("create", "steps"), [(None, 3), (Module, 1)], ids=["keras", "module"]
)
def test_gradient_of_the_adapted_loss(create, steps):
  model, (features, labels) = maml(create, steps), make_tasks()
  model.build()

  @tf.function
  def gradients():
    return model.compute_gradients(features, labels, lambda loss: loss)

  loss, _, (gradient,) = gradients()
  (variable,) = model.trainable_variables
  w = variable.numpy().astype(np.float64)
  want = loss_by_hand(w, features, labels, steps, 0.1)
  assert float(loss) == pytest.approx(want, rel=1e-5)
  # Second-order terms included: finite differences of the loss by hand.
  for i in range(2):
    step = np.zeros_like(w)
    step[i] = 1e-5
    both = [loss_by_hand(w + s, features, labels, steps, 0.1) for s in (step, -step)]
    assert float(gradient[i, 0]) == pytest.approx((both[0] - both[1]) / 2e-5, rel=1e-3)


class DownhillModel(LineModel):
  """Adapts by a loss that knows no labels: what it says itself."""

  def inner_loss_fn(self, features, labels, inference_outputs, mode):
    del features, labels, mode
    return tf.reduce_mean(inference_outputs["inference_output"])


def test_inner_loss_fn_adapts():
  model, (features, _) = meta_learning.MAMLModel(DownhillModel()), make_tasks()
  model.build()
  (variable,) = model.trainable_variables
  x, x_new = (features[f"{part}/features/x"] for part in ("condition", "inference"))
  step = 0.001 * tf.reduce_mean(x, axis=1)[:, :, None]
  want = x_new @ (tf.convert_to_tensor(variable) - step)
  predicted = model.export_outputs(features)["inference_output"]
  np.testing.assert_allclose(predicted, want, rtol=1e-4, atol=1e-6)
  learned = model.adapt(features)
  np.testing.assert_allclose(
    learned["task/kernel"], variable - step, rtol=1e-4, atol=1e-6
  )


def test_first_order_ignores_second_derivatives():
  model, (features, labels) = maml(use_second_order=False), make_tasks(num_tasks=1)
  model.build()
  _, _, (gradient,) = model.compute_gradients(features, labels, lambda loss: loss)
  w = model.trainable_variables[0].numpy()
  x, y = (features[f"condition/{k}"][0] for k in ("features/x", "labels/target"))
  adapted = w - 0.1 * 2 / 3 * tf.transpose(x) @ (x @ w - y)
  x, y = features["inference/features/x"][0], labels["target"][0]
  want = 2 / 2 * tf.transpose(x) @ (x @ adapted - y)
  np.testing.assert_allclose(gradient, want, rtol=1e-5)


def test_learned_rates_start_at_learning_rate_and_train():
  model, (features, labels) = maml(learn_inner_lr=True), make_tasks()
  trainer = Trainer(model, tf.distribute.get_strategy())
  (name,) = [n for n in model.named_variables if n.startswith("inner_loop/")]
  rate = model.named_variables[name]
  assert rate.numpy() == pytest.approx(0.1)
  trainer.train_step(features, labels)
  assert rate.numpy() != pytest.approx(0.1, abs=1e-6)


@pytest.mark.parametrize("learn_inner_lr", [False, True])
def test_twin_has_separate_weights(learn_inner_lr):
  model = maml(learn_inner_lr=learn_inner_lr)
  model.build()
  before, twin = model.policy_weights, model.twin()
  twin.take_weights({name: value + 1 for name, value in before.items()}, 5)
  assert int(twin.base_model.global_step) == 5
  for name, value in before.items():
    np.testing.assert_array_equal(model.policy_weights[name], value)
    np.testing.assert_allclose(twin.policy_weights[name], value + 1, rtol=1e-6)


@pytest.mark.parametrize(("given", "want"), [({}, 0.1), ({"control_period": 0.2}, 0.2)])
def test_control_period_is_by_default_that_of_the_base_model(given, want):
  model = meta_learning.MAMLModel(LineModel(control_period=0.1), **given)
  model.follow_periods(0.5)
  assert model.control_period == want


class AnnealedModel(LineModel):
  """Scales its action by the global step."""

  def a_func(self, features, mode):
    scale = tf.cast(self.global_step, tf.float32)
    return {"inference_output": scale * self.network(features.x)}


@pytest.mark.parametrize("method", ["export_outputs", "adapt"])
def test_export_holds_the_global_step_of_the_base_model(method):
  model, step = meta_learning.MAMLModel(AnnealedModel()), tf.Variable(3, dtype=tf.int64)
  model.build()
  model.follow_global_step(step)
  features, _ = make_tasks()
  if method == "adapt":
    features = TensorSpecStruct(condition=features.condition)
  traced = tf.function(lambda: dict(getattr(model, method)(features).items()))
  exported = traced.get_concrete_function()
  want = exported()
  step.assign(30)
  tf.nest.map_structure(np.testing.assert_array_equal, exported(), want)


def test_var_scope_selects_adapting_variables():
  model, (features, labels) = maml(tower, var_scope="dense_1"), make_tasks()
  model.build()
  state = model.get_recurrent_state_specification("infer")
  assert sorted(state) == ["task/dense_1/bias", "task/dense_1/kernel"]
  with pytest.raises(errors.SpecError, match="var_scope: expected one that begins"):
    maml(tower, var_scope="head").build()
  del features, labels


def test_frozen_variables_and_specs_by_mode():
  class Differs(LineModel):
    def get_label_specification(self, mode):
      label = super().get_label_specification(mode)
      if mode == "eval":
        label["extra"] = ExtendedTensorSpec((1,), tf.float32, name="z")
      return label

    def model_eval_fn(self, features, labels, inference_outputs, mode):
      metrics = super().model_eval_fn(features, labels, inference_outputs, mode)
      return {**metrics, "extra": tf.reduce_mean(labels.extra)}

  base = Differs(tower, filter_trainables_fn=lambda name: name.startswith("dense_1"))
  model = meta_learning.MAMLModel(base)
  features, labels = make_tasks()
  trainer = Trainer(model, tf.distribute.get_strategy())
  before = {n: v.numpy() for n, v in model.named_variables.items()}
  trainer.train_step(features, labels)
  moved = {
    n for n, v in model.named_variables.items() if (before[n] != v).numpy().any()
  }
  assert {n for n in moved if "moving" not in n} == {
    "base/dense_1/kernel",
    "base/dense_1/bias",
  }
  features["condition/labels/extra"] = features["condition/labels/target"]
  labels["extra"] = tf.fill(labels["target"].shape, 2.0)
  sums, _, count = trainer.eval_step(features, labels)
  assert float(sums["extra"] / count) == pytest.approx(2.0)


def test_two_replicas_match_one():
  script = pathlib.Path(__file__).with_name("maml_replicas.py")
  process = warm_python.start(str(script))
  stdout, stderr = process.communicate(timeout=300)
  assert process.returncode == 0, stderr[-3000:]
  one, two = json.loads(stdout.splitlines()[-1])
  np.testing.assert_allclose(one, two, rtol=1e-5)
  assert one[-1] < one[0]


def test_batch_normalization_trains():
  model, batch = maml(tower, steps=2), make_tasks()
  trainer = Trainer(model, tf.distribute.get_strategy())
  before = model.named_variables["base/batch_normalization/moving_mean"].numpy()
  scalars = trainer.train_step(*batch)
  assert {"inner_loss_0", "inner_loss_1", "inner_loss_2", "loss"} <= set(scalars)
  assert not np.allclose(
    before, model.named_variables["base/batch_normalization/moving_mean"]
  )


def test_parallel_and_compiled_gradients_match():
  features, labels = make_tasks()
  found = {}
  for use_parallel_for in (False, True):
    tf.keras.utils.set_random_seed(0)
    model = meta_learning.MAMLModel(LineModel(), use_parallel_for=use_parallel_for)
    model.build()
    for jit_compile in (False, True):
      gradients = tf.function(
        lambda model: model.compute_gradients(features, labels, lambda loss: loss)[2],
        jit_compile=jit_compile,
      )
      found[use_parallel_for, jit_compile] = tf.nest.flatten(gradients(model))
  want = found.pop((False, False))
  assert all(np.abs(gradient).max() > 0 for gradient in want)
  for name, gradients in found.items():
    for one, other in zip(gradients, want, strict=True):
      np.testing.assert_allclose(one, other, 1e-4, 1e-6, err_msg=str(name))


class FlowModel(LineModel):
  """Gives no action in training, which needs only what the loss is of."""

  def __init__(self):
    decoder = functools.partial(layers.FlowMatchingDecoder, num_steps=3, seed=0)
    super().__init__(self.create_action_decoder, action_decoder_cls=decoder)

  def a_func(self, features, mode):
    return self.network(features.x, training=mode == "train")


@pytest.mark.parametrize("use_parallel_for", [False, True])
def test_model_without_training_action_adapts(use_parallel_for, tmp_path):
  model = meta_learning.MAMLModel(FlowModel(), use_parallel_for=use_parallel_for)
  trainer = Trainer(model, tf.distribute.get_strategy())
  features, labels = make_tasks(2, 4, 1)
  assert np.isfinite(trainer.train_step(features, labels)["loss"])
  training.export_saved_model(model, str(tmp_path), 1)
  predictor = policies.ExportedSavedModelPredictor(str(tmp_path), timeout=0.0)
  predictor.restore()
  given = {path: value.numpy() for path, value in features.items()}
  observed = {"x": given["inference/features/x"][:, 0]}
  predictor.reset(2)
  before = predictor.step(observed)["inference_output"]
  for env in range(2):
    condition = {p: v[env] for p, v in given.items() if p.startswith("condition")}
    predictor.adapt(condition, env)
  after = predictor.step(observed)["inference_output"]
  assert np.abs(after - before).min() > 0


class SearchedModel(models.CriticModel):
  """The value of answers to x; the export looks for the best one."""

  def get_state_specification(self):
    return TensorSpecStruct(x=ExtendedTensorSpec((2,), tf.float32, name="x"))

  def get_action_specification(self):
    return TensorSpecStruct(y=ExtendedTensorSpec((1,), tf.float32, name="y"))

  def get_label_specification(self, mode):
    return TensorSpecStruct(reward=ExtendedTensorSpec((1,), tf.float32, name="reward"))

  def create_network(self):
    layers = [tf.keras.layers.Dense(8, "tanh"), tf.keras.layers.Dense(1)]
    return tf.keras.Sequential(layers)

  def q_func(self, state, action, mode):
    return {"q_predicted": self.network(tf.concat([state.x, action.y], axis=-1))}


def test_critic_with_search_adapts(tmp_path):
  search = policies.CrossEntropySearch(num_samples=16, num_elites=4)
  model = meta_learning.MAMLModel(SearchedModel(search=search))
  model.build()
  training.export_saved_model(model, str(tmp_path), 1)
  predictor = policies.ExportedSavedModelPredictor(str(tmp_path), timeout=0.0)
  predictor.restore()
  # What a task is learned from has one answer, and no candidates.
  condition = {
    "condition/features/state/x": np.ones((3, 2), np.float32),
    "condition/features/action/y": np.ones((3, 1), np.float32),
    "condition/labels/reward": np.full((3, 1), 9, np.float32),
  }
  spec = predictor.get_adaptation_specification()
  assert {path: tuple(leaf.shape[1:]) for path, leaf in spec.items()} == {
    path: value.shape[1:] for path, value in condition.items()
  }
  observed = {"state/x": np.ones((1, 2), np.float32)}
  before = predictor.step(observed)["q_predicted"]
  predictor.adapt(condition)
  found = predictor.step(observed)
  assert found["action"].shape == (1, 1)
  assert found["q_predicted"] > before


class CountingModel(models.RecurrentRegressionModel):
  """The sum of x so far."""

  def __init__(self):
    super().__init__(action_size=2, burn_in=1)

  def get_feature_specification(self, mode):
    spec = ExtendedTensorSpec((2,), tf.float32, name="x", is_sequence=True)
    return TensorSpecStruct(x=spec)

  def get_label_specification(self, mode):
    spec = ExtendedTensorSpec((2,), tf.float32, name="y", is_sequence=True)
    return TensorSpecStruct(target=spec)

  def get_recurrent_state_specification(self, mode):
    return {"h": ExtendedTensorSpec((2,), tf.float32)}

  def create_network(self):
    return tf.keras.layers.SimpleRNN(2, return_sequences=True, return_state=True)

  def recurrent_network_fn(self, features, state, mode):
    steps, h = self.network(features.x, initial_state=state["h"])
    return {"inference_output": steps}, {"h": h}


def test_recurrent_model_adapts_to_tasks_of_a_store(tmp_path):
  column = ExtendedTensorSpec((2,), tf.float32, is_sequence=True)
  columns = {"x": column, "y": column, "task": ExtendedTensorSpec((), tf.int64)}
  with store.EpisodeStore.create(str(tmp_path / "store"), columns) as writer:
    for number in range(4):
      x = np.full([6, 2], 0.1 * (number + 1), np.float32)
      y = np.cumsum(x, axis=0)
      writer.append_episode({"x": x, "y": y, "task": np.int64(number // 2)})
  generator = meta_learning.TaskStoreInputGenerator(
    str(tmp_path / "store"), batch_size=2, sequence_length=4, seed=0
  )
  training.train_eval_model(
    meta_learning.MAMLModel(CountingModel()),
    input_generator_train=generator,
    max_train_steps=1,
    model_dir=str(tmp_path / "run"),
  )
  path = str(tmp_path / "run" / "export" / "latest")
  predictor = policies.ExportedSavedModelPredictor(path, timeout=0.0)
  predictor.restore()
  observed = {"x": np.ones((1, 2), np.float32)}
  before = predictor.step(observed, True)["inference_output"]
  sequence = np.ones((2, 4, 2), np.float32)
  predictor.adapt(
    {"condition/features/x": sequence, "condition/labels/target": sequence}
  )
  first = predictor.step(observed, True)["inference_output"]
  second = predictor.step(observed)["inference_output"]
  assert np.abs(first - before).max() > 0
  assert np.abs(second - first).max() > 0  # It remembers.
  with pytest.raises(errors.SpecError, match="features/x: expected samples of one win"):
    policies.loaded_export.OneTask.of(predictor)


class LineEnv(gymnasium.Env):
  """Asks for w . x, where w is the task's; the reward is minus the squared error."""

  observation_space = gymnasium.spaces.Box(-3, 3, (2,), np.float32)
  action_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)

  def reset_task(self, seed):
    self.w = np.random.default_rng(seed).normal(size=2)

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self.steps = 0
    return self._see(), {}

  def step(self, action):
    right, self.steps = self.x @ self.w, self.steps + 1
    reward = -float((action[0] - right) ** 2)
    info = {"target": np.array([right], np.float32)}
    return self._see(), reward, False, self.steps == 4, info

  def _see(self):
    self.x = self.np_random.normal(size=2).astype(np.float32)
    return self.x


class RightPolicy:
  def __init__(self, env):
    self._env = env

  def reset(self):
    pass

  def sample_action(self, obs, explore_prob):
    del explore_prob
    return np.array([obs @ self._env.w], np.float32), None


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A model of lines, trained and exported."""
  tf.keras.utils.set_random_seed(0)
  model = maml(steps=5, rate=0.2)
  trainer = Trainer(model, tf.distribute.get_strategy())
  for seed in range(30):
    trainer.train_step(*make_tasks(8, 4, 4, seed))
  folder = str(tmp_path_factory.mktemp("maml"))
  training.export_saved_model(model, folder, 30)
  predictor = policies.ExportedSavedModelPredictor(folder)
  predictor.restore()
  return model, predictor


def test_export_adapts_like_the_model(trained):
  model, predictor = trained
  features, _ = make_tasks(2, 4, 1, seed=99)
  want = model.export_outputs(features)["inference_output"].numpy()
  given = {p: v.numpy() for p, v in features.items()}
  np.testing.assert_allclose(
    predictor.predict(given)["inference_output"], want, rtol=1e-4, atol=1e-5
  )
  condition = {p: v for p, v in given.items() if p.startswith("condition")}
  assert sorted(predictor.get_adaptation_specification()) == sorted(condition)
  observed = {"x": given["inference/features/x"][:, 0]}
  predictor.reset(2)
  before = predictor.step(observed)["inference_output"]
  for env in range(2):
    predictor.adapt({p: v[env] for p, v in condition.items()}, env)
  for is_first in (None, True):  # The task outlives the episode.
    predicted = predictor.step(observed, is_first)["inference_output"]
    np.testing.assert_allclose(predicted, want[:, 0], rtol=1e-4, atol=1e-5)
  pure = predictor.pure
  state = pure.adapt(condition, pure.initial_state([0, 1]))
  predicted, _ = pure.step(observed, state, [True, True])
  np.testing.assert_allclose(
    predicted["inference_output"], want[:, 0], rtol=1e-4, atol=1e-5
  )
  predictor.reset(2)
  forgotten = predictor.step(observed)["inference_output"]
  np.testing.assert_array_equal(forgotten, before)


def test_exports_of_meta_examples_parse_records(trained, tmp_path):
  """If the numbers of samples are fixed; `parse_tf_example` equals arrays."""
  preprocessor_cls = functools.partial(
    FixedLenMetaExamplePreprocessor, num_condition_samples_per_task=4
  )
  model = maml(steps=5, rate=0.2, preprocessor_cls=preprocessor_cls)
  model.build()
  model.take_weights(trained[0].policy_weights, 0)
  features, _ = make_tasks(2, 4, 1, seed=99)
  want = trained[0].export_outputs(features)["inference_output"]
  by_name = {
    f"{part}_ep{i}/{name}": features[path][:, i]
    for path, part, name in (
      ("condition/features/x", "condition", "x"),
      ("condition/labels/target", "condition", "y"),
      ("inference/features/x", "inference", "x"),
    )
    for i in range(features[path].shape[1])
  }
  examples = [
    tf.train.Example(
      features=tf.train.Features(
        feature={
          name: tf.train.Feature(float_list=tf.train.FloatList(value=value[task]))
          for name, value in by_name.items()
        }
      )
    ).SerializeToString()
    for task in range(2)
  ]
  loaded = tf.saved_model.load(training.export_saved_model(model, str(tmp_path), 0))
  got = loaded.signatures["parse_tf_example"](examples=tf.constant(examples))
  np.testing.assert_allclose(got["inference_output"], want, rtol=1e-4, atol=1e-5)


def test_policy_adapts_to_demonstrations(trained):
  env, (_, predictor) = LineEnv(), trained
  written = []
  metrics = actors.run_meta_env(
    env,
    meta_learning.MAMLRegressionPolicy(predictor, pack_condition_fn=_pack_targets),
    RightPolicy(env),
    num_tasks=4,
    num_demos=2,
    episode_writer=written.append,
  )
  without = actors.run_meta_env(
    env,
    meta_learning.MAMLRegressionPolicy(predictor),
    num_tasks=4,
    num_adaptations_per_task=1,
  )
  assert len(written) == 4 * (2 + 2)
  assert metrics["step_0_reward"] > 0.2 * without["step_0_reward"]
  gained = metrics["step_1_reward"] - metrics["step_0_reward"]
  assert metrics["step_1_improvement"] == pytest.approx(gained)


class StepsSink(EpisodeSink):
  def __init__(self):
    self.steps = []

  def append(self, step, env=0):
    self.steps.append(step)

  def end_episode(self, env=0):
    pass

  def close(self):
    pass


def test_collect_loop_adapts(trained):
  env, sink = LineEnv(), StepsSink()
  collect = functools.partial(
    actors.run_meta_env, demo_policy=RightPolicy(env), num_tasks=2, num_demos=3
  )
  metrics = actors.collect_eval_loop(
    env,
    policy_class=lambda: meta_learning.MAMLRegressionPolicy(trained[1]),
    run_agent_fn=collect,
    sink=sink,
  )
  assert metrics["num_episodes"] == 2 * (3 + 2)
  assert metrics["num_steps"] == len(sink.steps) == 4 * 10
  assert metrics["collect/step_1_improvement"] != 0


def test_stopped_run_reports_finished_tasks(trained):
  env, sink = LineEnv(), StepsSink()
  stop = type("Stop", (), {"is_set": lambda self: len(sink.steps) >= 4 * 7})()
  metrics = actors.run_meta_env(
    env,
    meta_learning.MAMLRegressionPolicy(trained[1]),
    RightPolicy(env),
    num_demos=3,
    seed=None,
    sink=sink,
    stop=stop,
  )
  assert len(sink.steps) == 4 * 7 and metrics["num_episodes"] == 7
  assert np.isfinite(metrics["step_1_reward"])


@pytest.mark.parametrize("is_numbered", [False, True])
def test_export_and_model_predictors_adapt_alike(trained, is_numbered):
  """Also where records hold a task each, its samples by their numbers."""
  model, export = trained
  env, demonstration = LineEnv(), []
  env.reset_task(0)
  actors.run_env(env, RightPolicy(env), 1, episode_writer=demonstration.append)
  if is_numbered:
    preprocessor_cls = functools.partial(
      FixedLenMetaExamplePreprocessor, num_condition_samples_per_task=4
    )
    numbered = maml(steps=5, rate=0.2, preprocessor_cls=preprocessor_cls)
    numbered.build()
    numbered.take_weights(model.policy_weights, 0)
    model = numbered
  answers = []
  for predictor in (export, policies.ModelPredictor(model)):
    policy = meta_learning.MAMLRegressionPolicy(predictor)
    policy.restore()
    policy.reset_task()
    before = policy.SelectAction(env.x)
    policy.adapt(demonstration)
    answers.append([before, policy.SelectAction(env.x)])
  assert abs(answers[0][0] - answers[0][1]) > 0.01
  np.testing.assert_allclose(*answers, rtol=1e-4, atol=1e-5)


def _pack_targets(episodes, spec):
  steps = [
    {**step, "info": {"target": step["next_info"]["target"]}}
    for episode in episodes
    for step in episode
  ]
  return pack_condition([steps], spec)


def test_pack_condition_stacks_windows():
  steps = [
    {"observation": {"x": np.float32([t])}, "action": np.float32([t]), "reward": -t}
    for t in range(3)
  ]
  spec = TensorSpecStruct()
  spec["condition/features/x"] = ExtendedTensorSpec((None, 2, 1), tf.float32)
  spec["condition/labels/action"] = ExtendedTensorSpec((None, 1), tf.float32)
  spec["condition/labels/target"] = ExtendedTensorSpec((None, 1), tf.float32)
  spec["condition/labels/reward"] = ExtendedTensorSpec((None, 1), tf.float32)
  packed = pack_condition(
    [steps, steps], spec, num_samples=4, time_offsets={"condition/features/x": (-1, 0)}
  )
  seen = packed["condition/features/x"][..., 0]
  np.testing.assert_array_equal(seen, [[1, 2], [0, 0], [0, 1], [1, 2]])
  for label in ("action", "target"):
    predicted = packed[f"condition/labels/{label}"][:, 0]
    np.testing.assert_array_equal(predicted, [2, 0, 1, 2])
  np.testing.assert_array_equal(
    packed["condition/labels/reward"][:, 0], [-2, 0, -1, -2]
  )


def test_pack_condition_spreads_samples_over_episodes():
  episodes = [
    [{"observation": np.float32([10 * n + t])} for t in range(length)]
    for n, length in enumerate((3, 7, 2))
  ]
  spec = TensorSpecStruct()
  spec["condition/features/x"] = ExtendedTensorSpec((None, 1), tf.float32)
  pack = functools.partial(pack_condition, episodes, spec)
  packed = pack(num_samples=6, num_episodes=2)["condition/features/x"]
  assert packed[:, 0].tolist() == [10, 13, 16, 20, 20, 21]
  with pytest.raises(errors.SpecError, match="num_samples: expected a multiple"):
    pack(num_samples=5, num_episodes=2)
  with pytest.raises(errors.SpecError, match="expected 4 episodes, got 3"):
    pack(num_samples=4, num_episodes=4)


def test_zero_inner_steps_count_as_one(caplog):
  model = maml(steps=0)
  assert "num_inner_loop_steps: expected at least 1, got 0" in caplog.text
  model.build()
  outputs = model.inference_network_fn(*make_tasks(), "eval")
  assert outputs["inner_losses"].shape == (4, 2)


def test_errors(trained, tmp_path):
  predictor = trained[1]
  condition = {"condition/features/x": np.zeros([3, 2], np.float32)}
  with pytest.raises(errors.SpecError, match=r"condition/labels/target.*nothing"):
    predictor.adapt(condition)
  with pytest.raises(errors.SpecError, match="episode_data: expected steps, got none"):
    pack_condition([], predictor.get_adaptation_specification())
  with pytest.raises(errors.SpecError, match="expected an environment with reset_task"):
    actors.run_meta_env(gymnasium.make("CartPole-v1"), RightPolicy(None))
  plain = LineModel()
  plain.build()
  training.export_saved_model(plain, str(tmp_path), 0)
  other = policies.ExportedSavedModelPredictor(str(tmp_path))
  other.restore()
  with pytest.raises(errors.SpecError, match=r"no signature 'adapt'.*learns no tasks"):
    other.adapt(condition)


@pytest.mark.parametrize("use_second_order", [True, False])
def test_inner_loop_adapts_functions_in_eager_mode(use_second_order):
  x = tf.Variable([2.0])
  inner = meta_learning.MAMLInnerLoopGradientDescent(0.1, use_second_order)
  data = ({"a": tf.constant([0.5])}, {"t": tf.constant([0.0])})

  def infer(features, labels=None, mode=None):
    del labels, mode
    return {"prediction": features["a"] * x}

  def train(features, labels, inference_outputs, mode=None):
    del features, mode
    return tf.reduce_mean((labels["t"] - inference_outputs["prediction"]) ** 2)

  with tf.GradientTape() as tape:
    outputs, _, losses = inner.inner_loop([data, data, data], infer, train)
    outer = train(*data, outputs[1])
  shrink = 1 - 0.1 * 2 * 0.25  # Of x in a step.
  np.testing.assert_allclose(losses, [0.25 * (2 * shrink**k) ** 2 for k in range(3)])
  want = 2 * 0.25 * 2 * shrink ** (4 if use_second_order else 2)
  np.testing.assert_allclose(tape.gradient(outer, x), [want], rtol=1e-6)
