"""ResNets of both versions, whose blocks a condition can modulate (FiLM)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.layers.construction import CompositeLayer, configurable_layer, get_layer
from t2r_seq.layers.vision_layers import film

# The blocks of each block layer, by the number of weight layers.
_BLOCK_SIZES = {
  18: (2, 2, 2, 2),
  34: (3, 4, 6, 3),
  50: (3, 4, 6, 3),
  101: (3, 4, 23, 3),
  152: (3, 8, 36, 3),
  200: (3, 24, 36, 3),
}

FilmVectors = list[list[tf.Tensor | None]]
"""For each block layer and block [B, 2 * filters]: gammas, then betas; or None."""


@configurable_layer
class LinearFiLMGenerator(CompositeLayer):
  """Dense layers from a condition to FiLM vectors, one for each ResNet block layer."""

  def __init__(
    self,
    block_sizes: Sequence[int],
    filter_sizes: Sequence[int],
    enabled_block_layers: Sequence[bool] | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      block_sizes: blocks of each block layer.
      filter_sizes: filters of each block layer.
      enabled_block_layers: flags of the block layers with a condition; None for all.
      **kwargs: arguments of the Keras layer.
    Raises:
      SpecError: there is not one flag for each block layer.
    """
    super().__init__(**kwargs)
    enabled = list(enabled_block_layers or [True] * len(block_sizes))
    if len(enabled) != len(block_sizes):
      raise errors.SpecError(
        "LinearFiLMGenerator: enabled_block_layers: expected one bool for each of "
        f"{len(block_sizes)} block layers, got {len(enabled)}."
      )
    self._block_sizes = list(block_sizes)
    self._index = [i for i, is_enabled in enumerate(enabled) if is_enabled]
    self._dense = [
      tf.keras.layers.Dense(block_sizes[i] * filter_sizes[i] * 2) for i in self._index
    ]

  def call(self, embedding: tf.Tensor) -> dict[str, tf.Tensor]:
    """Maps a condition [B, D] to the FiLM vectors of each block, [B, 2 * filters].

    Returns:
      The vectors by '<block layer>/<block>', both counted from 0.
    """
    vectors = {}
    for i, dense in zip(self._index, self._dense, strict=True):
      parts = tf.split(dense(embedding), self._block_sizes[i], axis=-1)
      vectors.update({f"{i}/{j}": part for j, part in enumerate(parts)})
    return vectors


@configurable_layer
class ResNet(CompositeLayer):
  """A ResNet of version 1 (https://arxiv.org/abs/1512.03385) or 2 (1603.05027).

  Version 1 has torchvision's structure, so that its weights can be loaded. If a
  condition is given, FiLM modulates each block after its last normalization.
  """

  def __init__(
    self,
    num_classes: int | None = None,
    resnet_size: int = 50,
    version: int = 2,
    num_filters: int = 64,
    kernel_size: int = 7,
    weight_decay: float | None = None,
    film_generator_cls: Callable[..., Any] | None = None,
    num_block_layers: int = 4,
    normalizer: str = "batch",
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      num_classes: components of 'final_dense'; None leaves it out.
      resnet_size: 18 or 34; 50, 101, 152 or 200 with bottlenecks.
      version: 1 or 2.
      num_filters: filters of the first block layer; each next one has twice as many.
      kernel_size: kernel size of the first convolution.
      weight_decay: times half the squared weights of convolutions, added to the loss.
      film_generator_cls: called with the number of blocks and of filters of each block
        layer; returns the layer that maps a condition to FiLM vectors, e.g.
        `LinearFiLMGenerator`.
      num_block_layers: number of block layers, 1 to 4; with fewer, the maps stay finer.
      normalizer: 'batch'; 'frozen', batch normalization that is never trained, for
        pretrained weights and small batches; or 'group', with one group for every 16
        filters.
      **kwargs: arguments of the Keras layer.
    Raises:
      SpecError: the size, version or normalizer is unknown, or there are no such
        block layers.
    """
    super().__init__(**kwargs)
    if resnet_size not in _BLOCK_SIZES or version not in (1, 2):
      raise errors.SpecError(
        "ResNet: resnet_size: expected one of "
        f"{errors.listing(map(str, _BLOCK_SIZES))}, of version 1 or 2, "
        f"got {resnet_size} of version {version}."
      )
    if not 1 <= num_block_layers <= 4:
      raise errors.SpecError(
        f"ResNet: num_block_layers: expected 1 to 4, got {num_block_layers}."
      )
    if normalizer not in _NORMALIZERS:
      raise errors.SpecError(
        f"ResNet: normalizer: expected one of {errors.listing(_NORMALIZERS)}, "
        f"got {normalizer!r}."
      )
    self._is_v2 = version == 2
    block_sizes, filters = [
      sizes[:num_block_layers]
      for sizes in block_and_filter_sizes(resnet_size, num_filters)
    ]
    bottleneck = resnet_size >= 50
    self._first = PaddedConv(num_filters, kernel_size, 2, weight_decay)
    norm = _NORMALIZERS[normalizer]
    self._first_norm = None if self._is_v2 else norm(num_filters)
    self._pool = tf.keras.layers.MaxPooling2D(
      3, 2, padding="same" if self._is_v2 else "valid"
    )
    block_cls = BlockV2 if self._is_v2 else BlockV1
    self._blocks: dict[str, Any] = {}
    for i, (count, width) in enumerate(zip(block_sizes, filters, strict=True)):
      for j in range(count):
        strides = 2 if i > 0 and j == 0 else 1
        # In version 1 without bottlenecks, the first block keeps size and channels.
        projects = j == 0 and (self._is_v2 or bottleneck or i > 0)
        block = block_cls(width, strides, bottleneck, projects, weight_decay, norm)
        self._blocks[f"{i}/{j}"] = block
    self._last_norm = norm(filters[-1]) if self._is_v2 else None
    self._dense = tf.keras.layers.Dense(num_classes) if num_classes else None
    self._generator = None
    if film_generator_cls is not None:
      # After its last convolution, a bottleneck has four times as many channels.
      widths = [4 * n for n in filters] if bottleneck and version == 1 else filters
      self._generator = film_generator_cls(block_sizes, widths)

  def call(
    self,
    images: tf.Tensor,
    film_generator_input: tf.Tensor | None = None,
    film_vectors: dict[str, tf.Tensor] | None = None,
    training: bool = False,
  ) -> dict[str, tf.Tensor]:
    """Maps images to end points.

    Args:
      images: [B, H, W, C].
      film_generator_input: the condition, [B, D], for `film_generator_cls`.
      film_vectors: FiLM vectors of another generator, [B, 2 * filters] by
        '<block layer>/<block>'.
      training: mode of batch normalisation.
    Returns:
      By name: 'initial_conv', 'initial_max_pool', 'block_layer1' to 'block_layer4' and
      'pre_final_pool', [B, h, w, C]; 'final_reduce_mean', [B, 1, 1, C]; with
      `num_classes` also 'final_dense', [B, num_classes].
    Raises:
      SpecError: there is a condition and no generator, or a FiLM vector has another
        size or is for no block.
    """
    del training  # Keras passes it to the inner layers.
    if film_generator_input is not None:
      if self._generator is None:
        raise errors.SpecError(
          "ResNet: film_generator_cls: expected a generator for the given "
          "film_generator_input, got None. Pass e.g. LinearFiLMGenerator."
        )
      film_vectors = self._generator(film_generator_input)
    vectors = film_vectors or {}
    unknown = sorted(set(vectors) - set(self._blocks))
    if unknown:
      raise errors.SpecError(
        f"ResNet: film_vectors: expected those of {errors.listing(self._blocks)}, got "
        f"{errors.listing(unknown)}."
      )
    net = self._first(images)
    end_points = {"initial_conv": net}
    if self._first_norm is not None:
      net = tf.nn.relu(self._first_norm(net))
      # After a ReLU, padding by zeros changes no maximum.
      net = tf.pad(net, [[0, 0], [1, 1], [1, 1], [0, 0]])
    net = end_points["initial_max_pool"] = self._pool(net)
    for key, block in self._blocks.items():
      net = block(net, vectors.get(key))
      end_points[f"block_layer{int(key[0]) + 1}"] = net
    if self._last_norm is not None:
      net = tf.nn.relu(self._last_norm(net))
    end_points["pre_final_pool"] = net
    net = tf.reduce_mean(net, axis=[1, 2], keepdims=True)
    end_points["final_reduce_mean"] = net
    if self._dense is not None:
      end_points["final_dense"] = self._dense(net[:, 0, 0])
    return end_points


def block_and_filter_sizes(
  resnet_size: int, num_filters: int = 64
) -> tuple[list[int], list[int]]:
  """Returns the numbers of blocks and of filters of each block layer."""
  sizes = _BLOCK_SIZES[resnet_size]
  return list(sizes), [num_filters * 2**i for i in range(len(sizes))]


@gin.configurable
def linear_film_generator(
  embedding: tf.Tensor,
  block_sizes: Sequence[int],
  filter_sizes: Sequence[int],
  enabled_block_layers: Sequence[bool] | None = None,
) -> FilmVectors:
  """Maps conditions to FiLM; Tensor2Robot's function for `LinearFiLMGenerator`.

  Returns:
    Lists of the blocks of each block layer: [B, 2 * filters], or None if not enabled.
  """
  layer = get_layer(
    "linear_film_generator",
    lambda: LinearFiLMGenerator(block_sizes, filter_sizes, enabled_block_layers),
  )
  vectors = layer(embedding)
  return [
    [vectors.get(f"{i}/{j}") for j in range(count)]
    for i, count in enumerate(block_sizes)
  ]


@gin.configurable
def resnet_model(
  images: tf.Tensor,
  is_training: bool,
  num_classes: int,
  resnet_size: int = 50,
  weight_decay: float | None = None,
  kernel_size: int = 7,
  num_filters: int = 64,
  return_intermediate_values: bool = False,
  film_generator_fn: Callable[..., FilmVectors] | None = None,
  film_generator_input: tf.Tensor | None = None,
) -> tf.Tensor | dict[str, tf.Tensor]:
  """Maps images to logits; Tensor2Robot's function for `ResNet`, version 2.

  Args:
    images: [B, H, W, C].
    is_training: mode of batch normalisation.
    num_classes: components of the logits.
    resnet_size: see `ResNet`.
    weight_decay: see `ResNet`.
    kernel_size: see `ResNet`.
    num_filters: see `ResNet`.
    return_intermediate_values: returns all end points by name.
    film_generator_fn: called with `film_generator_input` and the blocks and filters of
      each block layer, e.g. `linear_film_generator`.
    film_generator_input: the condition, [B, D].
  Returns:
    [B, num_classes], or the end points.
  Raises:
    SpecError: there is a condition and no generator, or a FiLM vector of another size.
  """
  if film_generator_input is not None and film_generator_fn is None:
    raise errors.SpecError(
      "resnet_model: film_generator_fn: expected a generator for the given "
      "film_generator_input, got None. Pass e.g. linear_film_generator."
    )
  layer = get_layer(
    "resnet_model",
    lambda: ResNet(num_classes, resnet_size, 2, num_filters, kernel_size, weight_decay),
  )
  vectors = None
  if film_generator_fn is not None:
    sizes = block_and_filter_sizes(resnet_size, num_filters)
    film_vectors = film_generator_fn(film_generator_input, *sizes)
    vectors = {
      f"{i}/{j}": vector
      for i, block_layer in enumerate(film_vectors)
      for j, vector in enumerate(block_layer or ())
      if vector is not None
    }
  end_points = layer(images, film_vectors=vectors, training=is_training)
  return end_points if return_intermediate_values else end_points["final_dense"]


def _batch_norm(num_filters: int) -> Any:
  del num_filters
  return tf.keras.layers.BatchNormalization(momentum=0.997, epsilon=1e-5)


def _frozen_batch_norm(num_filters: int) -> Any:
  norm = _batch_norm(num_filters)
  norm.trainable = False
  return norm


def _group_norm(num_filters: int) -> Any:
  groups = max(num_filters // 16, 1)
  return tf.keras.layers.GroupNormalization(groups, epsilon=1e-5)


_NORMALIZERS: dict[str, Callable[[int], Any]] = {
  "batch": _batch_norm,
  "frozen": _frozen_batch_norm,
  "group": _group_norm,
}


class PaddedConv(CompositeLayer):
  """A convolution whose padding depends on the kernel's size, not on the image's."""

  def __init__(
    self, filters: int, size: int, strides: int, weight_decay: float | None
  ) -> None:
    super().__init__()
    before = (size - 1) // 2
    self._padding = (before, size - 1 - before) if strides > 1 else None
    regularizer = tf.keras.regularizers.L2(weight_decay / 2) if weight_decay else None
    self._conv = tf.keras.layers.Conv2D(
      filters,
      size,
      strides,
      padding="same" if strides == 1 else "valid",
      use_bias=False,
      kernel_initializer=tf.keras.initializers.VarianceScaling(),
      kernel_regularizer=regularizer,
    )

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    if self._padding is not None:
      inputs = tf.pad(inputs, [[0, 0], self._padding, self._padding, [0, 0]])
    return self._conv(inputs)


class Block(CompositeLayer):
  """The convolutions of a block: two of 3 x 3, or a bottleneck of three."""

  def __init__(
    self,
    filters: int,
    strides: int,
    bottleneck: bool,
    projects: bool,
    weight_decay: float | None,
    norm: Callable[[int], Any],
  ) -> None:
    super().__init__()
    shapes = [(filters, 3, strides), (filters, 3, 1)]
    if bottleneck:
      shapes = [(filters, 1, 1), (filters, 3, strides), (4 * filters, 1, 1)]
    self._convs = [PaddedConv(*shape, weight_decay) for shape in shapes]
    self._norms = [norm(shape[0]) for shape in shapes]
    self._projection = None
    if projects:
      self._projection = PaddedConv(shapes[-1][0], 1, strides, weight_decay)


class BlockV1(Block):
  """Normalises after each convolution."""

  def __init__(self, *args: Any) -> None:
    super().__init__(*args)
    self._shortcut_norm: Any = None
    if self._projection is not None:
      self._shortcut_norm = args[-1](args[0])

  def call(self, inputs: tf.Tensor, gamma_beta: tf.Tensor | None = None) -> tf.Tensor:
    shortcut, net = inputs, inputs
    if self._projection is not None:
      shortcut = self._shortcut_norm(self._projection(inputs))
    for i, (conv, norm) in enumerate(zip(self._convs, self._norms, strict=True)):
      net = norm(conv(net if i == 0 else tf.nn.relu(net)))
    if gamma_beta is not None:
      net = film(net, gamma_beta)
    return tf.nn.relu(net + shortcut)


class BlockV2(Block):
  """Normalises before each convolution; no ReLU follows the sum."""

  def call(self, inputs: tf.Tensor, gamma_beta: tf.Tensor | None = None) -> tf.Tensor:
    shortcut, net = inputs, inputs
    for i, (conv, norm) in enumerate(zip(self._convs, self._norms, strict=True)):
      net = norm(net)
      if gamma_beta is not None and i == len(self._convs) - 1:
        net = film(net, gamma_beta)
      net = tf.nn.relu(net)
      if i == 0 and self._projection is not None:
        shortcut = self._projection(net)
      net = conv(net)
    return net + shortcut
