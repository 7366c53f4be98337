"""The loop with real exports: it picks up what is new and whole."""

from __future__ import annotations

import os
import shutil

import tensorflow as tf

from t2r_seq import actors, models, policies, specs, training
from t2r_seq.actors.sinks import EpisodeSink

_SPEC = specs.ExtendedTensorSpec


class _Model(models.RegressionModel):
  """Answers a constant that is its only weight."""

  def get_feature_specification(self, mode):
    pos = _SPEC((2, 2), tf.float32, "pos", time_offsets=(-1, 0))
    return specs.TensorSpecStruct({"state/pos": pos})

  def get_label_specification(self, mode):
    target = _SPEC((2,), tf.float32, "target", time_offsets=0)
    return specs.TensorSpecStruct({"target": target})

  def create_network(self):
    return tf.keras.layers.Dense(2, kernel_initializer="zeros")

  def a_func(self, features, mode):
    flat = tf.reshape(features["state/pos"], [-1, 4])
    return {"inference_output": self.network(flat)}


class _Learner:
  """Exports a policy that answers its training step, before an episode starts."""

  def __init__(self, env, export_dir, plan):
    self._env, self._export_dir, self._plan = env, export_dir, list(plan)
    self._model = _Model()
    self._model.build()

  def reset(self, **kwargs):
    if self._plan:
      self._plan.pop(0)(self)
    return self._env.reset(**kwargs)

  def __getattr__(self, name):
    return getattr(self._env, name)

  def export(self, global_step):
    self._model.network.bias.assign([float(global_step), 0.0])
    return training.export_saved_model(
      self._model, self._export_dir, global_step=global_step
    )


def _nothing(learner):
  pass


def _export(step):
  return lambda learner: learner.export(step)


def _half_written(learner):
  """A folder with a version's name that is still being copied."""
  version = max(training.exports.export_versions(learner._export_dir))
  source = os.path.join(learner._export_dir, str(version))
  target = os.path.join(learner._export_dir, str(version + 1))
  shutil.copytree(source, target)
  shutil.rmtree(os.path.join(target, "variables"))


class _Actions(EpisodeSink):
  """Keeps the actions' first coordinates."""

  def __init__(self):
    self.actions = []

  def append(self, step, env=0):
    self.actions.append(float(step["action"][0]))

  def end_episode(self, env=0):
    pass

  def close(self):
    pass


def _policy(export_dir):
  predictor = policies.ExportedSavedModelPredictor(export_dir, timeout=0)
  return policies.RegressionPolicy(predictor)


def test_exports_are_picked_up_between_episodes(make_env, make_policy, tmp_path):
  export_dir = str(tmp_path / "exports")
  plan = [_nothing, _export(2), _nothing, _export(5), _half_written, _export(9)]
  sink = _Actions()
  result = actors.collect_eval_loop(
    _Learner(make_env(), export_dir, plan),
    policy_class=lambda: _policy(export_dir),
    num_collect=1,
    run_agent_fn=lambda **kwargs: actors.run_env(**{**kwargs, "max_steps": 1}),
    continuous=True,
    max_steps=9,
    sink=sink,
    initial_policy_class=make_policy,
    wait_for_new_policy=False,
  )
  # An export that appears as an episode begins acts in the next one; half of one never.
  initial, acted = sink.actions[:2], sink.actions[2:]
  assert all(1 <= action < 1.2 for action in initial)
  assert acted == [2.0, 2.0, 5.0, 5.0, 9.0]
  assert (result["global_step"], result["num_rounds"]) == (9, 7)
