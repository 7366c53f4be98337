"""The recurrent policy, with a mixture of normal distributions by default."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors, layers, models
from t2r_seq.layers.action_decoders import ActionDecoder
from t2r_seq.layers.bcz_networks import RecurrentHead
from t2r_seq.specs import ExtendedTensorSpec, SpecStructure, TensorSpecStruct
from t2r_seq.zoo.imitation import ImitationModel


@gin.configurable
class LSTMModel(ImitationModel, models.RecurrentRegressionModel):
  """LSTMs over the steps of an episode, and a mixture head; robomimic's BC-RNN-GMM.

  It trains on sequences of `EpisodesInputGenerator.sequence_length` steps. The exported
  policy carries its state from step to step and zeroes it every `reset_every` steps,
  which should be the length of those sequences.
  """

  is_sequence = True

  def __init__(
    self,
    num_units: int = 400,
    num_layers: int = 2,
    reset_every: int = 10,
    action_decoder_cls: Callable[..., ActionDecoder] = layers.MDNDecoder,
    **kwargs: Any,
  ) -> None:
    """Creates the model.

    Args:
      num_units: units of each LSTM.
      num_layers: number of stacked LSTMs.
      reset_every: steps after which the state is zeroed, also within a sequence.
      action_decoder_cls: decoder of each step's action.
      **kwargs: arguments of `ImitationModel` and
        `models.recurrent_model.RecurrentModel`.
    Raises:
      SpecError: `reset_every` is below 1; see also `ImitationModel`.
    """
    super().__init__(action_decoder_cls=action_decoder_cls, **kwargs)
    self._num_units, self._num_layers = num_units, num_layers
    self._reset_every = errors.check_count("LSTMModel", "reset_every", reset_every)

  def get_recurrent_state_specification(self, mode: str) -> TensorSpecStruct:
    """See the base class: output and cell of each LSTM, and the number of steps."""
    del mode
    spec = ExtendedTensorSpec((self._num_units,), tf.float32)
    step = ExtendedTensorSpec((), tf.int32)
    return TensorSpecStruct({**dict.fromkeys(self._state_names(), spec), "step": step})

  def _state_names(self) -> list[str]:
    return [f"{part}{i}" for i in range(self._num_layers) for part in ("h", "c")]

  def create_network(self) -> Any:
    """See the base class."""
    create = functools.partial(
      RecurrentHead, cell="lstm", num_layers=self._num_layers, resets=True
    )
    return {
      "encoder": self.create_encoder(),
      "lstm": create(self._num_units, self._num_units),
      "decoder": self.create_action_decoder(),
    }

  def recurrent_network_fn(
    self, features: SpecStructure, state: SpecStructure, mode: str
  ) -> tuple[dict[str, tf.Tensor], SpecStructure]:
    """See the base class."""
    names = self._state_names()
    encodings = self.encode(features, mode)
    steps = state["step"][:, tf.newaxis] + tf.range(tf.shape(encodings)[1])
    embedding, new = self.network["lstm"](
      encodings,
      [state[name] for name in names],
      training=self.is_training(mode),
      is_first=steps % self._reset_every == 0,
    )
    outputs = self.network["decoder"](embedding, training=self.is_training(mode))
    after = {n: tf.cast(x, tf.float32) for n, x in zip(names, new, strict=True)}
    return outputs, TensorSpecStruct({**after, "step": steps[:, -1] + 1})
