"""Summaries for TensorBoard from inside a model, without the package tensorboard.

`tf.summary.scalar` and the like need that package, which TensorFlow no longer installs.
The functions below write the same tensors and metadata, if there is a default writer
and recording is on. The trainer switches both on for train steps, every
`log_every_n_steps`. Only viewing the files needs the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

_MAX_EXAMPLES, _MAX_VALUES = 4, 8
_MIN_HEIGHT = 96  # In pixels: lower images are hard to see in TensorBoard.
_Metadata = tf.compat.v1.SummaryMetadata


def scalar(name: str, value: Any) -> None:
  """Writes a scalar `value` as float32."""
  _write(name, tf.cast(value, tf.float32), "scalars")


def text(name: str, value: Any) -> None:
  """Writes text, in Markdown: a string, or strings [N]."""
  _write(name, tf.convert_to_tensor(value, tf.string), "text")


def image(name: str, images: tf.Tensor, description: str = "") -> None:
  """Writes the first four images of a batch, or stacks with their frames side by side.

  Args:
    name: name of the summary.
    images: [B, H, W, C], or stacks [B, K, H, W, C], with 1, 3 or 4 channels; integers,
      or floats in [0, 1]. Pixels of images lower than 96 are repeated.
    description: text that TensorBoard shows beside the name.
  Raises:
    ValueError: `images` has another rank or number of channels.
  """
  strip = image_strip(images)
  if strip is None:
    raise ValueError(
      f"summaries.image: {name}: expected images [B, H, W, C] or stacks of them, with "
      f"1, 3 or 4 channels, got {tuple(images.shape)}."
    )
  _write(name, _encode_images(_enlarge(strip)), "images", description)


def histogram(name: str, values: Any, buckets: int = 30) -> None:
  """Writes the histogram of numbers.

  Args:
    name: name of the histogram.
    values: numbers of any shape; NaNs and infinities are left out.
    buckets: number of buckets of equal width, from the smallest to the largest value.
  """
  numbers = tf.cast(tf.reshape(values, [-1]), tf.float64)
  numbers = tf.boolean_mask(numbers, tf.math.is_finite(numbers))
  bins = tf.cond(
    tf.size(numbers) > 0,
    lambda: _bins(numbers, buckets),
    lambda: tf.zeros([0, 3], tf.float64),
  )
  _write(name, bins, "histograms")


def _bins(numbers: tf.Tensor, buckets: int) -> tf.Tensor:
  """Returns TensorBoard's tensor: left and right edges, and counts, [buckets, 3]."""
  low, high = tf.reduce_min(numbers), tf.reduce_max(numbers)
  # If all numbers are equal, the buckets cover a range of width 1 around them.
  is_constant = tf.equal(low, high)
  low = tf.where(is_constant, low - 0.5, low)
  high = tf.where(is_constant, high + 0.5, high)
  indices = tf.cast((numbers - low) / (high - low) * buckets, tf.int32)
  indices = tf.clip_by_value(indices, 0, buckets - 1)
  counts = tf.math.bincount(indices, minlength=buckets, maxlength=buckets)
  edges = tf.linspace(low, high, buckets + 1)
  return tf.stack([edges[:-1], edges[1:], tf.cast(counts, tf.float64)], axis=1)


def samples_table(tensors: Mapping[str, tf.Tensor]) -> str:
  """Returns a Markdown table of the first four samples of a batch, one per column.

  Args:
    tensors: [B, ...] by path, eager; each cell has a sample's first eight values.
  Returns:
    The table; '' without tensors.
  """
  rows = {path: t[:_MAX_EXAMPLES].numpy() for path, t in tensors.items()}
  if not rows:
    return ""
  num = max(len(values) for values in rows.values())
  columns = " | ".join(str(i) for i in range(num))
  lines = [f"| path | shape | {columns} |", f"| --- | --- |{' --- |' * num}"]
  for path, values in rows.items():
    cells = " | ".join(_cell(value) for value in values)
    kind = f"{tensors[path].dtype.name} {values.shape[1:]}"
    lines.append(f"| {path} | {kind} | {cells} |")
  return "\n".join(lines)


def _cell(value: np.ndarray) -> str:
  flat = np.asarray(value).reshape(-1)
  cells = [
    item.decode("utf-8", "replace")[:40].replace("|", "/")
    if isinstance(item, bytes)
    else f"{item:.4g}"
    if isinstance(item, np.floating)
    else str(item)
    for item in flat[:_MAX_VALUES]
  ]
  return " ".join([*cells, *(["..."] if len(flat) > _MAX_VALUES else [])])


def _enlarge(images: tf.Tensor) -> tf.Tensor:
  """Repeats the pixels of images lower than `_MIN_HEIGHT`."""
  height = images.shape[1]
  times = 1 if height is None else -(-_MIN_HEIGHT // max(height, 1))
  if times == 1:
    return images
  return tf.repeat(tf.repeat(images, times, axis=1), times, axis=2)


def _write(name: str, value: tf.Tensor, plugin: str, description: str = "") -> None:
  metadata = _metadata(plugin)
  metadata.summary_description = description
  tf.summary.write(name, value, metadata=metadata)


def image_strip(tensor: tf.Tensor) -> tf.Tensor | None:
  """Lays the frames of each stack side by side.

  Args:
    tensor: a batch of images [B, H, W, C] or of stacks [B, K, H, W, C] with 1, 3 or 4
      channels; integers over the range of their dtype, or floats in [0, 1].
  Returns:
    [at most 4, H, K * W, C], uint8; None for anything else, also for bools.
  """
  shape, dtype = tensor.shape, tensor.dtype
  is_image = shape.rank in (4, 5) and shape[-1] in (1, 3, 4)
  if not is_image or not (dtype.is_integer or dtype.is_floating):
    return None
  images = tensor[:_MAX_EXAMPLES]
  if shape.rank == 5:
    images = tf.transpose(images, [0, 2, 1, 3, 4])
    parts = tf.unstack(tf.shape(images))
    size = [parts[0], parts[1], parts[2] * parts[3], parts[4]]
    images = tf.reshape(images, size)
  return tf.image.convert_image_dtype(images, tf.uint8, saturate=True)


def _encode_images(images: tf.Tensor) -> tf.Tensor:
  """Returns TensorBoard's tensor: width, height, and the PNGs, as strings."""
  sizes = tf.strings.as_string(tf.gather(tf.shape(images), [2, 1]))
  pngs = tf.map_fn(tf.io.encode_png, images, fn_output_signature=tf.string)
  return tf.concat([sizes, pngs], axis=0)


def _metadata(plugin: str) -> tf.compat.v1.SummaryMetadata:
  data_class = {"scalars": 1, "text": 2, "images": 3, "histograms": 2}[plugin]
  plugin_data = _Metadata.PluginData(plugin_name=plugin)
  return _Metadata(plugin_data=plugin_data, data_class=data_class)
