"""Observations and actions of an environment, as specs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, imports
from t2r_seq.specs import ExtendedTensorSpec

OBSERVATION = "observation"
"""Path of an observation that is a bare array."""


@dataclasses.dataclass(frozen=True)
class EnvSignature:
  """The observations and actions of an environment, as a policy sees them.

  Attributes:
    observations: specs of one frame by path.
    categories: number of categories by path, of Discrete observations.
    num_actions: number of discrete actions; None for continuous ones.
    first_action: the number of the first discrete action.
    low: lower bounds of continuous actions, [*shape]; None for discrete ones.
    high: upper bounds of continuous actions, [*shape]; None for discrete ones.
  """

  observations: Mapping[str, ExtendedTensorSpec]
  categories: Mapping[str, int] = dataclasses.field(default_factory=dict)
  num_actions: int | None = None
  first_action: int = 0
  low: np.ndarray | None = None
  high: np.ndarray | None = None

  @classmethod
  def of(cls, env: Any) -> EnvSignature:
    """Reads the spaces of a Gymnasium environment.

    Args:
      env: a single environment.
    Raises:
      SpecError: no ready policy can use the observation or action space.
    """
    name = _name(env)
    observations: dict[str, ExtendedTensorSpec] = {}
    categories: dict[str, int] = {}
    _read_observation(name, "", env.observation_space, observations, categories)
    return cls(observations, categories, **_read_actions(name, env.action_space))

  @property
  def action_size(self) -> int:
    """Number of elements of a continuous action."""
    assert self.low is not None
    return int(self.low.size)

  @property
  def action_spec(self) -> ExtendedTensorSpec:
    """The spec of one action, as the environment takes it."""
    if self.num_actions is not None:
      return ExtendedTensorSpec((), tf.int64, "action", time_offsets=0)
    assert self.low is not None
    return ExtendedTensorSpec(self.low.shape, tf.float32, "action", time_offsets=0)

  def add_noise(
    self, action: np.ndarray, noise: float, rng: np.random.Generator
  ) -> np.ndarray:
    """Returns a continuous action with normal noise, clipped to the bounds, float32.

    Args:
      action: action in the environment's units.
      noise: standard deviation as a fraction of half the range of each element.
      rng: random generator.
    """
    assert self.low is not None and self.high is not None
    scale = noise * (self.high - self.low) / 2
    moved = action + scale * rng.standard_normal(action.shape)
    return moved.clip(self.low, self.high).astype(np.float32)

  def require(self, policy: str, is_discrete: bool) -> None:
    """Checks that a policy can act in the environment.

    Raises:
      SpecError: the actions are of the other kind.
    """
    if is_discrete == (self.num_actions is not None):
      return
    expected, got, hint = "Discrete", "Box", "sac, td3 or qtopt"
    if not is_discrete:
      expected, got, hint = got, expected, "dqn"
    raise errors.SpecError(
      f"train: {policy}: action_space: expected {expected}, got {got}. Train {hint} in "
      "this environment."
    )

  def normalize(self, actions: tf.Tensor) -> tf.Tensor:
    """Maps continuous actions of the environment, [B, *shape], to [-1, 1], [B, A]."""
    assert self.low is not None and self.high is not None
    low, high = self.low.ravel(), self.high.ravel()
    flat = tf.reshape(tf.cast(actions, tf.float32), [-1, self.action_size])
    half = np.where(high > low, (high - low) / 2, np.float32(1))  # Constants become 0.
    return (flat - (low + high) / 2) / half

  def unnormalize(self, actions: Any) -> Any:
    """Maps [..., A] (tensors: [B, A]) in [-1, 1] to actions, [..., *shape], float32."""
    assert self.low is not None and self.high is not None
    low, high = self.low.ravel(), self.high.ravel()
    scaled = (low + high) / 2 + actions * ((high - low) / 2)
    if isinstance(actions, np.ndarray):
      scaled = scaled.clip(low, high).astype(np.float32)
      return scaled.reshape(*actions.shape[:-1], *self.low.shape)
    # Rounding must not take an action out of its bounds.
    scaled = tf.clip_by_value(tf.cast(scaled, tf.float32), low, high)
    return tf.reshape(scaled, [-1, *self.low.shape])

  def random_action(self, rng: np.random.Generator) -> Any:
    """Returns a uniformly random action: int64, or float32 within the bounds."""
    if self.num_actions is not None:
      return np.int64(self.first_action + rng.integers(self.num_actions))
    return self.unnormalize(rng.uniform(-1, 1, self.action_size).astype(np.float32))


def _name(env: Any) -> str:
  spec = getattr(env, "spec", None)
  return spec.id if spec is not None else type(env).__name__


def _read_observation(
  name: str,
  path: str,
  space: Any,
  observations: dict[str, ExtendedTensorSpec],
  categories: dict[str, int],
) -> None:
  spaces = imports.load_extra("gymnasium", "envs").spaces
  if isinstance(space, spaces.Dict):
    for key, inner in space.spaces.items():
      _read_observation(
        name, f"{path}/{key}" if path else key, inner, observations, categories
      )
    return
  path = path or OBSERVATION
  if isinstance(space, spaces.Discrete) and space.start == 0:
    categories[path] = int(space.n)
    observations[path] = ExtendedTensorSpec((), tf.int64, path, time_offsets=0)
    return
  is_uint8 = getattr(space, "dtype", None) == np.uint8
  if isinstance(space, (spaces.Box, spaces.MultiBinary)) and len(space.shape) <= 3:
    dtype = tf.uint8 if is_uint8 else tf.float32
    observations[path] = ExtendedTensorSpec(space.shape, dtype, path, time_offsets=0)
    return
  raise errors.SpecError(
    f"train: {name}: {path}: expected an observation of Box, Discrete from 0 or "
    f"MultiBinary, with at most 3 axes, or a Dict of them, got {space}. Wrap the "
    "environment: gymnasium.wrappers.FlattenObservation."
  )


def _read_actions(name: str, space: Any) -> dict[str, Any]:
  spaces = imports.load_extra("gymnasium", "envs").spaces
  if isinstance(space, spaces.Discrete):
    return {"num_actions": int(space.n), "first_action": int(space.start)}
  if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
      raise errors.SpecError(
        f"train: {name}: action_space: expected finite bounds, got {space}. Wrap the "
        "environment: gymnasium.wrappers.RescaleAction, or ClipAction."
      )
    return {"low": space.low.astype(np.float32), "high": space.high.astype(np.float32)}
  raise errors.SpecError(
    f"train: {name}: action_space: expected Discrete, or a Box of floats, got {space}."
  )
