"""Base class of models that learn in an environment: specs and target networks."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, models, replay, specs, windows
from t2r_seq.layers.control import StackEncoder
from t2r_seq.models import losses
from t2r_seq.specs import ExtendedTensorSpec, SpecStructure, TensorSpecStruct
from t2r_seq.zoo.spaces import EnvSignature

_NEXT = "next_"
_RESERVED = ("action", "reward", "terminated", "discount", "sample")


class OnlineModel(models.T2RModel):
  """A model that learns from the transitions of an environment.

  Features are stacks of the last `num_frames` observations. Labels are for learning
  only: the next stacks, the action, the n-step reward, whether the episode terminated,
  and the discount of the next value.

  A subclass defines the network, the loss, and the output 'inference_output', an action
  of the environment. Its `target_networks` follow the networks that are trained.
  """

  target_networks: Mapping[str, str] = {}
  """Sources of target networks by target, both as keys in `create_network`'s dict."""
  exploration_output = "inference_output"
  """The exported output from which `explore` makes an action."""
  is_discrete = False
  """Whether actions are numbers of a Discrete space."""
  seed = 0
  """Seed of the random numbers of train steps; `train_online` sets it."""

  def __init__(
    self,
    signature: EnvSignature,
    num_frames: int = 1,
    n_step: int = 1,
    gamma: float = 0.99,
    hidden_sizes: Sequence[int] = (256, 256),
    target_rate: float = 0.005,
    target_update_steps: int = 1,
    **kwargs: Any,
  ) -> None:
    """Creates the model.

    Args:
      signature: signature of the environment.
      num_frames: frames in the stack of each observation.
      n_step: steps of an n-step transition.
      gamma: discount of one step.
      hidden_sizes: units of the dense layers after the encoder.
      target_rate: step size of target networks at each update; 1 copies.
      target_update_steps: train steps between two updates of target networks.
      **kwargs: arguments of `T2RModel` except `padding`.
    Raises:
      SpecError: the environment has actions of another kind or an observation with a
        reserved name, or an option is out of range.
    """
    super().__init__(padding=("repeat", "drop"), **kwargs)
    name = type(self).__name__
    signature.require(name, self.is_discrete)
    if not 0 < target_rate <= 1:
      raise errors.SpecError(
        f"{name}: target_rate: expected a number in (0, 1], got {target_rate!r}."
      )
    reserved = [p for p in signature.observations if p.split("/")[0] in _RESERVED]
    if reserved:
      raise errors.SpecError(
        f"{name}: {reserved[0]}: expected an observation of another name than "
        f"{errors.listing(_RESERVED)}. Wrap the environment to rename it."
      )
    self.signature = signature
    self.n_step = windows.NStep(n_step, gamma, rew="reward", done="terminated")
    self._num_frames = errors.check_count(name, "num_frames", num_frames)
    self._hidden_sizes = tuple(hidden_sizes)
    self._target_rate = target_rate
    self._target_update_steps = errors.check_count(
      name, "target_update_steps", target_update_steps
    )

  def get_feature_specification(self, mode: str) -> SpecStructure:
    """Returns the stacks of the observations."""
    return TensorSpecStruct(
      (path, self._stack(path, spec, 0))
      for path, spec in self.signature.observations.items()
    )

  def get_label_specification(self, mode: str) -> SpecStructure:
    """Returns the specs of a transition's other values, and of the replay's sample."""
    flag = ExtendedTensorSpec((), tf.bool, "terminated", time_offsets=0)
    return replay.add_sample_specs(
      {
        **{
          _NEXT + path: self._stack(path, spec, 1)
          for path, spec in self.signature.observations.items()
        },
        "action": self.signature.action_spec,
        "reward": ExtendedTensorSpec((), tf.float32, "reward", time_offsets=0),
        "terminated": flag,
        "discount": ExtendedTensorSpec((), tf.float32),
      }
    )

  def create_encoder(self) -> StackEncoder:
    """Returns an encoder of the stacks."""
    shapes = {p: tuple(s.shape) for p, s in self.signature.observations.items()}
    return StackEncoder(shapes, self.signature.categories)

  @abc.abstractmethod
  def explore(self, output: np.ndarray, rng: np.random.Generator, done: float) -> Any:
    """Makes an exploring action of the `exploration_output` of one environment.

    Args:
      output: output of the network, without a batch axis.
      rng: random generator.
      done: fraction of the environment steps that are done, from 0 to 1.
    Returns:
      An action of the environment.
    """

  def build(self) -> None:
    """Creates the network; target networks begin as copies of their sources."""
    is_new = not self.is_built
    super().build()
    if is_new:
      self._update_targets(1.0)

  def after_train_step(self) -> None:
    """Updates the target networks every `target_update_steps` train steps."""
    if self._target_update_steps == 1:
      self._update_targets(self._target_rate)
      return
    is_due = tf.equal((self.global_step + 1) % self._target_update_steps, 0)
    tf.cond(is_due, lambda: self._update_targets(self._target_rate), lambda: None)

  def observations(self, features: SpecStructure) -> dict[str, tf.Tensor]:
    """Returns the stacks by path."""
    flat = specs.flatten_spec_structure(features)
    return {path: flat[path] for path in self.signature.observations}

  def next_observations(self, labels: SpecStructure) -> dict[str, tf.Tensor]:
    """Returns the stacks after the transitions by the paths of those before them."""
    flat = specs.flatten_spec_structure(labels)
    return {path: flat[_NEXT + path] for path in self.signature.observations}

  def target(self, labels: SpecStructure, values: tf.Tensor) -> tf.Tensor:
    """Returns `reward + discount * values`, [B], without gradients."""
    return tf.stop_gradient(labels.reward + labels.discount * values)

  def examples(self, labels: SpecStructure, error: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the inputs of `hooks.PriorityUpdate`; {} if labels have no item keys."""
    key = losses.replay_value(labels, "key")
    return {} if key is None else {"sample/key": key, "td_error": tf.abs(error)}

  def step_seed(self, purpose: int = 0) -> tf.Tensor:
    """Returns a seed, int32 [2]: a function of `seed`, train step and purpose."""
    step = tf.cast(self.global_step, tf.int32)
    return tf.random.experimental.stateless_fold_in([self.seed, purpose], step)

  def normal(self, like: tf.Tensor, purpose: int) -> tf.Tensor:
    """Returns normal noise of the shape and dtype of `like`; see `step_seed`."""
    seed = self.step_seed(purpose)
    return tf.random.stateless_normal(tf.shape(like), seed, dtype=like.dtype)

  def _update_targets(self, rate: float) -> None:
    for target, source in self.target_networks.items():
      network = self.network
      models.update_target_network(network[target], network[source], rate)

  def _stack(self, path: str, spec: ExtendedTensorSpec, step: int) -> Any:
    offsets = tuple(range(step + 1 - self._num_frames, step + 1))
    shape = (self._num_frames, *spec.shape)
    return ExtendedTensorSpec(shape, spec.dtype, path, time_offsets=offsets)


def weighted_mean(labels: SpecStructure, error: tf.Tensor) -> tf.Tensor:
  """Averages errors [B] with a replay's importance weights, if there are any."""
  weight = losses.replay_value(labels, "weight")
  return tf.reduce_mean(error if weight is None else error * weight)


def huber(error: tf.Tensor) -> tf.Tensor:
  """Returns half the square up to 1, and a line beyond (Mnih et al., 2015)."""
  size = tf.abs(error)
  quadratic = tf.minimum(size, 1.0)
  return 0.5 * tf.square(quadratic) + size - quadratic


def square(error: tf.Tensor) -> tf.Tensor:
  """Returns the squared error."""
  return tf.square(error)


ErrorFn = Callable[[tf.Tensor], tf.Tensor]
ERRORS: Mapping[str, ErrorFn] = {"huber": huber, "squared": square}


def error_fn(policy: str, name: str) -> ErrorFn:
  """Returns an error function by its name.

  Raises:
    SpecError: the name is unknown.
  """
  if name not in ERRORS:
    raise errors.SpecError(
      f"{policy}: loss: expected one of {errors.listing(ERRORS)}, got {name!r}."
    )
  return ERRORS[name]
