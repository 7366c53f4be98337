"""Action decoders: from an embedding to an action, with the loss that trains it."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.layers.construction import CompositeLayer, configurable_layer
from t2r_seq.layers.losses import masked_mean

Outputs = dict[str, tf.Tensor]


class ActionDecoder(CompositeLayer):
  """A layer from embeddings to actions, with the loss of its outputs.

  Actions are of `action_shape`, such as (7,), or (8, 7) for a chunk of 8 steps. A
  subclass defines `call` and `errors`. Outputs are float32, also for half precision.
  """

  def __init__(self, action_shape: Sequence[int], **kwargs: Any) -> None:
    """Creates the layer.

    Args:
      action_shape: shape of one action or chunk.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**{"dtype": "float32", **kwargs})
    self.action_shape = tuple(int(n) for n in action_shape)

  @property
  def num_components(self) -> int:
    """The number of components of an action, over all of its axes."""
    return math.prod(self.action_shape)

  @abc.abstractmethod
  def call(self, embedding: tf.Tensor, training: bool = False) -> Outputs:
    """Maps embeddings to actions and to the arguments of `errors`.

    Args:
      embedding: [B, ..., D].
      training: may leave out actions that are slow to compute: a loss needs none.
    Returns:
      Outputs by name: 'inference_output', [B, ..., *action_shape], unless left out, and
      the other arguments of `errors`.
    """

  @abc.abstractmethod
  def errors(
    self, outputs: Outputs, target: tf.Tensor, is_valid: tf.Tensor, training: bool
  ) -> tf.Tensor:
    """Returns the errors to average over the valid targets.

    Args:
      outputs: outputs of `call`.
      target: [B, ..., *action_shape], float32; 0 where it is not valid.
      is_valid: bool, of the target's shape.
      training: draws new random numbers at each call; otherwise they are the same.
    Returns:
      Errors of each component, of the target's shape; or one error for all valid
      components of an action, [B, ...].
    """

  def loss(self, *args: Any, **kwargs: Any) -> tf.Tensor:
    """Averages the errors over unmasked elements; see `all_errors`.

    Returns:
      A scalar, float32; 0 if everything is masked.
    """
    return masked_mean(*self.all_errors(*args, **kwargs))

  def all_errors(
    self,
    outputs: Outputs,
    target: tf.Tensor,
    mask: tf.Tensor | None = None,
    dimension_mask: tf.Tensor | None = None,
    training: bool = True,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the errors, and which are not masked.

    Args:
      outputs: outputs of `call`.
      target: [B, ..., *action_shape].
      mask: bool, the leading axes of the target: False for padded steps.
      dimension_mask: bool, [B, ..., A] with A the last axis of the target: False for
        components that an example does not have. Missing axes are added before A.
      training: see `errors`.
    Returns:
      (errors, bools), of the target's shape, or [B, ...] for whole actions.
    Raises:
      SpecError: the target or a mask has another shape, or a mask is not bool.
    """
    name = type(self).__name__
    if target.shape[target.shape.rank - len(self.action_shape) :] != self.action_shape:
      raise errors.SpecError(
        f"{name}: target: expected the axes {self.action_shape} of action_shape at the "
        f"end, got {errors.describe(target)}."
      )
    is_valid = valid_targets(name, target, mask, dimension_mask)
    # Padding may hold any values, NaN included.
    wide = tf.cast(target, tf.float32)
    wide = tf.where(is_valid, wide, tf.zeros_like(wide))
    error = self.errors(outputs, wide, is_valid, training)
    if error.shape.rank < target.shape.rank:
      axes = list(range(error.shape.rank, target.shape.rank))
      is_valid = tf.reduce_any(is_valid, axes)
    return error, is_valid

  def as_actions(self, flat: tf.Tensor) -> tf.Tensor:
    """Reshapes [B, ..., num_components] to [B, ..., *action_shape]."""
    return _reshape_last(flat, self.action_shape)

  def flatten(self, actions: tf.Tensor) -> tf.Tensor:
    """Reshapes [B, ..., *action_shape] to [B, ..., num_components]."""
    lead = actions.shape.rank - len(self.action_shape)
    shape = tf.concat([tf.shape(actions)[:lead], [self.num_components]], 0)
    flat = tf.reshape(actions, shape)
    return tf.ensure_shape(flat, [*actions.shape[:lead], self.num_components])


@configurable_layer
class MSEDecoder(ActionDecoder):
  """A dense layer, fitted by the mean squared error."""

  def __init__(self, action_shape: Sequence[int], **kwargs: Any) -> None:
    """Creates the layer; see the base class."""
    super().__init__(action_shape, **kwargs)
    self._dense = tf.keras.layers.Dense(self.num_components, dtype="float32")

  def call(self, embedding: tf.Tensor, training: bool = False) -> Outputs:
    del training
    return {"inference_output": self.as_actions(self._dense(embedding))}

  def errors(
    self, outputs: Outputs, target: tf.Tensor, is_valid: tf.Tensor, training: bool
  ) -> tf.Tensor:
    """See the base class: squared differences."""
    del is_valid, training
    return tf.math.squared_difference(outputs["inference_output"], target)


def valid_targets(
  operation: str,
  target: tf.Tensor,
  mask: tf.Tensor | None = None,
  dimension_mask: tf.Tensor | None = None,
) -> tf.Tensor:
  """Combines the masks of a loss to one of the target's shape.

  Args:
    operation: for errors.
    target: [B, ..., A].
    mask: bool, the leading axes of the target: False for padded steps.
    dimension_mask: bool, [B, ..., A]: False for components that an example does not
      have. Missing axes are added before A.
  Returns:
    Bools of the target's shape.
  Raises:
    SpecError: a mask has another shape, or is not bool.
  """
  rank, is_valid = target.shape.rank, tf.ones_like(target, tf.bool)
  if mask is not None:
    if mask.dtype != tf.bool or not mask.shape.is_compatible_with(
      target.shape[: mask.shape.rank]
    ):
      raise errors.SpecError(
        f"{operation}: mask: expected bools for the leading axes of the target, "
        f"{errors.describe(target)}, got {errors.describe(mask)}."
      )
    is_valid &= _expand(mask, rank, mask.shape.rank)
  if dimension_mask is not None:
    axes = dimension_mask.shape
    if (
      dimension_mask.dtype != tf.bool
      or not 1 <= axes.rank <= rank
      or axes[-1] != target.shape[-1]
      or not axes[:-1].is_compatible_with(target.shape[: axes.rank - 1])
    ):
      raise errors.SpecError(
        f"{operation}: dimension_mask: expected bools, the last axis that of the "
        f"target, {errors.describe(target)}, got {errors.describe(dimension_mask)}."
      )
    is_valid &= _expand(dimension_mask, rank, axes.rank - 1)
  return is_valid


def check_inference(
  layer: Any, inference: str, allowed: Sequence[str], name: str = "inference"
) -> None:
  """Raises SpecError if an option of a decoder is unknown."""
  if inference not in allowed:
    raise errors.SpecError(
      f"{type(layer).__name__}: {name}: expected one of {errors.listing(allowed)}, "
      f"got {inference!r}."
    )


def draw(
  function: str, shape: Any, seed: int | None, salt: int = 0, **kwargs: Any
) -> tf.Tensor:
  """Draws float32 random numbers: new ones at each call, or always the same.

  Args:
    function: 'normal' or 'uniform'.
    shape: shape of the numbers.
    seed: None draws new numbers at each call.
    salt: distinguishes numbers that are drawn with one seed.
    **kwargs: arguments of the function of `tf.random`.
  """
  if seed is None:
    return getattr(tf.random, function)(shape, **kwargs)
  return getattr(tf.random, f"stateless_{function}")(shape, [seed, salt], **kwargs)


def draw_for_actions(like: tf.Tensor, seed: int | None) -> tf.Tensor:
  """Draws the normal numbers that actions are made from, of the shape of `like`.

  With a seed all examples get the same numbers, so that an action depends on the
  observation only: not on its place in the batch, nor on compilation.
  """
  if seed is None:
    return tf.random.normal(tf.shape(like))
  one = np.random.default_rng(seed).standard_normal(like.shape[-1])
  return tf.zeros_like(like) + tf.constant(one, like.dtype)


def _expand(mask: tf.Tensor, rank: int, axis: int) -> tf.Tensor:
  """Inserts axes of length 1 at `axis`, up to `rank`."""
  while mask.shape.rank < rank:
    mask = tf.expand_dims(mask, axis)
  return mask


def _reshape_last(value: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
  leading = value.shape[:-1]
  reshaped = tf.reshape(value, tf.concat([tf.shape(value)[:-1], shape], 0))
  return tf.ensure_shape(reshaped, [*leading, *shape])
