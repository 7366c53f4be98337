"""ACT: a transformer that predicts action chunks, trained as a conditional VAE."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import layers
from t2r_seq.layers import attention
from t2r_seq.layers.construction import CompositeLayer, configurable_layer
from t2r_seq.layers.observation_encoder import standardize
from t2r_seq.models import losses
from t2r_seq.specs import ModeKeys, SpecStructure
from t2r_seq.zoo.imitation import TARGET, ImitationModel

_TRANSFORMER = functools.partial(
  layers.Transformer, num_heads=8, model_size=512, mlp_size=3200, dropout=0.1
)
_TOWER = functools.partial(layers.ResNet, None, 18, 1, normalizer="group")


@configurable_layer
class ACTNetwork(CompositeLayer):
  """The network of ACT, https://arxiv.org/abs/2304.13705, as in LeRobot.

  The encoder's tokens are a latent vector, each state, and each pixel of the cameras'
  last feature maps. The decoder's tokens are the steps of the chunk. In training a
  second encoder, of the style, sees the actions; the latent is sampled from its output.
  """

  def __init__(
    self,
    action_shape: Sequence[int],
    num_states: int,
    num_cameras: int,
    num_layers: Sequence[int] = (4, 1, 4),
    latent_size: int = 32,
    create_transformer_fn: Callable[..., Any] = _TRANSFORMER,
    create_tower_fn: Callable[[], Any] = _TOWER,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      action_shape: shape of a chunk, (steps, components).
      num_states: number of state vectors.
      num_cameras: number of cameras; 0 leaves out the tower.
      num_layers: layers of the encoder, the decoder, and the style encoder; 0 for the
        last leaves out the VAE.
      latent_size: components of the latent.
      create_transformer_fn: called with `num_layers` and `name`, and for the decoder
        with `has_memory` and `final_norm`; returns a `layers.Transformer`.
      create_tower_fn: creates the `layers.ResNet` that all cameras share.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    steps, action_size = action_shape
    encoder, decoder, style = num_layers
    create = create_transformer_fn
    self._encoder = create(num_layers=encoder, name="encoder")
    self._decoder = create(
      num_layers=decoder, has_memory=True, final_norm=True, name="decoder"
    )
    size = self._encoder.model_size
    dense = tf.keras.layers.Dense
    if num_cameras:
      self._tower = create_tower_fn()
      self._image_in = tf.keras.layers.Conv2D(size, 1, name="image_in")
    self._states_in = [dense(size, name="state_in") for _ in range(num_states)]
    self._latent_in = dense(size, name="latent_in")
    self._output = dense(action_size, dtype="float32", name="output")
    self._style_encoder: Any = None
    if style:
      self._style_encoder = create(num_layers=style, name="style_encoder")
      self._style_state_in = dense(size, name="style_state_in")
      self._style_action_in = dense(size, name="style_action_in")
      self._style_out = dense(2 * latent_size, dtype="float32", name="style_out")
    normal = tf.keras.initializers.RandomNormal(stddev=1.0)
    add = functools.partial(self.add_weight, initializer=normal)
    self._positions = add(name="positions", shape=(1 + num_states, size))
    self._queries = add(name="queries", shape=(steps, size))
    if style:
      self._style_token = add(name="style_token", shape=(1, size))
    self._latent_size, self.encodes_style = latent_size, bool(style)

  def call(
    self,
    states: Sequence[tf.Tensor],
    images: Sequence[tf.Tensor],
    style_state: tf.Tensor | None = None,
    actions: tf.Tensor | None = None,
    is_real: tf.Tensor | None = None,
    training: bool = False,
  ) -> dict[str, tf.Tensor]:
    """Predicts a chunk.

    Args:
      states: each [B, S].
      images: standardized, each [B, height, width, channels].
      style_state: [B, S], for the style encoder; None leaves it out.
      actions: [B, steps, components], for the style encoder; None sets the latent to 0.
      is_real: bool, [B, steps]: False for padded actions; None if all are real.
      training: mode of dropout and batch normalization.
    Returns:
      'inference_output', [B, steps, components], float32; if `actions` are given, also
      'mean' and 'log_variance' of the latent, [B, latent_size].
    """
    batch_size = tf.shape([*states, *images][0])[0]
    outputs, latent = {}, tf.zeros([batch_size, self._latent_size])
    if actions is not None:
      parameters = self._encode_style(style_state, actions, is_real, training)
      mean, log_variance = tf.split(parameters, 2, axis=-1)
      latent = mean + tf.exp(log_variance / 2) * tf.random.normal(tf.shape(mean))
      outputs = {"mean": mean, "log_variance": log_variance}
    vectors = [self._latent_in(latent)]
    vectors += [
      layer(state) for layer, state in zip(self._states_in, states, strict=True)
    ]
    tokens = [tf.stack(vectors, axis=1)]
    positions = [tf.convert_to_tensor(self._positions)]
    for image in images:
      maps = self._image_in(self._tower(image, training=training)["pre_final_pool"])
      height, width, size = maps.shape[1:]
      tokens.append(tf.reshape(maps, [-1, height * width, size]))
      pixels = attention.sinusoidal_positions_2d(height, width, size)
      positions.append(tf.constant(pixels.reshape(-1, size), positions[0].dtype))
    all_positions = tf.concat(positions, axis=0)
    memory = self._encoder(tf.concat(tokens, axis=1), all_positions, training=training)
    queries = tf.convert_to_tensor(self._queries)
    empty = tf.zeros([batch_size, *queries.shape], memory.dtype)
    net = self._decoder(
      empty, queries, memory=memory, memory_positions=all_positions, training=training
    )
    return {"inference_output": self._output(net), **outputs}

  def _encode_style(
    self,
    state: tf.Tensor | None,
    actions: tf.Tensor,
    is_real: tf.Tensor | None,
    training: bool,
  ) -> tf.Tensor:
    steps = self._style_action_in(actions)
    first = tf.cast(tf.convert_to_tensor(self._style_token), steps.dtype)
    parts = [tf.zeros_like(steps[:, :1]) + first, steps]
    if state is not None:
      parts.insert(1, self._style_state_in(state)[:, tf.newaxis])
    tokens = tf.concat(parts, axis=1)
    visible = None
    if is_real is not None:
      before = tf.repeat(tf.ones_like(is_real[:, :1]), len(parts) - 1, axis=1)
      visible = tf.expand_dims(tf.concat([before, is_real], axis=1), 1)
    positions = attention.sinusoidal_positions(*tokens.shape[1:])
    net = self._style_encoder(
      tokens, tf.constant(positions), visible=visible, training=training
    )
    return self._style_out(net[:, 0])


@gin.configurable
class ACTModel(ImitationModel):
  """Predicts action chunks, fitted by L1; a CVAE separates demonstrators' styles."""

  def __init__(
    self,
    kl_weight: float = 10.0,
    create_network_fn: Callable[..., Any] = ACTNetwork,
    image_statistics: Mapping[str, Sequence[Sequence[float]]] | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the model.

    Args:
      kl_weight: weight of the latent's KL divergence in the loss.
      create_network_fn: called with the shape of a chunk and the numbers of states and
        cameras; returns an `ACTNetwork`.
      image_statistics: (mean, std) of the channels of images in [0, 1], by path of the
        camera; other cameras use ImageNet's.
      **kwargs: arguments of `ImitationModel`.
    Raises:
      SpecError: see `ImitationModel`.
    """
    super().__init__(**kwargs)
    self._kl_weight = kl_weight
    self._create_network_fn = create_network_fn
    self._image_statistics = image_statistics or {}

  def create_network(self) -> Any:
    """See the base class."""
    target = self.get_label_specification(ModeKeys.TRAIN)[TARGET]
    counts = len(self.signature.states), len(self.signature.cameras)
    return self._create_network_fn(target.shape.as_list(), *counts)

  def a_func(self, features: SpecStructure, mode: str) -> dict[str, tf.Tensor]:
    """See the base class: the latent is 0."""
    return self.inference_network_fn(features, None, mode)

  def inference_network_fn(
    self, features: SpecStructure, labels: SpecStructure | None, mode: str
  ) -> dict[str, tf.Tensor]:
    """See the base class: in training the style encoder sees the actions."""
    observed, training = self.observations(features), self.is_training(mode)
    states = {path: steps_as_one(observed[path]) for path in self.signature.states}
    images = []
    for path in self.signature.cameras:
      image = standardize(observed[path], self._image_statistics.get(path))
      images += tf.unstack(image, axis=1)
    style: dict[str, Any] = {}
    if training and labels is not None and self.network.encodes_style:
      robot = [state for path, state in states.items() if not is_environment(path)]
      mask, _ = losses.masks_of(labels, TARGET)
      style = {"actions": labels[TARGET], "is_real": mask}
      style["style_state"] = tf.concat(robot, axis=-1) if robot else None
    return self.network([*states.values()], images, **style, training=training)

  def model_train_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> Any:
    """See the base class: L1, and in training the KL divergence of the latent."""
    error, is_valid = self.all_errors(labels, inference_outputs, mode)
    loss = layers.masked_mean(error, is_valid)
    scalars = {"l1_loss": loss, **self.robot_losses(features, error, is_valid, mode)}
    if "mean" not in inference_outputs:
      return loss, scalars
    names = ("mean", "log_variance")
    kl = tf.reduce_mean(kl_divergence(*(inference_outputs[name] for name in names)))
    return loss + self._kl_weight * kl, {**scalars, "kl_loss": kl}

  def all_errors(
    self, labels: SpecStructure, inference_outputs: dict[str, tf.Tensor], mode: str
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """See the base class: absolute differences."""
    del mode
    absolute = lambda target, action: tf.abs(action - target)  # noqa: E731
    return self._all_errors(labels, inference_outputs, absolute)


def kl_divergence(mean: tf.Tensor, log_variance: tf.Tensor) -> tf.Tensor:
  """Returns the KL divergence of normal distributions from N(0, 1), [B]."""
  divergences = tf.exp(log_variance) + tf.square(mean) - 1 - log_variance
  return tf.reduce_sum(divergences, axis=-1) / 2


def is_environment(path: str) -> bool:
  """Whether a path has LeRobot's name for the state of the environment."""
  return path.endswith("environment_state")


def steps_as_one(vectors: tf.Tensor) -> tf.Tensor:
  """Concatenates the vectors of all steps, [B, T, D], to [B, T * D]."""
  return tf.reshape(vectors, [-1, vectors.shape[1] * vectors.shape[2]])
