"""A small project for the command line: a point drifts, the action is its velocity.

Copied into a temporary folder by the tests, whose gin files import it.
"""

from __future__ import annotations

import os
import signal

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import models, specs


@gin.configurable
class DriftEnv:
  """A point that drifts at a constant unknown velocity for five steps."""

  def reset(self, seed=None, options=None):
    rng = np.random.default_rng(seed)
    self._pos, self._velocity = rng.uniform(-1, 1, [2, 2]).astype(np.float32)
    self._t = 0
    return self._observe(), {}

  def step(self, action):
    reward = -float(np.abs(action - self._velocity).mean())
    self._pos = self._pos + self._velocity
    self._t += 1
    return self._observe(), reward, False, self._t == 5, {}

  def close(self):
    pass

  def _observe(self):
    return {"pos": self._pos, "velocity": self._velocity}


@gin.configurable
class ExpertPolicy:
  """Knows the velocity."""

  def reset(self):
    pass

  def sample_action(self, obs, explore_prob):
    return obs["velocity"], None


def _spec(shape, name, offsets):
  return specs.ExtendedTensorSpec(shape, tf.float32, name, time_offsets=offsets)


FEATURES = specs.TensorSpecStruct([("pos", _spec((2, 2), "pos", (-1, 0)))])
LABELS = specs.TensorSpecStruct([("target", _spec((2,), "velocity", 0))])


@gin.configurable
def episode_spec():
  return specs.TensorSpecStruct(
    [("pos", FEATURES["pos"]), ("velocity", LABELS["target"])]
  )


def wrong_spec():
  return {"pos": specs.ExtendedTensorSpec((7,), tf.float32, "pos", is_sequence=True)}


@gin.configurable
class DriftModel(models.RegressionModel):
  """One linear layer on the stacked positions."""

  def get_feature_specification(self, mode):
    return FEATURES

  def get_label_specification(self, mode):
    return LABELS

  def create_network(self):
    return tf.keras.layers.Dense(2)

  def a_func(self, features, mode):
    flat = tf.reshape(features.pos, [-1, 4])
    return {"inference_output": self.network(flat)}


@gin.configurable
def connect_until_sigterm():
  """Waits for a server, as a sink that is made may: until it is told to stop."""
  os.kill(os.getpid(), signal.SIGTERM)
  raise AssertionError("waited on")
