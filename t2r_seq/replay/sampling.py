"""Batches of sampled windows, gathered while writers append, and as datasets."""

from __future__ import annotations

import collections
import contextlib
import functools
import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, process, specs
from t2r_seq.data.plan import dataset_options
from t2r_seq.records.images import decode_images
from t2r_seq.replay.rate_limiters import NotYet
from t2r_seq.replay.replay import SampleInfo
from t2r_seq.replay.table import Draw, Table, join_infos
from t2r_seq.windows.cut import Anchors
from t2r_seq.windows.reader import WindowReader

Batch = dict[str, np.ndarray]


# TensorFlow does not copy an array that begins at a multiple of this address. Below the
# second number of bytes a copy is cheaper than the alignment.
_ALIGNMENT, _LARGE_BYTES = 64, 1 << 15


def _take(column: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """Gathers rows of a ring, which wrap around."""
  shape = (*rows.shape, *column.shape[1:])
  size = math.prod(shape) * column.itemsize
  if size < _LARGE_BYTES or column.dtype.hasobject:
    return column.take(rows, 0, mode="wrap")
  memory = np.empty(size + _ALIGNMENT, np.uint8)
  start = -memory.ctypes.data % _ALIGNMENT
  out = memory[start : start + size].view(column.dtype).reshape(shape)
  return column.take(rows, 0, out, "wrap")


class Sampling:
  """Draws items under the lock of a table, and gathers their windows without it."""

  def __init__(self, table: Table, reader: WindowReader) -> None:
    self._table = table
    self._reader = reader
    # Items that were removed from the table for a batch that was not completed.
    self._leftover: collections.deque[tuple[SampleInfo | None, Batch]] = (
      collections.deque()
    )

  @property
  def consumes(self) -> bool:
    return self._table.consumes

  @property
  def draws_alike(self) -> bool:
    return self._table.draws_alike

  def sample(
    self, count: int, began: float | None = None
  ) -> tuple[SampleInfo | None, Batch]:
    """Returns a batch, and its `SampleInfo` if samples are counted; as `Table.draw`."""
    if self._table.consumes:
      return self._consume(count, began)
    sampled = None
    while sampled is None:
      with self._table.lock:
        self._table.check_open("sample")
        draw, info = self._table.draw(count, began)
      batch = self.gather(draw)
      sampled = (info, batch) if self._is_whole(draw) else self._sample_again(count)
    return sampled

  def gather(self, draw: Draw) -> Batch:
    """Gathers windows: arrays [B, ...] by path; byte strings are objects."""
    table = self._table

    def take(path: str, rows: np.ndarray | None) -> np.ndarray:
      if rows is None:
        return table.contexts.take(path, draw.rows)
      return _take(table.ring.columns[path], rows)

    after = draw.marks.astype(np.int64) - 1
    # Without ages, no window is padded before its anchor.
    ages = draw.ages
    before = np.zeros_like(after) if ages is None else ages.astype(np.int64)
    # The next step of a writer is `num_writers` rows later.
    anchors = Anchors(draw.rows, before, after, table.index.num_writers)
    return self._reader.read_at(take, anchors)

  def _is_whole(self, draw: Draw) -> bool:
    """Whether no step of a draw was overwritten before its windows were gathered.

    Steps die and are overwritten under the lock, which this takes. So it sees all
    earlier writes, and later ones cannot be in the windows.
    """
    index = self._table.index
    with self._table.lock:
      return all(index.are_alive(rows, counts) for rows, counts in draw.seen)

  def _sample_again(self, count: int) -> tuple[SampleInfo | None, Batch] | None:
    """Returns a batch in place of an overwritten one; None if no items are left.

    Under the lock: writers that overtook one gathering could overtake the next, too.
    """
    with self._table.lock:
      self._table.check_open("sample")
      drawn = self._table.redraw(count)
      return drawn and (drawn[1], self.gather(drawn[0]))

  def _consume(
    self, count: int, began: float | None
  ) -> tuple[SampleInfo | None, Batch]:
    parts: list[tuple[SampleInfo | None, Batch]] = []
    try:
      while len(parts) < count:
        with self._table.lock:
          self._table.check_open("sample")
          if self._leftover:
            parts.append(self._leftover.popleft())
            continue
          draw, info = self._table.consume(began)
          parts.append((info, self.gather(draw)))
        began = began and time.monotonic()  # The next wait begins now.
    except BaseException:
      with self._table.lock:
        self._leftover.extendleft(reversed(parts))
      raise
    infos, batches = zip(*parts, strict=True)
    return join_infos(infos), {
      path: np.concatenate([batch[path] for batch in batches]) for path in batches[0]
    }


# A call from TensorFlow to Python costs as much as drawing some hundred items. So one
# call draws several small batches, if one does not influence the next.
_MAX_AHEAD = 16
_AHEAD_BYTES = 1 << 20
_INFO_SPEC = [
  tf.TensorSpec([], dtype)
  for dtype in (tf.uint64, tf.float64, tf.int64, tf.float64, tf.int32)
]
_NOT_WAITING = np.float64(-1)
_no_autograph = tf.autograph.experimental.do_not_convert


def make_dataset(
  sampling: Sampling,
  spec_structure: specs.TensorSpecStruct,
  window_spec: specs.TensorSpecStruct,
  batch_size: int,
  with_info: bool,
) -> tf.data.Dataset:
  """Returns an endless dataset of sampled batches."""
  drawn_specs = [*(_INFO_SPEC if with_info else []), *window_spec.values()]
  ahead = 1
  if sampling.draws_alike and not with_info:
    batch_bytes = batch_size * sum(map(_value_bytes, drawn_specs))
    ahead = max(1, min(_MAX_AHEAD, _AHEAD_BYTES // max(1, batch_bytes)))
  count, shape = batch_size, [batch_size]
  if ahead > 1:
    count, shape = ahead * batch_size, [ahead, batch_size]
  dtypes = [spec.dtype for spec in drawn_specs]
  sample = functools.partial(
    _sample, count=count, paths=tuple(window_spec), dtypes=dtypes, with_info=with_info
  )

  # TensorFlow ends a thread only between two calls of Python: a call that waits without
  # limit would block the deletion of its iterator. So each call waits for a moment, and
  # then returns when the wait began; `filter` removes such elements.
  @_no_autograph
  def draw(began: tf.Tensor, _: tf.Tensor) -> Any:
    began, *values = _call_weakly(sample, sampling, began, [tf.float64, *dtypes])
    began = tf.ensure_shape(began, [])
    return began, (began, *values)

  @_no_autograph
  def shape_batch(_: tf.Tensor, *drawn: tf.Tensor) -> Any:
    values = [
      tf.reshape(value, [*shape, *spec.shape])
      for value, spec in zip(drawn, drawn_specs, strict=True)
    ]
    batch = specs.TensorSpecStruct(
      zip(window_spec, values[-len(window_spec) :], strict=True)
    )
    return (SampleInfo(*values[: -len(window_spec)]), batch) if with_info else batch

  dataset = tf.data.Dataset.range(1).repeat().scan(_NOT_WAITING, draw)
  dataset = dataset.filter(_no_autograph(lambda began, *_: began == _NOT_WAITING))
  dataset = dataset.map(shape_batch)
  if ahead > 1:
    dataset = dataset.unbatch()
  images = {
    path: spec_structure[path]
    for path, spec in window_spec.items()
    if spec.dtype == tf.string and specs.is_encoded_image_spec(spec_structure[path])
  }
  if images:
    dataset = dataset.map(
      _no_autograph(lambda *batch: _decode(batch, images)),
      num_parallel_calls=None if sampling.consumes else tf.data.AUTOTUNE,
      deterministic=None if sampling.consumes else True,
    )
  infinite = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
  dataset = dataset.apply(infinite)
  # A queue returns each item once: prefetched items would be lost with the iterator.
  if not sampling.consumes:
    dataset = dataset.prefetch(1)
  return dataset.with_options(dataset_options())


def _sample(
  sampling: Sampling,
  began: np.ndarray,
  count: int,
  paths: Sequence[str],
  dtypes: Sequence[tf.DType],
  with_info: bool,
) -> list[Any]:
  """Returns (_NOT_WAITING, *batch); or when the wait began, and empty arrays."""
  is_first = began == _NOT_WAITING
  since = time.monotonic() if is_first else float(began)
  # The first try does not wait long enough to need a handler of SIGINT.
  with contextlib.nullcontext() if is_first else process.watched_wait() as ends:
    try:
      info, batch = sampling.sample(count, since)
    except NotYet as wait:
      if ends is not None and ends():
        raise errors.ReplayError(
          "replay: dataset: expected items, got SIGINT while it waited for them."
        ) from None
      return [wait.began, *(np.zeros(0, dtype.as_numpy_dtype) for dtype in dtypes)]
  extra = info if with_info and info is not None else ()
  return [_NOT_WAITING, *extra, *(batch[path] for path in paths)]


def _call_weakly(
  function: Callable[[Sampling, np.ndarray], list[Any]],
  sampling: Sampling,
  argument: tf.Tensor,
  dtypes: list[tf.DType],
) -> list[tf.Tensor]:
  """Calls function(sampling, argument) from a graph, with only a weak reference.

  TensorFlow keeps each Python function of a graph, and all that it refers to, until the
  process ends. That would include the ring of every buffer that had a dataset.
  """
  reference = weakref.ref(sampling)

  def in_python(argument: np.ndarray) -> list[Any]:
    owner = reference()
    if owner is None:
      raise errors.ReplayError(
        "replay: dataset: expected the buffer, got none: it was deleted. Keep a "
        "reference to the buffer, or to the dataset."
      )
    return function(owner, argument)

  return tf.numpy_function(in_python, [argument], dtypes)


def _value_bytes(spec: tf.TensorSpec) -> int:
  size = 64 if spec.dtype == tf.string else spec.dtype.size
  return max(1, size * (spec.shape.num_elements() or 0))


def _decode(batch: tuple[Any, ...], images: Mapping[str, Any]) -> Any:
  *info, windows = batch
  for path, spec in images.items():
    windows[path] = decode_images(windows[path], spec, path)
  return (*info, windows) if info else windows
