"""The pool: an in-memory episode buffer that shuffled batches are gathered from.

    stream of episodes ─► `streams` fills a pool  ─┐
                                                   ├─► `gather_batches`
    random access      ─► `PoolReader` reads one  ─┘

A pool holds the steps of its episodes once, one tensor (or list of images) a path, and
the order of its windows.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import specs, windows
from t2r_seq.data.plan import Plan
from t2r_seq.records.images import (
  DecodeImages,
  decode_images,
  decode_to_list,
  image_decoding,
)
from t2r_seq.windows.reader import WindowReader, present_path
from t2r_seq.windows.rows import RowList

_no_autograph = tf.autograph.experimental.do_not_convert

Pool = dict[str, Any]
"""Tensors by name:

rows: by path the steps of all episodes, one after the other; see `PoolRows.read`.
ends: by episode the number after its last window, int64 [n].
episodes: by episode the number of its first window, its length and the row of its step
  0, which is negative if the pool lacks that step; int64 [n, 3].
order: numbers of the pool's windows in the order of the batches, int64 [N].
start, stop: the part of `order` to batch; in streams the part of `rest` and `order`,
  one after the other.
rest: windows of earlier pools that did not fill a batch, [r, ...]; in streams only.
"""

# Batches are gathered from one pool while the next one is filled.
POOLS_ALIVE = 2
# Constants, not numbers of cores: a budget must give the same batches on every machine.
GATHERS_AT_ONCE = 3
BATCHES_ALIVE = GATHERS_AT_ONCE + 1
PARSES_AT_ONCE = 4
# Copies of an episode while it is parsed: its record, its strings, its values.
_PARSED_COPIES = 3 * PARSES_AT_ONCE
# TensorFlow's own buffers add about a seventh to the counted bytes.
_PARTS_BESIDE = 7
# Episodes joined in one iteration of a loop: an iteration costs more than an episode.
_EPISODES_AT_ONCE = 8
# sizeof(tstring): bytes of a string in a tensor, in addition to its content.
_STRING_BYTES = 24
# Small batches are gathered several at once: the ops of a gather cost more than a copy.
_CHUNK_BYTES, _MAX_BATCHES = 2**22, 64

# Raised if a repeated dataset becomes empty: TensorFlow would end it, or never return.
NOTHING_LEFT = (
  "expected an example in each epoch, got none: since reading began, all files have "
  "become empty or all of their records bad."
)


def num_bytes_alive(pooled: Any, parsed: Any, batch_bytes: Any) -> Any:
  """Returns the bytes that a pipeline needs.

  Args:
    pooled: bytes of a pool.
    parsed: bytes of the largest parsed episode; 0 if none is parsed.
    batch_bytes: bytes of one gathered batch.
  """
  num_bytes = (
    POOLS_ALIVE * pooled + _PARSED_COPIES * parsed + BATCHES_ALIVE * batch_bytes
  )
  return num_bytes + num_bytes // _PARTS_BESIDE


def batches_at_once(plan: Plan, reader: WindowReader) -> int:
  """Returns how many batches one gather returns.

  Args:
    plan: plan of the batches; several come at once only if all are full.
    reader: reader of the windows; batches of unknown size are gathered one by one.
  """
  is_static = all(
    spec.dtype != tf.string and spec.shape.is_fully_defined()
    for spec in reader.window_spec.values()
  )
  if not plan.drops or not is_static:
    return 1
  max_bytes = min(_CHUNK_BYTES, plan.memory_budget // (32 * BATCHES_ALIVE))
  batch_bytes = max(1, plan.batch_size * reader.window_bytes)
  return int(np.clip(max_bytes // batch_bytes, 1, _MAX_BATCHES))


class PoolRows:
  """Gathers windows from the rows of pools.

  Attributes:
    reader: cuts the windows.
    images: the specs of images that are decoded, by path.
  """

  def __init__(
    self,
    reader: WindowReader,
    element_spec: Mapping[str, tf.TensorSpec],
    images: Mapping[str, specs.ExtendedTensorSpec],
  ) -> None:
    """Plans the rows.

    Args:
      reader: reader of the windows.
      element_spec: spec of an episode with decoded images; leaves [T, ...] and context.
      images: the specs of images that are decoded, by path. Those of steps are in lists
        of single images; a step may have several.
    """
    self.reader = reader
    self.images = images
    self._timed = reader.timed_paths
    self._element = {path: element_spec[path] for path in reader.paths}
    self._listed = {
      path: tf.TensorSpec(spec.shape[-3:], spec.dtype)
      for path, spec in images.items()
      if path in self._timed
    }

  def read(
    self, rows: Mapping[str, tf.Tensor], chosen: tf.Tensor
  ) -> specs.TensorSpecStruct:
    """Reads windows.

    Args:
      rows: rows of a pool: by path a tensor of the steps of all episodes, the handle of
        a list of their images, or a tensor of their context features.
      chosen: for each window the index of its episode in the pool, its first anchor,
        the episode's length and the row of its step 0, int64 [B, 4].
    Returns:
      Windows by path, [B, L, K, ...].
    """
    slot, start, length, first_row = tf.unstack(chosen, axis=1)

    def take(path: str, index: tf.Tensor | None) -> tf.Tensor:
      if path not in self._listed:
        return tf.gather(rows[path], slot if index is None else index)
      spec = self._listed[path]
      of_row = self._element[path].shape[1:]
      of_row = of_row[: of_row.rank - spec.shape.rank]
      return RowList(rows[path], spec.shape, spec.dtype).gather(
        parts_of_rows(index, of_row)
      )

    return self.reader.read_with(take, start, length, first_row)

  def gather(
    self, pool: Pool, start: tf.Tensor, stop: tf.Tensor
  ) -> specs.TensorSpecStruct:
    """Gathers a part of the windows of a pool, in its order.

    Args:
      pool: the pool; its `rest` is ignored.
      start: first position in `order`, int64 scalar.
      stop: position after the last one.
    Returns:
      Windows by path, [stop - start, L, K, ...].
    """
    numbers = pool["order"][start:stop]
    slot = tf.searchsorted(pool["ends"], numbers, "right", tf.int64)
    of_episode = tf.gather(pool["episodes"], slot)
    anchors = self.reader.grid.start(numbers - of_episode[:, 0])
    chosen = tf.concat([tf.stack([slot, anchors], 1), of_episode[:, 1:]], 1)
    return self.read(pool["rows"], chosen)


def has_images(encoded: tf.Tensor) -> tf.Tensor:
  """Returns whether each row has all of its images, bool [rows]."""
  return tf.reduce_all(tf.not_equal(encoded, ""), tf.range(1, tf.rank(encoded)))


def parts_of_rows(index: tf.Tensor, of_row: tf.TensorShape) -> tf.Tensor:
  """Returns the positions of rows' images in a list, int32 [*index.shape, *of_row]."""
  index = tf.cast(index, tf.int32)
  for size in of_row:
    index = index[..., tf.newaxis] * size + tf.range(size)
  return index


class PoolColumns(PoolRows):
  """Packs parsed episodes, and joins them to the rows of a pool.

  Decoded images stay in lists, without a copy. Other steps of all episodes become one
  tensor, and so do context features.
  """

  def __init__(
    self,
    element_spec: Any,
    spec_structure: specs.SpecStructure,
    cut: windows.Cut,
    decode_images: DecodeImages = True,
  ) -> None:
    """Plans the columns.

    Args:
      element_spec: spec of an episode; leaves [T, ...] and context features.
      spec_structure: the specs of a window.
      cut: how episodes become windows.
      decode_images: whether to decode images, or the `records.ImageDecoding` to use.
    Raises:
      SpecError: the episodes, or the options, do not fit the specs.
    """
    element = specs.flatten_spec_structure(element_spec)
    self.encoded = WindowReader(element, spec_structure, cut)
    timed = self.encoded.timed_paths
    element = self.encoded.select(element)
    for path in timed:
      # Unknown length, even if all episodes have the same: a pool holds several.
      steps = tf.TensorShape([None]).concatenate(element[path].shape[1:])
      element[path] = tf.TensorSpec(steps, element[path].dtype)
    self._decode_images = decode_images
    image_decoding(decode_images).check(
      "streamed_windows", windows.flat_specs(spec_structure)
    )
    images = {}
    flat = windows.flat_specs(spec_structure)
    for path, reading in self.encoded.readings.items():
      is_string = element[reading.source].dtype == tf.string
      if is_string and specs.is_encoded_image_spec(flat[path]):
        images[reading.source] = specs.ExtendedTensorSpec.to_spec(flat[path])
    masked = {
      self.encoded.readings[path].source for path in self.encoded.masks.values()
    }
    # Images that must be present: neither a mask nor a default stands for them.
    self._required = [
      path
      for path, spec in images.items()
      if path in timed and path not in masked
      if not spec.is_optional and spec.varlen_default_value is None
    ]
    images = images if decode_images else {}
    self._masked = {
      present_path(path): path for path in images if path in {*timed} & masked
    }
    for present in self._masked:
      element[present] = tf.TensorSpec([None], tf.bool)
    for path, spec in images.items():
      # A row may have several images, on axes that both shapes have.
      leading = element[path].shape[: -spec.shape[:-3].rank or None]
      element[path] = tf.TensorSpec(leading.concatenate(spec.shape), spec.dtype)
    reader = WindowReader(element, spec_structure, cut)
    super().__init__(reader, element, images)
    rows = {path: _row_bytes(self._element[path]) for path in self._timed}
    # Even sizes only, so that `_joined_bytes` does not round their sum.
    self._plain = {
      p: size for p, size in rows.items() if size and size % 2 == 0 and p not in images
    }
    self._plain_bytes = sum(self._plain.values())
    self._kept = [
      tf.TensorSpec([], tf.variant) if path in self._listed else spec
      for path, spec in self._element.items()
    ]

  @property
  def step_bytes(self) -> int:
    """Bytes to budget for a step in a pool, without strings, whose sizes differ."""
    return sum(
      _joined_bytes(num_bytes) if path not in self._listed else num_bytes
      for path in self._timed
      if (num_bytes := _row_bytes(self._element[path])) is not None
    )

  def select(self, episode: Any) -> dict[str, tf.Tensor]:
    """Returns the values that windows read; checks their lengths and their images."""
    flat = self.encoded.select(episode)
    values = {path: tf.convert_to_tensor(value) for path, value in flat.items()}
    checks = [self.encoded.num_steps(values)]
    for path in self._required:
      is_missing = tf.equal(tf.reshape(values[path], [-1]), "")
      message = (
        f"windows: {path}: expected an image in every step, got an empty string, in "
        "part of the steps. Add its mask (windows.add_mask_specs), or declare "
        "is_optional=True to train on black images there. The first one is number"
      )
      first = tf.argmax(is_missing, output_type=tf.int64)
      # The raw op: tf.debugging.Assert builds a tf.cond around it.
      checks.append(
        tf.raw_ops.Assert(condition=~tf.reduce_any(is_missing), data=[message, first])
      )
    with tf.control_dependencies([check for check in checks if check is not None]):
      return {path: tf.identity(value) for path, value in values.items()}

  def keep(self, values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Packs an episode for a pool; decodes its images.

    Args:
      values: values from `select`.
    Returns:
      'kept', one variant scalar; 'numbers', int64 [4]: steps, windows, bytes in a pool
      and bytes as parsed.
    """
    with tf.control_dependencies(self.encoded.check_stamps(values)):
      num_steps = tf.identity(self.encoded.num_steps(values, check=False))
    num_rows = self.reader.num_rows_of(values, num_steps)
    num_windows = self.reader.grid.num_windows(num_rows)
    # Paths of numbers are counted together: each op here runs once per episode.
    parsed = num_steps * self._plain_bytes
    pooled = num_steps * _joined_bytes(self._plain_bytes)
    kept = self.decode(values)
    for path, spec in self._element.items():
      is_image = path in self.images
      if path in self._plain:
        continue
      num_bytes = _num_bytes(values[path] if is_image else kept[path])
      parsed += num_bytes
      if is_image:
        num_images = tf.size(values[path], tf.int64)
        pooled += num_images * (
          self.images[path].shape[-3:].num_elements() * spec.dtype.size
        )
      else:
        pooled += _joined_bytes(num_bytes)
    # An optional is one variant for tensors of any dtype, so that a list can hold it.
    return {
      "kept": tf.raw_ops.OptionalFromValue(components=list(kept.values())),
      "numbers": tf.stack([num_steps, num_windows, pooled, parsed]),
    }

  def decode(self, values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Decodes images: those of steps to lists, whose handles are a pool's rows.

    Args:
      values: values from `select`.
    Returns:
      The values of a pool by path, with flags of present images for masks.
    """
    columns = {}
    for path in self._element:
      if path in self._masked:
        columns[path] = has_images(values[self._masked[path]])
      elif path in self.images:
        columns[path] = self._decode(path, values[path])
      else:
        columns[path] = values[path]
    return columns

  def _decode(self, path: str, encoded: tf.Tensor) -> tf.Tensor:
    spec = self.images[path]
    if path not in self._timed:
      return decode_images(encoded, spec, path, self._decode_images)
    flat = tf.reshape(encoded, [-1])
    return decode_to_list(flat, spec, path, self._decode_images).handle

  def join(self, kept: tf.Tensor) -> dict[str, tf.Tensor]:
    """Makes the rows of a pool.

    Args:
      kept: list of the episodes' results of `keep`, variant scalar.
    Returns:
      Rows by path; see `PoolRows.read`.
    """
    types = [spec.dtype for spec in self._kept]
    shapes = [spec.shape for spec in self._kept]

    def add(
      start: tf.Tensor, lists: list[tf.Tensor], num: int
    ) -> tuple[tf.Tensor, Any]:
      for number in range(num):
        values = tf.raw_ops.OptionalGetValue(
          optional=episodes.item(start + number),
          output_types=types,
          output_shapes=shapes,
        )
        lists = [
          _concat_lists(handle, value, self._listed[path].dtype)
          if path in self._listed
          else tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=value)
          for path, handle, value in zip(self._element, lists, values, strict=True)
        ]
      return start + num, lists

    empty = []
    for path, spec in self._element.items():
      row = self._listed.get(path, spec)
      # TensorListConcatLists requires equal element shapes of both lists, and lists of
      # decoded images have no static shape.
      shape = tf.TensorShape([None] * 3) if path in self.images else row.shape
      empty.append(RowList.empty(shape, row.dtype).handle)
    episodes = RowList(kept, tf.TensorShape([]), tf.variant)
    count = tf.raw_ops.TensorListLength(input_handle=kept)
    start, lists = tf.constant(0), empty
    for num in (_EPISODES_AT_ONCE, 1):
      start, lists = tf.while_loop(
        lambda first, _, num=num: first + num <= count,
        functools.partial(add, num=num),
        [start, lists],
      )
    rows = {}
    for (path, spec), handle in zip(self._element.items(), lists, strict=True):
      if path in self._listed:
        rows[path] = handle
      elif path in self._timed:
        rows[path] = _concat(handle, spec)
      else:
        rows[path] = _stack(handle, spec)
    return rows


def gather_batches(
  pools: tf.data.Dataset, rows: PoolRows, plan: Plan
) -> tf.data.Dataset:
  """Gathers the windows of pools to batches; small batches several at once.

  Args:
    pools: dataset of `Pool`s. The memory budget must include those that it prefetches.
    rows: gathers windows from the rows of the pools.
    plan: plan of the batches.
  Returns:
    Dataset of windows by path, [B, L, K, ...]; B is static if the plan drops smaller
    batches.
  """
  size = plan.batch_size
  at_once = batches_at_once(plan, rows.reader)
  chunk = size * at_once

  @_no_autograph
  def starts(pool: Pool) -> tf.data.Dataset:
    numbers = tf.data.Dataset.range(pool["start"], pool["stop"], chunk)
    return tf.data.Dataset.zip((numbers, tf.data.Dataset.from_tensors(pool).repeat()))

  @_no_autograph
  def gather(start: tf.Tensor, pool: Pool) -> specs.TensorSpecStruct:
    stop = tf.minimum(start + chunk, pool["stop"])
    if "rest" not in pool:
      gathered = rows.gather(pool, start, stop)
    else:
      num_rest = num_windows(pool["rest"])
      gathered = rows.gather(pool, tf.maximum(start - num_rest, 0), stop - num_rest)
      # `rest` has fewer windows than a batch, so it fits into the first chunk.
      gathered = tf.cond(
        start < num_rest,
        _no_autograph(lambda: concatenate(pool["rest"], gathered)),
        _no_autograph(lambda: tf.nest.map_structure(tf.identity, gathered)),
      )
    sizes = ([-1] if at_once > 1 else []) + [size if plan.drops else -1]
    return tf.nest.map_structure(lambda leaf: _split_first(leaf, sizes), gathered)

  gathered = pools.flat_map(starts).map(
    gather, num_parallel_calls=GATHERS_AT_ONCE, deterministic=True
  )
  if at_once == 1:
    return gathered
  return gathered.flat_map(tf.data.Dataset.from_tensor_slices)


def num_windows(batch: Any) -> tf.Tensor:
  """Returns the number of windows in a batch, int64 scalar."""
  return tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0]


def concatenate(first: Any, second: Any) -> Any:
  """Concatenates two batches; if one is empty, returns the other without a copy."""
  return tf.cond(
    tf.equal(num_windows(first), 0),
    _no_autograph(lambda: tf.nest.map_structure(tf.identity, second)),
    _no_autograph(
      lambda: tf.cond(
        tf.equal(num_windows(second), 0),
        _no_autograph(lambda: tf.nest.map_structure(tf.identity, first)),
        _no_autograph(
          lambda: tf.nest.map_structure(lambda *both: tf.concat(both, 0), first, second)
        ),
      )
    ),
  )


def _split_first(leaf: tf.Tensor, sizes: list[int]) -> tf.Tensor:
  """Reshapes the first axis to `sizes`, -1 for any; sets the static shape, too."""
  inner = leaf.shape[1:]
  if len(sizes) > 1:
    # Several batches are gathered at once only if all shapes are static.
    leaf = tf.reshape(leaf, [*sizes, *inner])
  leaf.set_shape([None if size < 0 else size for size in sizes] + inner.as_list())
  return leaf


def _row_bytes(element: tf.TensorSpec) -> int | None:
  """Returns the bytes of a row; None for strings."""
  if element.dtype == tf.string:
    return None
  return (element.shape[1:].num_elements() or 0) * element.dtype.size


def _joined_bytes(num_bytes: Any) -> Any:
  """Returns the bytes to budget for values that are concatenated.

  Concatenation needs a second copy: three copies for two pools, so 3 / 2 for each.
  """
  return (3 * num_bytes + 1) // 2


def _num_bytes(value: tf.Tensor) -> tf.Tensor:
  """Returns the bytes of a tensor and of its strings, int64 scalar."""
  size = tf.size(value, tf.int64)
  if value.dtype != tf.string:
    return size * value.dtype.size
  lengths = tf.cast(tf.strings.length(value), tf.int64)
  return tf.reduce_sum(lengths) + size * _STRING_BYTES


# The raw ops below are on lists of `windows.rows`; see there.


def _concat_lists(first: tf.Tensor, second: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  return tf.raw_ops.TensorListConcatLists(
    input_a=first, input_b=second, element_dtype=dtype
  )


def _concat(handle: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
  """Concatenates the tensors in a list, each with a spec's shape and dtype."""
  joined, _ = tf.raw_ops.TensorListConcatV2(
    input_handle=handle,
    element_shape=_sizes(spec.shape),
    leading_dims=tf.constant([], tf.int64),
    element_dtype=spec.dtype,
  )
  return tf.ensure_shape(joined, spec.shape)


def _stack(handle: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
  stacked = tf.raw_ops.TensorListStack(
    input_handle=handle, element_shape=_sizes(spec.shape), element_dtype=spec.dtype
  )
  return tf.ensure_shape(stacked, [None, *spec.shape])


def _sizes(shape: tf.TensorShape) -> tf.Tensor:
  return tf.constant([-1 if size is None else size for size in shape], tf.int32)
