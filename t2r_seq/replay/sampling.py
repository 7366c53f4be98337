"""Batches of windows: drawn, gathered whole whatever writers do, given as datasets."""

from __future__ import annotations

import collections
import functools
import platform
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, records, specs, windows
from t2r_seq.data.dataset_options import bounded_options
from t2r_seq.replay.replay import SampleInfo
from t2r_seq.replay.ring import Contexts, Lanes, Ring
from t2r_seq.replay.table import Table
from t2r_seq.replay.window_plan import Draw, Fetch, NStepReading, WindowPlan
from t2r_seq.store import mapped

Batch = dict[str, np.ndarray]


class Gathering:
  """Gathers windows; all calls work without the buffer's lock.

  Attributes:
    plan: which rows windows show.
    columns: of the ring, by path.
    is_zero_padded: whether there are zeros where there is no step.
  """

  def __init__(
    self,
    ring: Ring,
    lanes: Lanes,
    contexts: Contexts,
    reader: windows.WindowReader,
    n_step: NStepReading | None,
  ) -> None:
    """Plans what is gathered.

    Args:
      ring: the rows.
      lanes: where items are in them.
      contexts: the features of episodes.
      reader: of the windows.
      n_step: how transitions are joined, if they are.
    """
    self._contexts = contexts
    self._n_step = n_step
    self._masks = reader.masks
    if n_step is None:
      self.plan = WindowPlan(reader, lanes)
    else:
      rewards = frozenset(n_step.rewards)
      self.plan = WindowPlan(reader, lanes, n_step.later, rewards)
    self.columns = ring.columns
    self.is_zero_padded = reader.cut.padding == "zero"

  def shift(self, draw: Draw) -> np.ndarray | None:
    """Returns the steps from each anchor to the last one that is joined, int64 [B]."""
    return None if self._n_step is None else self._n_step.shift(draw)

  def gather(self, draw: Draw, leave_out: Container[str] = ()) -> Batch:
    """Gathers windows.

    Args:
      draw: the items.
      leave_out: paths that are not wanted.
    Returns:
      Arrays [B, ...] by path; byte strings are objects.
    """
    shift, columns = self.shift(draw), self.columns
    batch: Batch = {}
    for fetch in self.plan.fetches:
      rows, real = self.plan.rows(fetch, draw, shift)
      for path, source in fetch.paths.items():
        if path not in leave_out:
          batch[path] = self.pad(columns[source].take(rows, 0, mode="wrap"), real)
      self._add_masks(batch, fetch, rows.shape, real)
    for path, source in self.plan.contexts.items():
      batch[path] = self._contexts.take(source, draw.rows)
    if self._n_step is not None and shift is not None:
      offsets = self._n_step.reward_offsets(shift)
      rows = self.plan.rows_at(draw, offsets, (None,))
      rewards = {
        path: columns[source].take(rows, 0, mode="wrap")
        for path, source in self._n_step.rewards.items()
      }
      self._n_step.join(batch, rewards, shift)
    return batch

  def pad(self, values: np.ndarray, real: np.ndarray | None) -> np.ndarray:
    """Puts zeros, or empty strings, where there is no step, if that is the padding."""
    if self.is_zero_padded and real is not None:
      values[~real] = b"" if values.dtype == object else 0
    return values

  def _add_masks(
    self, batch: Batch, fetch: Fetch, shape: tuple[int, ...], real: np.ndarray | None
  ) -> None:
    for mask, path in self._masks.items():
      if path in fetch.paths:
        batch[mask] = np.ones(shape, bool) if real is None else real.copy()


class Sampling:
  """Draws items under the lock of a table, and gathers their windows without it."""

  def __init__(self, table: Table, gathering: Gathering) -> None:
    """Puts the two together."""
    self._table = table
    self.gathering = gathering
    # Items that are gone from the table, of batches that never got full.
    self._taken: collections.deque[tuple[SampleInfo | None, Batch]] = (
      collections.deque()
    )

  @property
  def consumes(self) -> bool:
    """Whether sampling takes items away."""
    return self._table.consumes

  @property
  def draws_alike(self) -> bool:
    """Whether it does not matter if several batches are drawn at once."""
    return self._table.draws_alike

  def sample(self, count: int) -> tuple[SampleInfo | None, Batch]:
    """Returns a batch, and what is known of its items if that is counted."""
    if self._table.consumes:
      return self._consume(count)
    info, draw, batch = self.begin(count)
    return (info, batch) if self.is_whole(draw) else self.sample_again(count)

  def begin(
    self, count: int, leave_out: Container[str] = ()
  ) -> tuple[SampleInfo | None, Draw, Batch]:
    """Draws a batch and gathers its windows, which `is_whole` has to look at."""
    table = self._table
    with table.lock:
      table.check_open("sample")
      draw, info = table.draw(count)
    return info, draw, self.gathering.gather(draw, leave_out)

  def is_whole(self, draw: Draw) -> bool:
    """Whether no step had died when the windows of a draw had been gathered.

    It takes the lock, under which steps die and are written over. So what a writer does
    after this look cannot have been gathered before it, and what it did before is seen,
    in whatever order the processor shows writes to other threads.
    """
    lanes = self._table.lanes
    with self._table.lock:
      return all(lanes.are_alive(rows, counts) for rows, counts in draw.seen)

  def sample_again(self, count: int) -> tuple[SampleInfo | None, Batch]:
    """Returns another batch in place of one that was not whole; it is not counted.

    Nobody writes meanwhile: where writers are as fast as to overtake a gathering, they
    would overtake the next one, too.
    """
    with self._table.lock:
      self._table.check_open("sample")
      draw, info = self._table.redraw(count)
      return info, self.gathering.gather(draw)

  def _consume(self, count: int) -> tuple[SampleInfo | None, Batch]:
    taken: list[tuple[SampleInfo | None, Batch]] = []
    try:
      while len(taken) < count:
        with self._table.lock:
          self._table.check_open("sample")
          taken.append(self._take_one())
    except BaseException:
      with self._table.lock:
        self._taken.extendleft(reversed(taken))
      raise
    infos, batches = zip(*taken, strict=True)
    joined = SampleInfo(*map(np.concatenate, zip(*infos, strict=True)))
    return joined, {
      path: np.concatenate([batch[path] for batch in batches]) for path in batches[0]
    }

  def _take_one(self) -> tuple[SampleInfo | None, Batch]:
    """Takes an item away; first those that nobody got."""
    if self._taken:
      return self._taken.popleft()
    draw, info = self._table.consume()
    return info, self.gathering.gather(draw)


class Drawing:
  """Draws batches for a graph; refers to no buffer, see `call_weakly`."""

  def __init__(
    self,
    fetches: Sequence[Fetch],
    small: Sequence[str],
    large: frozenset[str],
    with_info: bool,
  ) -> None:
    """Says what is drawn.

    Args:
      fetches: those with paths that the graph gathers.
      small: paths that are gathered here.
      large: paths that the graph gathers.
      with_info: tells what is known of the items.
    """
    self._fetches = fetches
    self._small = small
    self._large = large
    self._with_info = with_info

  def draw(self, sampling: Sampling, count: int) -> list[Any]:
    """Draws items, and gathers what is small of their windows.

    Returns:
      What is known of the items, if that is told, and the small paths. Then, if there
      are large ones, steps and writers of all rows that were seen, int64 [N], and for
      each fetch the rows in the ring, and whether they are steps of the episode.
    """
    if not self._large:
      return self._whole(*sampling.sample(count), self._small)
    info, draw, batch = sampling.begin(count, self._large)
    gathering = sampling.gathering
    shift = gathering.shift(draw)
    lanes = gathering.plan.lanes
    seen = [lanes.steps_of(rows, counts) for rows, counts in draw.seen]
    places: list[Any] = list(map(np.concatenate, zip(*seen, strict=True)))
    for fetch in self._fetches:
      rows, real = gathering.plan.rows(fetch, draw, shift)
      places.append(rows % len(lanes.marks))
      places.append(np.ones(rows.shape, bool) if real is None else real)
    return [*self._whole(info, batch, self._small), *places]

  def draw_again(
    self, sampling: Sampling, count: int, paths: Sequence[str]
  ) -> list[Any]:
    """Returns a batch in place of one that was not whole: information and all paths."""
    return self._whole(*sampling.sample_again(count), paths)

  def _whole(
    self, info: SampleInfo | None, batch: dict[str, np.ndarray], paths: Sequence[str]
  ) -> list[Any]:
    known = () if info is None or not self._with_info else info
    return [*known, *(batch[path] for path in paths)]


def call_weakly(
  function: Callable[[Sampling], list[Any]], sampling: Sampling, dtypes: list[tf.DType]
) -> list[tf.Tensor]:
  """Calls a function from a graph, which does not keep the buffer in memory.

  TensorFlow keeps each function of Python that a graph calls until the process ends,
  and what it refers to: that would be the ring of every buffer that had a dataset.

  Args:
    function: refers to no buffer.
    sampling: its argument; the caller has to hold it.
    dtypes: of what it returns.
  """
  reference = weakref.ref(sampling)

  def in_python() -> list[Any]:
    held = reference()
    if held is None:
      raise errors.ReplayError(
        "replay: dataset: expected the buffer, got none: it was deleted. Keep a "
        "reference to the buffer, or to the dataset."
      )
    return function(held)

  return tf.numpy_function(in_python, [], dtypes)


_as_it_is = tf.autograph.experimental.do_not_convert

# Smaller values of a window are gathered by numpy, where an op costs less.
_LARGE_BYTES = 4096
# In the graph there is no lock to take for the look whether a step has died. These show
# a thread the writes of another one in the order in which they were made; others may
# show a row's new values first, so there numpy gathers everything.
_KEEPS_ORDER = platform.machine().lower() in ("x86_64", "amd64", "i686")
# A call of Python costs about as much as drawing some hundred numbers: many small
# batches are drawn at once, where nothing that is learned of one bears on the next.
_MAX_AHEAD = 16
_AHEAD_BYTES = 1 << 20
_INFO = SampleInfo(tf.uint64, tf.float64, tf.int64, tf.float64, tf.int32)


class BatchReading:
  """Reads sampled batches in a graph."""

  def __init__(
    self,
    sampling: Sampling,
    window_spec: specs.TensorSpecStruct,
    batch_size: int,
    with_info: bool,
    large: frozenset[str],
  ) -> None:
    """Maps the columns that are gathered in the graph.

    Args:
      sampling: what draws.
      window_spec: of one window.
      batch_size: B.
      with_info: tells what is known of the items.
      large: paths that are gathered in the graph.
    """
    self._sampling = sampling
    self._spec = window_spec
    self._batch_size = batch_size
    self._with_info = with_info
    self._large = large
    gathering = sampling.gathering
    self._fetches = [
      fetch for fetch in gathering.plan.fetches if large & fetch.paths.keys()
    ]
    self._sources = {
      path: source
      for fetch in self._fetches
      for path, source in fetch.paths.items()
      if path in large
    }
    lanes = gathering.plan.lanes
    self._back = lanes.rule.back
    with tf.device("CPU:0"):
      # A dataset refers to a variable, and would copy a tensor.
      self._columns = {
        source: tf.Variable(mapped.to_tensor(gathering.columns[source]), False)
        for source in self._sources.values()
      }
      self._dead = tf.Variable(mapped.to_tensor(lanes.dead), False)
    self._small = [path for path in window_spec if path not in large]
    self._drawing = Drawing(self._fetches, self._small, large, with_info)

  def draw(self, count: int) -> list[tf.Tensor]:
    """Draws items, and gathers what is small of their windows."""
    dtypes, shapes = self._drawn()
    draw = functools.partial(self._drawing.draw, count=count)
    drawn = call_weakly(draw, self._sampling, dtypes)
    for tensor, shape in zip(drawn, shapes, strict=True):
      tensor.set_shape([count, *shape])
    return drawn

  def finish(self, *drawn: tf.Tensor) -> Any:
    """Gathers the rest of a batch; draws another one if a writer was faster."""
    num_whole = len(drawn) - (2 + 2 * len(self._fetches)) * bool(self._large)
    whole = list(drawn[:num_whole])
    if self._large:
      large = self._gather(drawn[num_whole + 2 :])
      with tf.control_dependencies(large):
        are_alive = self._are_alive(*drawn[num_whole : num_whole + 2])
      whole = tf.cond(are_alive, lambda: [*whole, *large], self._draw_again)
    return self._pack(whole)

  def _gather(self, places: tuple[tf.Tensor, ...]) -> list[tf.Tensor]:
    gathered = []
    for i, fetch in enumerate(self._fetches):
      rows, real = places[2 * i : 2 * i + 2]
      for path, source in fetch.paths.items():
        if path in self._large:
          taken = tf.gather(self._columns[source].read_value(), rows)
          gathered.append(self._pad(self._typed(path, taken), real))
    return gathered

  def _pad(self, taken: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
    if not self._sampling.gathering.is_zero_padded:
      return taken
    keep = tf.reshape(real, [*real.shape, *[1] * (taken.shape.rank - real.shape.rank)])
    return tf.where(keep, taken, tf.zeros((), taken.dtype))

  def _typed(self, path: str, taken: tf.Tensor) -> tf.Tensor:
    is_bool = self._spec[path].dtype == tf.bool
    return tf.cast(taken, tf.bool) if is_bool else taken

  def _are_alive(self, steps: tf.Tensor, lanes: tf.Tensor) -> tf.Tensor:
    dead = tf.gather(self._dead.read_value(), lanes)
    first = tf.where(dead > 0, dead + self._back, tf.zeros_like(dead))
    return tf.reduce_all(steps >= first)

  def _draw_again(self) -> list[tf.Tensor]:
    paths = [*self._small, *self._sources]
    dtypes = [*self._info_dtypes(), *(self._spec[path].dtype for path in paths)]
    count = self._batch_size
    draw = functools.partial(self._drawing.draw_again, count=count, paths=paths)
    drawn = call_weakly(draw, self._sampling, dtypes)
    for tensor, path in zip(drawn[-len(paths) :], paths, strict=True):
      tensor.set_shape([self._batch_size, *self._spec[path].shape])
    for tensor in drawn[: -len(paths)]:
      tensor.set_shape([self._batch_size])
    return drawn

  def _pack(self, whole: list[tf.Tensor]) -> Any:
    num_info = len(self._info_dtypes())
    paths = [*self._small, *self._sources]
    by_path = dict(zip(paths, whole[num_info:], strict=True))
    batch = specs.TensorSpecStruct((path, by_path[path]) for path in self._spec)
    return (SampleInfo(*whole[:num_info]), batch) if self._with_info else batch

  def _drawn(self) -> tuple[list[tf.DType], list[Any]]:
    """Returns dtypes and shapes, without B, of what is drawn."""
    dtypes: list[Any] = self._info_dtypes()
    shapes: list[Any] = [[] for _ in dtypes]
    for path in self._small:
      dtypes.append(self._spec[path].dtype)
      shapes.append(self._spec[path].shape)
    if self._large:
      dtypes += [tf.int64, tf.int64]
      shapes += [[], []]
    for fetch in self._fetches:
      dtypes += [tf.int64, tf.bool]
      shapes += [fetch.offsets.shape, fetch.offsets.shape]
    return dtypes, shapes

  def _info_dtypes(self) -> list[tf.DType]:
    return list(_INFO) if self._with_info else []


def make_dataset(
  sampling: Sampling,
  spec_structure: specs.TensorSpecStruct,
  window_spec: specs.TensorSpecStruct,
  batch_size: int,
  with_info: bool,
) -> tf.data.Dataset:
  """Makes an endless dataset of sampled batches.

  Args:
    sampling: what draws.
    spec_structure: of the windows; encoded images are decoded as it says.
    window_spec: what is sampled of one window; images as strings.
    batch_size: B.
    with_info: gives pairs (SampleInfo, windows).
  Returns:
    Dataset of TensorSpecStructs by path, leaves [B, ...].
  """
  large = frozenset[str]()
  if _KEEPS_ORDER and not sampling.consumes:
    large = _large_paths(sampling, window_spec)
  reading = BatchReading(sampling, window_spec, batch_size, with_info, large)
  ahead = 1
  if sampling.draws_alike and not with_info:
    batch_bytes = batch_size * sum(
      _value_bytes(spec) for path, spec in window_spec.items() if path not in large
    )
    ahead = max(1, min(_MAX_AHEAD, _AHEAD_BYTES // max(1, batch_bytes)))
  draw = _as_it_is(lambda _: tuple(reading.draw(ahead * batch_size)))
  drawn = tf.data.Dataset.range(1).repeat().map(draw)
  if ahead > 1:
    drawn = drawn.flat_map(
      _as_it_is(lambda *several: _split(several, ahead, batch_size))
    )
  dataset = drawn
  if large:
    dataset = drawn.map(
      _as_it_is(reading.finish), num_parallel_calls=3, deterministic=True
    )
  else:
    dataset = drawn.map(_as_it_is(reading.finish))
  images = {
    path: spec_structure[path]
    for path, spec in window_spec.items()
    if spec.dtype == tf.string and specs.is_encoded_image_spec(spec_structure[path])
  }
  if images:
    dataset = dataset.map(
      _as_it_is(lambda *batch: _decode(batch, images)),
      num_parallel_calls=None if sampling.consumes else tf.data.AUTOTUNE,
      deterministic=None if sampling.consumes else True,
    )
  infinite = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
  dataset = dataset.apply(infinite)
  # A queue gives each item once: what is drawn ahead is lost with its reader, who waits
  # for it, too, before it ends. Those gathered in parallel are ahead as it is: with
  # another large batch in turn fewer of them stay in the processor's cache, and a tenth
  # fewer windows come.
  if not sampling.consumes and not large:
    dataset = dataset.prefetch(1)
  return dataset.with_options(bounded_options())


def _split(
  several: tuple[tf.Tensor, ...], ahead: int, batch_size: int
) -> tf.data.Dataset:
  return tf.data.Dataset.from_tensor_slices(
    tuple(tf.reshape(t, [ahead, batch_size, *t.shape[1:]]) for t in several)
  )


def _large_paths(
  sampling: Sampling, window_spec: specs.TensorSpecStruct
) -> frozenset[str]:
  return frozenset(
    path
    for fetch in sampling.gathering.plan.fetches
    for path in fetch.paths
    if window_spec[path].dtype != tf.string
    and _value_bytes(window_spec[path]) >= _LARGE_BYTES
  )


def _value_bytes(spec: tf.TensorSpec) -> int:
  size = 64 if spec.dtype == tf.string else spec.dtype.size
  return max(1, size * (spec.shape.num_elements() or 0))


def _decode(batch: tuple[Any, ...], images: Mapping[str, Any]) -> Any:
  *info, windows = batch
  for path, spec in images.items():
    windows[path] = records.decode_images(windows[path], spec, path)
  return (*info, windows) if info else windows
