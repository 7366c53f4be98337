"""Flow matching over chunks of actions."""

from __future__ import annotations

import functools
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors, layers, preprocessors, randomness
from t2r_seq.layers.action_expert import ActionExpert, ContextEncoder
from t2r_seq.layers.flow_matching import Continuation
from t2r_seq.preprocessors.abstract_preprocessor import SpecificationFn
from t2r_seq.specs import ExtendedTensorSpec, SpecStructure, TensorSpecStruct
from t2r_seq.zoo.imitation import TARGET, ImitationModel

DELAY = "delay"


class DelayPreprocessor(preprocessors.SpecTransformationPreprocessor):
  """Draws the inference delay of each sample: how many of its actions are known.

  The label 'delay', int32 [B], is uniform from 0 to `max_delay`; see
  `randomness.of_samples`.
  """

  def __init__(
    self,
    model_feature_specification_fn: SpecificationFn | None = None,
    model_label_specification_fn: SpecificationFn | None = None,
    max_delay: int = 1,
  ) -> None:
    """Creates the preprocessor."""
    super().__init__(model_feature_specification_fn, model_label_specification_fn)
    self._max_delay = max_delay

  def _transform_in_label_specification(
    self, tensor_spec_struct: TensorSpecStruct
  ) -> TensorSpecStruct:
    del tensor_spec_struct[DELAY]
    return tensor_spec_struct

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    del mode
    if labels is not None:
      numbers = randomness.of_samples(tf.shape(labels[TARGET])[0])
      labels[DELAY] = numbers.integers("delay", self._max_delay + 1)
    return features, labels


@gin.configurable
class FlowModel(ImitationModel):
  """A flow-matching transformer: integrates noise to action chunks in a few steps.

  A small version of pi0's action expert (https://arxiv.org/abs/2410.24164): action
  tokens attend to observation tokens.
  """

  def __init__(
    self,
    model_size: int = 512,
    num_layers: int = 6,
    num_context_layers: int = 2,
    num_heads: int = 8,
    num_steps: int = 10,
    max_delay: int | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the model.

    Args:
      model_size: components of a token.
      num_layers: blocks of the action expert.
      num_context_layers: blocks over the observations, which run once per chunk.
      num_heads: heads of each attention layer.
      num_steps: steps of the integration from noise to actions.
      max_delay: trains the model to continue the previous chunk, given 0 to
        `max_delay` of its actions (`overlap='trained'`). None: no such training;
        policies can inpaint (`overlap='real_time'`).
      **kwargs: arguments of `ImitationModel` except `action_decoder_cls`.
    Raises:
      SpecError: `max_delay` is below 1, or not less than `chunk_size`; see also
        `ImitationModel`.
    """
    super().__init__(**kwargs)
    if max_delay is not None and not 1 <= max_delay < self.chunk_size:
      raise errors.SpecError(
        f"FlowModel: max_delay: expected between 1 and {self.chunk_size - 1}, less "
        f"than a chunk, or None, got {max_delay}."
      )
    self._max_delay = max_delay
    self._size, self._num_heads, self._num_steps = model_size, num_heads, num_steps
    self._num_layers, self._num_context_layers = num_layers, num_context_layers
    self._action_decoder_cls = self._create_decoder

  @property
  def can_continue(self) -> bool:
    """See the base class."""
    return True

  def _create_decoder(self, action_shape: Any) -> Any:
    expert = functools.partial(
      ActionExpert,
      size=self._size,
      num_layers=self._num_layers,
      num_heads=self._num_heads,
    )
    return layers.FlowMatchingDecoder(
      action_shape,
      max_delay=self._max_delay,
      num_steps=self._num_steps,
      create_denoiser_fn=expert,
      seed=0,
    )

  @property
  def prefix_mode(self) -> str | None:
    """See the base class."""
    mode = super().prefix_mode
    return mode if mode is None or self._max_delay is None else "trained"

  @property
  def max_delay(self) -> int | None:
    """See the base class."""
    return self._max_delay

  def get_label_specification(self, mode: str) -> SpecStructure:
    """See the base class; with `max_delay` also the delay of each sample."""
    labels = super().get_label_specification(mode)
    if self._max_delay is not None:
      labels[DELAY] = ExtendedTensorSpec((), tf.int32)
    return labels

  @property
  def default_preprocessor_cls(self) -> Any:
    """See the base class; with `max_delay` a last stage draws delays."""
    base = super().default_preprocessor_cls
    if self._max_delay is None:
      return base
    stage = functools.partial(DelayPreprocessor, max_delay=self._max_delay)
    return functools.partial(
      base.func, preprocessor_classes=[*base.keywords["preprocessor_classes"], stage]
    )

  def inference_network_fn(
    self, features: SpecStructure, labels: SpecStructure | None, mode: str
  ) -> dict[str, tf.Tensor]:
    """See the base class; with `max_delay` the outputs also have the delays."""
    outputs = super().inference_network_fn(features, labels, mode)
    if labels is not None and self._max_delay is not None:
      outputs = {**outputs, DELAY: labels[DELAY]}
    return outputs

  def create_network(self) -> Any:
    """See the base class."""
    count = len(self.get_feature_specification("train")) * self.observation_horizon
    return {
      "encoder": self.create_encoder(self._size),
      "context": ContextEncoder(
        count, self._size, self._num_context_layers, self._num_heads
      ),
      "decoder": self.create_action_decoder(),
    }

  def a_func(
    self, features: SpecStructure, mode: str, known: Continuation | None = None
  ) -> dict[str, tf.Tensor]:
    """See the base class."""
    training = self.is_training(mode)
    encodings = self.encode(features, mode)
    count = encodings.shape[1] * encodings.shape[2]
    context = self.network["context"](tf.reshape(encodings, [-1, count, self._size]))
    context = tf.reshape(context, [-1, count * self._size])
    return self.network["decoder"](context, training=training, known=known)
