"""`EpisodeColumns`: how a pool keeps its episodes while it is filled, and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from t2r_seq import records, specs, windows
from t2r_seq.data.loaders.decoded_columns import LoadedRows
from t2r_seq.data.streamed.large_steps import is_large_step
from t2r_seq.data.streamed.raw_episodes import RawEpisodes

# Of a string in a tensor, beside those that it has.
_STRING_BYTES = 24
# Beside the paths, and none of them.
_LENGTH, _RECORD = "/length", "/record"
# Episodes in a list of those that came last.
_LATEST = 64

Lists = dict[str, dict[str, tf.Tensor]]
"""By path: 'latest', a list of values of episodes; 'earlier', a list of such lists."""


class EpisodeColumns:
  """Episodes of one kind, one after the other.

  While a pool is filled, it holds the tensors of each episode by reference, in lists.
  Then these become one tensor of steps by path; images are decoded, each once, and kept
  apart. Of steps that are still in their files it holds the places, until then.

  Attributes:
    reader: cuts windows from what is kept.
  """

  def __init__(
    self,
    element_spec: Any,
    spec_structure: specs.SpecStructure,
    *cut: Any,
    decode_images: records.DecodeImages = True,
    raw_episodes: RawEpisodes | None = None,
  ) -> None:
    """Plans the columns.

    Args:
      element_spec: of an episode; leaves [T, ...] and context features.
      spec_structure: the specs of a window.
      *cut: sequence_length, stride, shift, padding and masks of `windows.windows`.
      decode_images: decodes images that the episodes hold encoded, perhaps in a way of
        its own.
      raw_episodes: what the episodes come from, in pairs with their records.
    Raises:
      SpecError: the episodes do not fit the specs.
    """
    self._raw = raw_episodes
    self._placed = {} if raw_episodes is None else raw_episodes.specs
    element = specs.flatten_spec_structure(
      element_spec if raw_episodes is None else element_spec[0]
    )
    for path, spec in self._placed.items():
      steps = tf.TensorShape([None]).concatenate(spec.shape)
      element[path] = tf.TensorSpec(steps, spec.dtype)
    encoded = windows.WindowReader(element, spec_structure, *cut)
    self._timed = encoded.timed_paths
    self._element = encoded.select(element)
    for path in self._timed:
      # Of any length, also where all have one: a pool holds several.
      steps = tf.TensorShape([None]).concatenate(self._element[path].shape[1:])
      self._element[path] = tf.TensorSpec(steps, self._element[path].dtype)
    self._select = encoded.select
    self._num_steps = encoded.num_steps
    self._images = _find_images(self._element, spec_structure) if decode_images else {}
    self._large = [
      path
      for path in self._timed
      if path not in self._placed
      and is_large_step(self._element[path].shape[1:], self._element[path].dtype)
    ]
    for path in self._placed:
      self._element[path] = tf.TensorSpec([None], tf.int64)
    self._decode_images = decode_images
    records.image_decoding(decode_images).check(
      "streamed_windows", windows.flat_specs(spec_structure)
    )
    decoded = element.copy()
    for path, spec in self._images.items():
      leading = element[path].shape[: -spec.shape[:-3].rank or None]
      decoded[path] = tf.TensorSpec(leading.concatenate(spec.shape), spec.dtype)
    self.reader = windows.WindowReader(decoded, spec_structure, *cut)

  def select(self, *episode: Any) -> dict[str, Any]:
    """Takes what is kept of an episode, as an element of a dataset gives it.

    Returns:
      'values' by path, 'num_steps', and bytes: 'pooled', its part of a pool; 'parsed',
      as it comes. int64 scalars.
    """
    is_one = len(episode) == 1 or self._raw is not None
    flat = self._select(episode[0] if is_one else episode)
    values = {path: tf.convert_to_tensor(flat[path]) for path in flat}
    num_steps = self._num_steps(values)
    parsed = {
      path: _num_bytes(value, self._placed.get(path)) for path, value in values.items()
    }
    pooled = [
      self._pooled_bytes(path, values[path], num_bytes)
      for path, num_bytes in parsed.items()
    ]
    for path in self._large:
      rows = tf.ensure_shape(values[path], self._element[path].shape)
      values[path] = windows.RowList.of_tensor(rows).handle
    if self._raw is not None:
      values[_RECORD] = episode[1]
    return {
      "values": values,
      "num_steps": num_steps,
      "pooled": tf.add_n(pooled),
      "parsed": tf.add_n(list(parsed.values())),
    }

  def nothing(self) -> dict[str, Any]:
    """Returns what `select` would of an episode without steps or values."""
    zero = tf.constant(0, tf.int64)
    values = {
      path: tf.zeros([size or 0 for size in spec.shape.as_list()], spec.dtype)
      for path, spec in self._kept.items()
      if path not in self._large and path != _LENGTH
    }
    values |= {path: self._rows(path).handle for path in self._large}
    return {"values": values, "num_steps": zero, "pooled": zero, "parsed": zero}

  def empty(self) -> Lists:
    """Returns lists of no episode."""
    latest = {
      path: windows.RowList.empty(spec.shape, spec.dtype).handle
      for path, spec in self._kept.items()
    }
    earlier = windows.RowList.empty(tf.TensorShape([]), tf.variant).handle
    return {"latest": latest, "earlier": dict.fromkeys(latest, earlier)}

  def append(self, lists: Lists, values: Mapping[str, Any], num_steps: Any) -> Lists:
    """Appends an episode; copies references only.

    Of those it copies all of a list, because tf.data holds on to the state before. In
    one list for the whole pool each of 20,000 short episodes took 1.1 ms.
    """
    given = {**values, _LENGTH: num_steps}
    latest = {
      path: _push(handle, given[path]) for path, handle in lists["latest"].items()
    }
    length = tf.raw_ops.TensorListLength(input_handle=latest[_LENGTH])
    return tf.cond(
      length < _LATEST,
      lambda: tf.nest.map_structure(tf.identity, {**lists, "latest": latest}),
      lambda: {"latest": self.empty()["latest"], "earlier": _push_all(lists, latest)},
    )

  def join(self, lists: Lists) -> dict[str, Any]:
    """Makes one tensor of the steps of all episodes, by path, and decodes images.

    Returns:
      'rows' by path, for `gather`, and 'length', int64 [episodes].
    """
    rows: dict[str, tf.Tensor] = {}
    kept = _push_all(lists, lists["latest"])
    flat = {
      path: windows.RowList.empty(spec.shape, spec.dtype).concat_all(kept[path]).handle
      for path, spec in self._kept.items()
    }
    length = _stack(flat[_LENGTH], self._kept[_LENGTH])
    if self._raw is not None:
      places = {path: _concat(flat[path], self._kept[path]) for path in self._placed}
      record = _stack(flat[_RECORD], self._kept[_RECORD])
      rows |= self._raw.load(record, length, places)
    for path, spec in self._element.items():
      handle = flat[path]
      if path in rows:
        continue
      if path in self._large:
        rows[path] = self._rows(path).concat_all(handle).handle
      elif path in self._timed:
        rows[path] = self._load(path, _concat(handle, spec))
      else:
        rows[path] = _stack(handle, spec)
        if path in self._images:
          rows[path] = records.decode_images(
            rows[path], self._images[path], path, self._decode_images
          )
    return {"rows": rows, "length": length}

  def gather(self, path: str, rows: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """Gathers steps of the pool or, of context features, episodes."""
    if path in self._large:
      return self._rows(path, rows).gather(index)
    if path not in self._images or path not in self._timed:
      return tf.gather(rows, index)
    spec = self._images[path]
    images = windows.RowList(rows, spec.shape[-3:], spec.dtype)
    return LoadedRows(images, spec.shape[:-3]).gather(index)

  def _rows(self, path: str, handle: tf.Tensor | None = None) -> windows.RowList:
    spec = self._element[path]
    if handle is None:
      return windows.RowList.empty(spec.shape[1:], spec.dtype)
    return windows.RowList(handle, spec.shape[1:], spec.dtype)

  @property
  def _kept(self) -> dict[str, tf.TensorSpec]:
    """What the lists have of an episode; of large steps that is a list, too."""
    kept = {**self._element, _LENGTH: tf.TensorSpec((), tf.int64)}
    if self._raw is not None:
      kept[_RECORD] = tf.TensorSpec([3], tf.int64)
    return kept | dict.fromkeys(self._large, tf.TensorSpec((), tf.variant))

  def _load(self, path: str, steps: tf.Tensor) -> tf.Tensor:
    if path not in self._images:
      return steps
    encoded = tf.reshape(steps, [-1])
    return records.decode_to_list(
      encoded, self._images[path], path, self._decode_images
    ).handle

  def _pooled_bytes(self, path: str, value: Any, num_bytes: tf.Tensor) -> tf.Tensor:
    if path in self._large or path in self._placed:
      return num_bytes
    if path not in self._images:
      # Becoming one tensor they are there twice: two pools have room for three.
      return -(-3 * num_bytes // 2)
    spec = self._images[path]
    pixels = spec.shape[-3:].num_elements() * spec.dtype.size
    return 2 * num_bytes + pixels * tf.size(value, tf.int64)


def _find_images(
  element: specs.TensorSpecStruct, spec_structure: specs.SpecStructure
) -> dict[str, specs.ExtendedTensorSpec]:
  """Returns the specs of images that come as strings, by their paths in an episode."""
  found = {}
  for path, spec in windows.flat_specs(spec_structure).items():
    source = path if path in element else spec.name
    if source not in element or element[source].dtype != tf.string:
      continue
    if specs.is_encoded_image_spec(spec):
      found[source] = specs.ExtendedTensorSpec.to_spec(spec)
  return found


def _num_bytes(value: tf.Tensor, placed: tf.TensorSpec | None) -> tf.Tensor:
  if placed is not None:
    step_bytes = placed.shape.num_elements() * placed.dtype.size
    return tf.size(value, tf.int64) * step_bytes
  if value.dtype != tf.string:
    return tf.size(value, tf.int64) * value.dtype.size
  lengths = tf.cast(tf.strings.length(value), tf.int64)
  return tf.reduce_sum(lengths) + tf.size(value, tf.int64) * _STRING_BYTES


def _sizes(shape: tf.TensorShape) -> tf.Tensor:
  return tf.constant([-1 if size is None else size for size in shape], tf.int32)


def _push(handle: tf.Tensor, value: Any) -> tf.Tensor:
  return tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=value)


def _push_all(lists: Lists, latest: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  return {path: _push(lists["earlier"][path], latest[path]) for path in latest}


def _concat(handle: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
  joined, _ = tf.raw_ops.TensorListConcatV2(
    input_handle=handle,
    element_shape=_sizes(spec.shape),
    leading_dims=tf.constant([], tf.int64),
    element_dtype=spec.dtype,
  )
  return tf.ensure_shape(joined, spec.shape)


def _stack(handle: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
  return tf.raw_ops.TensorListStack(
    input_handle=handle, element_shape=_sizes(spec.shape), element_dtype=spec.dtype
  )
