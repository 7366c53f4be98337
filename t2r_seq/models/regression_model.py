"""Models that regress an action."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from t2r_seq import errors, layers
from t2r_seq.layers.action_decoders import ActionDecoder
from t2r_seq.models import losses
from t2r_seq.models.t2r_model import T2RModel
from t2r_seq.specs import ModeKeys, SpecStructure


class RegressionModel(T2RModel):
  """A continuous output fitted to `labels.target`.

  A subclass defines the specs, the network and `a_func`. The loss is the mean squared
  error, or that of an action decoder, which `create_action_decoder` creates and gin
  selects: a mixture density, bins, an autoregressive flow, flow matching, diffusion.
  """

  def __init__(
    self,
    action_size: int = 2,
    action_decoder_cls: Callable[..., ActionDecoder] | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the model.

    Args:
      action_size: components of the regressed action.
      action_decoder_cls: called with `action_shape` by `create_action_decoder`, which
        `create_network` then has to call; None: `layers.MSEDecoder`.
      **kwargs: arguments of `T2RModel`.
    """
    super().__init__(**kwargs)
    self._action_size = action_size
    self._action_decoder_cls = action_decoder_cls
    self._action_decoder: ActionDecoder | None = None

  @property
  def action_size(self) -> int:
    """Components of the regressed action."""
    return self._action_size

  def create_action_decoder(
    self, action_shape: Sequence[int] | None = None
  ) -> ActionDecoder:
    """Creates the layer that maps embeddings to actions like `labels.target`.

    `create_network` returns it as a part of the network. `a_func` calls it last, and
    returns its result: `return self.network["decoder"](embedding, training=...)`.

    Args:
      action_shape: the axes of the label without those of the embeddings, such as
        steps; None: all axes, for one embedding per example.
    """
    if action_shape is None:
      spec = self.get_label_specification(ModeKeys.TRAIN)["target"]
      action_shape = tuple(spec.shape)
    create = self._action_decoder_cls or layers.MSEDecoder
    self._action_decoder = create(action_shape=action_shape)
    return self._action_decoder

  @abc.abstractmethod
  def a_func(self, features: SpecStructure, mode: str) -> dict[str, tf.Tensor]:
    """Maps a state to an action.

    Args:
      features: packed as the feature specs, [B, ...].
      mode: value of `ModeKeys`.
    Returns:
      Outputs by name. 'inference_output', of the shape of `labels.target`, is required;
      with an action decoder, not in mode 'train'.
    """

  def loss_fn(
    self,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> tf.Tensor:
    """Returns the mean of `all_errors` where they count, a scalar.

    Padded targets, by the labels' `target_mask`, do not count; nor do missing
    components, by a `target_dimension_mask`. For errors see `all_errors`.
    """
    return layers.masked_mean(*self.all_errors(labels, inference_outputs, mode))

  def all_errors(
    self, labels: SpecStructure, inference_outputs: dict[str, tf.Tensor], mode: str
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the errors that the loss averages, [B, ...], and which count, bool.

    They are squared errors in the target's dtype, or the action decoder's errors in
    float32. A replay's importance weights multiply them.

    Raises:
      SpecError: the output or a mask does not fit the target, or `create_network` lacks
        the action decoder.
    """
    if self._action_decoder is not None:
      error, is_valid = self._action_decoder.all_errors(
        inference_outputs,
        labels.target,
        *losses.masks_of(labels, "target"),
        training=mode == ModeKeys.TRAIN,
      )
      return losses.weighted(error, labels), is_valid
    if self._action_decoder_cls is not None:
      raise errors.SpecError(
        f"{type(self).__name__}: action_decoder_cls: expected create_network to return "
        "what self.create_action_decoder() gives, got a network without it."
      )
    return self._all_errors(labels, inference_outputs, losses.squared_error)

  def inference_network_fn(
    self, features: SpecStructure, labels: SpecStructure | None, mode: str
  ) -> dict[str, tf.Tensor]:
    """Returns the outputs of `a_func`; SpecError if they lack 'inference_output'."""
    del labels
    outputs = self.a_func(features, mode)
    needs_action = self._action_decoder is None or mode != ModeKeys.TRAIN
    required = "inference_output" if needs_action else None
    self._check_outputs("a_func", outputs, required)
    return outputs

  def model_train_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> tf.Tensor | tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """See the base class: the loss of `loss_fn`."""
    del features
    return self.loss_fn(labels, inference_outputs, mode)

  def model_eval_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> dict[str, tf.Tensor]:
    """See the base class; with an action decoder, adds 'action_error'.

    It is the mean absolute error of the actions: losses of different decoders are not
    comparable.
    """
    metrics = super().model_eval_fn(features, labels, inference_outputs, mode)
    if self._action_decoder is None or "action_error" in metrics:
      return metrics
    absolute = lambda target, output: tf.abs(output - target)  # noqa: E731
    error = self._mean_error(labels, inference_outputs, absolute)
    return {**metrics, "action_error": error}

  @property
  def output_labels(self) -> Mapping[str, str]:
    """See the base class: the target."""
    return {"inference_output": "target"}

  def create_export_outputs_fn(
    self, features: SpecStructure, inference_outputs: dict[str, tf.Tensor], mode: str
  ) -> dict[str, tf.Tensor]:
    """See the base class: 'inference_output' only, half precision as float32."""
    del features, mode
    output = losses.as_float32(inference_outputs["inference_output"])
    return {"inference_output": output}

  def _mean_error(
    self,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    error_function: losses.ErrorFunction,
  ) -> tf.Tensor:
    errors_ = self._all_errors(labels, inference_outputs, error_function)
    return layers.masked_mean(*errors_)

  def _all_errors(
    self,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    error_function: losses.ErrorFunction,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    name = "inference_output"
    return losses.all_errors(
      labels, "target", name, inference_outputs[name], error_function
    )
