"""Diffusion Policy: denoises action chunks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors, layers
from t2r_seq.layers.flow_matching import Continuation
from t2r_seq.layers.observation_encoder import standardize
from t2r_seq.specs import SpecStructure
from t2r_seq.zoo.act import is_environment, steps_as_one
from t2r_seq.zoo.imitation import ImitationModel

_ENCODER = functools.partial(
  layers.ImageEncoder, activation="relu", centers_images=False
)
_DECODER = functools.partial(
  layers.DiffusionDecoder,
  schedule=layers.NoiseSchedule(100, prediction="epsilon", clip=1.0, spacing="leading"),
  create_denoiser_fn=layers.ConditionalUNet,
)


@gin.configurable
class DiffusionModel(ImitationModel):
  """Denoises the chunk of actions around the present step.

  https://arxiv.org/abs/2303.04137, as in LeRobot: the chunk begins with the first step
  that the network sees, so it includes past actions. The denoiser is a
  `layers.ConditionalUNet` or a `layers.DiffusionTransformer`.
  """

  def __init__(
    self,
    observation_horizon: int = 2,
    prediction_horizon: int = 16,
    num_executed: int = 8,
    normalization: str | Mapping[str, str | None] = "min_max",
    action_decoder_cls: Callable[..., Any] = _DECODER,
    create_image_encoder_fn: Callable[[], Any] = _ENCODER,
    shares_encoder: bool = False,
    image_statistics: Mapping[str, Sequence[Sequence[float]]] | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the model.

    Args:
      observation_horizon: steps that the network sees, the present one included.
      prediction_horizon: steps of the chunk, from the first step seen on.
      num_executed: actions of a chunk that are executed.
      normalization: see `ImitationModel`. The default decoder clips normalized actions
        to [-1, 1].
      action_decoder_cls: called with `action_shape`; creates the
        `layers.DiffusionDecoder`.
      create_image_encoder_fn: creates an encoder of standardized images.
      shares_encoder: whether all cameras share one encoder.
      image_statistics: (mean, std) of the channels of images in [0, 1], by path of the
        camera; other cameras use ImageNet's.
      **kwargs: arguments of `ImitationModel`.
    Raises:
      SpecError: the chunk ends before the last executed action; see also
        `ImitationModel`.
    """
    past = observation_horizon - 1
    if prediction_horizon < past + num_executed:
      raise errors.SpecError(
        "DiffusionModel: prediction_horizon: expected at least observation_horizon - 1 "
        f"+ num_executed = {past + num_executed}, got {prediction_horizon}."
      )
    super().__init__(
      observation_horizon=observation_horizon,
      chunk_size=prediction_horizon - past,
      num_past_actions=past,
      num_executed=num_executed,
      normalization=normalization,
      action_decoder_cls=action_decoder_cls,
      **kwargs,
    )
    self._create_image_encoder_fn = create_image_encoder_fn
    self._shares_encoder = shares_encoder
    self._image_statistics = image_statistics or {}

  @property
  def can_continue(self) -> bool:
    """See the base class."""
    return isinstance(self._action_decoder, layers.DiffusionDecoder)

  def create_network(self) -> Any:
    """See the base class."""
    count = len(self.signature.cameras)
    count = min(count, 1) if self._shares_encoder else count
    return {
      "encoders": [self._create_image_encoder_fn() for _ in range(count)],
      "decoder": self.create_action_decoder(),
    }

  def a_func(
    self, features: SpecStructure, mode: str, known: Continuation | None = None
  ) -> dict[str, tf.Tensor]:
    """See the base class."""
    training = self.is_training(mode)
    observed = self.observations(features)
    # LeRobot's order: states of the robot, cameras, states of the environment.
    paths = self.signature.states
    vectors = [observed[path] for path in paths if not is_environment(path)]
    for i, path in enumerate(self.signature.cameras):
      images = standardize(observed[path], self._image_statistics.get(path))
      encoder = self.network["encoders"][0 if self._shares_encoder else i]
      encoded = encoder(tf.reshape(images, [-1, *images.shape[2:]]), training=training)
      encoded = tf.reshape(encoded, [-1, images.shape[1], encoded.shape[-1]])
      vectors.append(tf.cast(encoded, tf.float32))
    vectors += [observed[path] for path in paths if is_environment(path)]
    embedding = steps_as_one(tf.concat(vectors, axis=-1))
    options = {} if known is None else {"known": known}
    return self.network["decoder"](embedding, training=training, **options)
