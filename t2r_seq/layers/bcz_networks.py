"""Networks over sequences of images, and heads for several waypoints.

BC-Z, https://arxiv.org/abs/2202.02005.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.layers import snail
from t2r_seq.layers.construction import CompositeLayer, configurable_layer, get_layer
from t2r_seq.layers.vision_layers import MLP, ImagesToFeatures

EndPoints = dict[str, tf.Tensor]


@configurable_layer
class ImageTorso(CompositeLayer):
  """Feature points of an image, concatenated with the other features of the step."""

  def __init__(self, tower: Any = None, **kwargs: Any) -> None:
    """Creates the layer.

    Args:
      tower: a layer like `ImagesToFeatures`, which is the default.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    self._tower = tower or ImagesToFeatures()

  def call(
    self, images: tf.Tensor, aux_input: tf.Tensor | None = None, training: bool = False
  ) -> tuple[tf.Tensor, EndPoints]:
    """Maps images to features.

    Args:
      images: [B, H, W, C], or of several steps, [B, T, H, W, C].
      aux_input: [B, A] or [B, T, A].
      training: mode of batch normalisation.
    Returns:
      ([B, F + A] or [B, T, F + A], end points of the tower and 'feature_points').
    """
    del training  # Keras passes it to the inner layers.
    lead = images.shape.rank - 3
    points, end_points = self._tower(_join(images, lead))
    end_points = {**end_points, "feature_points": points}
    split = {name: _split(value, images, lead) for name, value in end_points.items()}
    points = split["feature_points"]
    if aux_input is not None:
      points = tf.concat([points, tf.cast(aux_input, points.dtype)], axis=-1)
    return points, split


class ResettingCell(tf.keras.layers.Layer):
  """A recurrent cell whose state is zeroed where the last input of a step is 1."""

  def __init__(self, cell: Any, **kwargs: Any) -> None:
    super().__init__(**kwargs)
    self.cell, self.state_size = cell, cell.state_size
    self.output_size = cell.units

  def build(self, input_shape: Any) -> None:
    self.cell.build((*input_shape[:-1], input_shape[-1] - 1))
    self.built = True

  def call(self, inputs: tf.Tensor, states: Any, training: bool = False) -> Any:
    del training
    kept = 1 - inputs[..., -1:]
    return self.cell(inputs[..., :-1], [state * kept for state in states])


@configurable_layer
class RecurrentHead(CompositeLayer):
  """LSTMs or GRUs over steps, and a dense layer; their state can be carried."""

  def __init__(
    self,
    num_units: int,
    output_size: int,
    cell: str = "lstm",
    num_layers: int = 1,
    resets: bool = False,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      num_units: units of each recurrent layer.
      output_size: units of the dense layer.
      cell: 'lstm' or 'gru'.
      num_layers: recurrent layers.
      resets: accepts `is_first`, which zeroes the state.
      **kwargs: arguments of the Keras layer.
    Raises:
      SpecError: the cell is not known.
    """
    super().__init__(**kwargs)
    # The GRU of tf.nn.rnn_cell applies the reset gate before the product, too.
    cells = {
      "lstm": tf.keras.layers.LSTMCell,
      "gru": functools.partial(tf.keras.layers.GRUCell, reset_after=False),
    }
    if cell not in cells:
      raise errors.SpecError(
        f"RecurrentHead: cell: expected one of {errors.listing(cells)}, got {cell!r}."
      )
    self._num_units = num_units
    self._num_states = 2 if cell == "lstm" else 1
    # A generic RNN, not Keras' LSTM or GRU: it compiles with XLA on every device.
    create = cells[cell]
    self._resets = resets
    self._rnns = [
      tf.keras.layers.RNN(
        ResettingCell(create(num_units)) if resets else create(num_units),
        return_sequences=True,
        return_state=True,
      )
      for _ in range(num_layers)
    ]
    self._output = tf.keras.layers.Dense(output_size)

  def initial_state(self, batch_size: Any) -> list[tf.Tensor]:
    """Returns the state before the first step: zeros, [B, num_units] each."""
    shape = [batch_size, self._num_units]
    count = self._num_states * len(self._rnns)
    return [tf.zeros(shape, self.compute_dtype) for _ in range(count)]

  def call(
    self,
    inputs: tf.Tensor,
    state: Sequence[tf.Tensor] | None = None,
    training: bool = False,
    is_first: tf.Tensor | None = None,
  ) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Runs over steps.

    Args:
      inputs: [B, T, F].
      state: state from the previous call, or from `initial_state`, the default.
      training: unused; Keras' recurrent layers have it.
      is_first: bool, [B, T]: True for steps that start with a state of zeros; ignored
        without `resets`.
    Returns:
      ([B, T, output_size], the state after the last step).
    """
    del training
    if state is None:
      state = self.initial_state(tf.shape(inputs)[0])
    outputs, new = inputs, []
    size = self._num_states
    for number, rnn in enumerate(self._rnns):
      part = state[number * size : (number + 1) * size]
      states = [tf.cast(x, outputs.dtype) for x in part]
      if self._resets:
        flags = tf.zeros_like(outputs[..., :1])
        if is_first is not None:
          flags += tf.cast(is_first, flags.dtype)[..., tf.newaxis]
        outputs = tf.concat([outputs, flags], axis=-1)
      if outputs.shape[1] == 1 and rnn.built:
        # A step of an export: without a loop LiteRT sees the static shapes.
        output, states = rnn.cell(outputs[:, 0], states)
        outputs = output[:, tf.newaxis]
      else:
        outputs, *states = rnn(outputs, initial_state=states)
      new += states
    return self._output(outputs), new


@configurable_layer
class SNAILEncoder(CompositeLayer):
  """Blocks of causal convolution and attention over steps, and a dense layer."""

  def __init__(
    self,
    sequence_length: int,
    output_size: int,
    num_blocks: int = 2,
    tc_filters: int = 32,
    attention_size: int = 16,
    activation: str | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      sequence_length: steps of the sequences.
      output_size: units of the dense layer.
      num_blocks: pairs of convolutions and attention.
      tc_filters: filters of `TemporalConvBlock`.
      attention_size: size of keys and values.
      activation: activation of the causal convolutions; None: linear, as in the paper.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    self._convs = [
      snail.TemporalConvBlock(sequence_length, tc_filters, activation)
      for _ in range(num_blocks)
    ]
    self._attention = [
      snail.CausalAttention(attention_size, attention_size) for _ in range(num_blocks)
    ]
    self._output = tf.keras.layers.Dense(output_size)

  def call(self, inputs: tf.Tensor) -> tuple[tf.Tensor, EndPoints]:
    """Maps [B, T, F] to ([B, T, output_size], {'attn_probs/<block>': [B, T, T]})."""
    end_points = {}
    blocks = zip(self._convs, self._attention, strict=True)
    for i, (conv, attention) in enumerate(blocks):
      inputs, probs = attention(conv(inputs))
      end_points[f"attn_probs/{i}"] = probs["attn_prob"]
    return self._output(inputs), end_points


@configurable_layer
class WaypointHeads(CompositeLayer):
  """A multi-head MLP: several kinds of actions at several waypoints.

  If only the first waypoint, which a robot moves to, trains the layers below, it has
  separate dense layers.
  """

  def __init__(
    self,
    action_sizes: Sequence[int],
    num_waypoints: int,
    fc_layers: Sequence[int],
    stop_gradient_future_waypoints: bool = True,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      action_sizes: number of components of each kind of action.
      num_waypoints: W.
      fc_layers: units of the hidden layers of each head.
      stop_gradient_future_waypoints: only the first waypoint trains the layers below.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    self._stops = stop_gradient_future_waypoints and num_waypoints > 1
    self._action_sizes = list(action_sizes)
    counts = [1, num_waypoints - 1] if self._stops else [num_waypoints]
    self._counts = counts
    self._heads = [
      [MLP(fc_layers, size * count, normalizer=None) for size in action_sizes]
      for count in counts
    ]

  def call(self, net: tf.Tensor, training: bool = False) -> list[tf.Tensor]:
    """Maps features to waypoints.

    Args:
      net: [B, F] or [B, T, F].
      training: stops the gradients of later waypoints.
    Returns:
      [B, W, action_size] or [B, T, W, action_size] for each kind of action.
    """
    outputs = []
    for part, (count, heads) in enumerate(zip(self._counts, self._heads, strict=True)):
      below = tf.stop_gradient(net) if part and training else net
      outputs.append(
        [
          tf.reshape(head(below), [-1, *net.shape[1:-1], count, size])
          for head, size in zip(heads, self._action_sizes, strict=True)
        ]
      )
    return [tf.concat(parts, axis=-2) for parts in zip(*outputs, strict=True)]


@gin.configurable
def SpatialSoftmaxTorso(
  image: tf.Tensor, aux_input: tf.Tensor | None, is_training: bool
) -> tuple[tf.Tensor, EndPoints]:
  """Maps images to features; Tensor2Robot's function for `ImageTorso`."""
  layer = get_layer("SpatialSoftmaxTorso", ImageTorso)
  return layer(image, aux_input, training=is_training)


@gin.configurable
def LinearHead(net: tf.Tensor, output_size: int) -> tf.Tensor:
  """Maps [..., F] to [..., output_size]; Tensor2Robot's name for a dense layer."""
  return get_layer("LinearHead", lambda: tf.keras.layers.Dense(output_size))(net)


@gin.configurable
def ConvLSTM(
  image: tf.Tensor,
  aux_input: tf.Tensor | None,
  conv_torso_fn: Callable[..., tuple[tf.Tensor, EndPoints]],
  is_training: bool,
  lstm_num_units: int,
  output_size: int,
  condition_sequence_length: int = 20,
  inference_sequence_length: int = 20,
) -> tuple[tf.Tensor, EndPoints]:
  """Maps images of steps to outputs; Tensor2Robot's function for `RecurrentHead`.

  Args:
    image: [B, T, H, W, C].
    aux_input: [B, T, A].
    conv_torso_fn: torso such as `SpatialSoftmaxTorso`.
    is_training: mode of batch normalisation.
    lstm_num_units: units of the recurrent layer, a GRU as in Tensor2Robot: its weights
      load, gates in Keras' order (update, reset).
    output_size: units of the head.
    condition_sequence_length: not used.
    inference_sequence_length: not used.
  Returns:
    ([B, T, output_size], end points of the torso).
  """
  del condition_sequence_length, inference_sequence_length
  points, end_points = conv_torso_fn(image, aux_input, is_training=is_training)
  create = lambda: RecurrentHead(lstm_num_units, output_size, "gru")  # noqa: E731
  outputs, _ = get_layer("ConvLSTM", create)(points, training=is_training)
  return outputs, end_points


@gin.configurable
def SNAIL(
  image: tf.Tensor,
  aux_input: tf.Tensor | None,
  conv_torso_fn: Callable[..., tuple[tf.Tensor, EndPoints]],
  is_training: bool,
  output_size: int,
  num_blocks: int = 2,
  tc_filters: int = 32,
  attention_size: int = 16,
  condition_sequence_length: int = 20,
  inference_sequence_length: int = 20,
) -> tuple[tf.Tensor, EndPoints]:
  """Maps images of steps to outputs; Tensor2Robot's function for `SNAILEncoder`.

  A ReLU follows each causal convolution, as in contrib's conv1d.

  Args:
    image: [B, T, H, W, C].
    aux_input: [B, T, A].
    conv_torso_fn: torso such as `SpatialSoftmaxTorso`.
    is_training: mode of batch normalisation.
    output_size: units of the head.
    num_blocks: see `SNAILEncoder`.
    tc_filters: see `SNAILEncoder`.
    attention_size: see `SNAILEncoder`.
    condition_sequence_length: steps of the episode to learn from.
    inference_sequence_length: steps of the episode to act in.
  Returns:
    ([B, T, output_size], end points of the torso, and 'attn_probs/<block>').
  """
  points, end_points = conv_torso_fn(image, aux_input, is_training=is_training)
  length = condition_sequence_length + inference_sequence_length
  layer = get_layer(
    "SNAIL",
    lambda: SNAILEncoder(
      length, output_size, num_blocks, tc_filters, attention_size, "relu"
    ),
  )
  outputs, probs = layer(points)
  return outputs, {**end_points, **probs}


@gin.configurable
def MultiHeadMLP(
  net: tf.Tensor,
  action_sizes: Sequence[int],
  num_waypoints: int,
  fc_layers: Sequence[int],
  is_training: bool,
  stop_gradient_future_waypoints: bool = True,
) -> list[tf.Tensor]:
  """Maps features to waypoints; Tensor2Robot's function for `WaypointHeads`."""
  layer = get_layer(
    "MultiHeadMLP",
    lambda: WaypointHeads(
      action_sizes, num_waypoints, fc_layers, stop_gradient_future_waypoints
    ),
  )
  return layer(net, training=is_training)


def _join(value: tf.Tensor, lead: int) -> tf.Tensor:
  """Merges the first `lead` axes."""
  return value if lead == 1 else tf.reshape(value, [-1, *value.shape[lead:]])


def _split(value: tf.Tensor, like: tf.Tensor, lead: int) -> tf.Tensor:
  """Splits the first axis into the first `lead` axes of `like`."""
  if lead == 1:
    return value
  return tf.reshape(value, [-1, *like.shape[1:lead], *value.shape[1:]])
