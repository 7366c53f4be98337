"""Models that regress an action."""

from __future__ import annotations

import abc
from typing import Any

import tensorflow as tf

from t2r_seq.models import losses
from t2r_seq.models.t2r_model import T2RModel
from t2r_seq.specs import SpecStructure


class RegressionModel(T2RModel):
  """A continuous output fitted to `labels.target` by mean squared error.

  A subclass gives the specs, the network and `a_func`.
  """

  def __init__(self, action_size: int = 2, **kwargs: Any) -> None:
    """Creates the model.

    Args:
      action_size: components of the regressed action.
      **kwargs: of `T2RModel`.
    """
    super().__init__(**kwargs)
    self._action_size = action_size

  @property
  def action_size(self) -> int:
    """Components of the regressed action."""
    return self._action_size

  @abc.abstractmethod
  def a_func(self, features: SpecStructure, mode: str) -> dict[str, tf.Tensor]:
    """Maps a state to an action.

    Args:
      features: packed as the feature specs, [B, ...].
      mode: one of `ModeKeys`.
    Returns:
      Outputs by name; 'inference_output', [B, action_size], is required.
    """

  def loss_fn(
    self,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> tf.Tensor:
    """Returns the mean squared error against `labels.target`, a scalar.

    Where the labels have a `target_mask`, padded targets count for nothing. It is
    computed in the target's dtype, whatever the network computes in.
    """
    del mode
    return losses.mean_error(
      labels,
      "target",
      "inference_output",
      inference_outputs["inference_output"],
      losses.squared_error,
    )

  def inference_network_fn(
    self, features: SpecStructure, labels: SpecStructure | None, mode: str
  ) -> dict[str, tf.Tensor]:
    """See the base class.

    Raises:
      SpecError: `a_func` lacks 'inference_output'.
    """
    del labels
    outputs = self.a_func(features, mode)
    self._check_outputs("a_func", outputs, "inference_output")
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

  def create_export_outputs_fn(
    self, features: SpecStructure, inference_outputs: dict[str, tf.Tensor], mode: str
  ) -> dict[str, tf.Tensor]:
    """See the base class: 'inference_output' alone, of half precision as float32."""
    del features, mode
    output = losses.as_float32(inference_outputs["inference_output"])
    return {"inference_output": output}
