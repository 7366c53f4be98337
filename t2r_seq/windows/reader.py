"""`WindowReader`: reads windows of a spec structure from flat episodes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, imports, specs
from t2r_seq.specs import ExtendedTensorSpec, SpecStructure, TensorSpecStruct
from t2r_seq.specs.extended_tensor_spec import added_axes, cast_hint
from t2r_seq.specs.names import source_paths
from t2r_seq.windows.cut import (
  DISCOUNT,
  NUM_STEPS,
  Anchors,
  Cut,
  WindowGrid,
  add_axes,
  array_module,
  computed_paths,
  mask_path,
  mask_paths,
)
from t2r_seq.windows.n_step import (
  NStepPlan,
  PathRead,
  check_computed,
  discounted_return_dtype,
  find_finals,
  move_state_flags,
  plan_n_step,
)
from t2r_seq.windows.times import (
  TimedFetch,
  TimedSteps,
  assert_stamps,
  check_seconds,
  clock_rows,
  interpolate,
  rows_path,
)

# Marks `time_offsets="last"`: no episode is long enough for this offset.
_LAST_STEP = np.iinfo(np.int32).max

Take = Callable[[str, Any], Any]
"""Maps a path of an episode, and rows of any shape or None, to values."""


def present_path(source: str) -> str:
  """Returns the path of the flags of present images, bool [T].

  A missing image is an empty string, and after decoding black pixels. Code that decodes
  before windows are gathered adds this path to the episode, so that masks are False for
  missing images.

  Args:
    source: the path of the images.
  """
  return f"{source}#is_present"


@dataclasses.dataclass(frozen=True)
class Reading:
  """Description of the values that one path reads from an episode.

  Attributes:
    source: the path in the episode.
    steps: steps relative to the first anchor, an int array of shape [], [K], [L] or
      [L, K]; None for a context feature, which is read whole.
    frame_shape: static shape of one step in the window.
    axes: 1 if a scalar is read as (1,), -1 if (1,) is read as a scalar, otherwise 0.
    cast: the dtype of the window, if the data is stored in another.
    seconds: the time offsets, if only time stamps determine the steps; `steps` are then
      those of the anchors, [], [K], [L] or [L, K].
  """

  source: str
  steps: np.ndarray | None
  frame_shape: tf.TensorShape
  cast: tf.DType | None = None
  axes: int = 0
  seconds: specs.Seconds | None = None

  @property
  def is_last(self) -> bool:
    """Whether it shows the last step of the episode."""
    return self.steps is not None and _is_last(self.steps)

  def fit(self, values: Any) -> Any:
    """Adds or removes the last axis of values [..., *step]; see `axes`."""
    if not self.axes:
      return values
    return values[..., np.newaxis] if self.axes > 0 else values[..., 0]

  def flat(self) -> Reading:
    """Returns the reading of every step from the first to the last, once each."""
    if self.steps is None or not self.steps.ndim:
      return self
    steps = np.arange(self.steps.min(), self.steps.max() + 1)
    return dataclasses.replace(self, steps=steps)


@dataclasses.dataclass(frozen=True)
class Fetch:
  """Paths that read the same steps.

  Their rows and masks are computed once: small batches cost as much as their ops.

  Attributes:
    paths: from a path of the windows to that of the episode.
    offsets: offsets of the steps, relative to the first anchor; int64 of shape [], [K],
      [L] or [L, K].
    masks: the paths of their masks.
    is_later: whether the offsets are relative to the last joined step instead.
    is_ahead: whether some step is after the anchor, or the last joined step.
  """

  paths: dict[str, str]
  offsets: np.ndarray
  masks: list[str]
  is_later: bool = False
  is_ahead: bool = False


class WindowReader:
  """Reads windows of a spec structure from flat episodes of one element spec.

  Errors of specs and shapes are raised at construction. `read` and `read_with`
  gather windows of tensors; both call `read_at`, which takes numpy arrays, too.

  Attributes:
    cut: how episodes become windows.
    grid: the anchors of an episode.
    readings: how each path of a window is read; computed paths have none.
    masks: the masked path for each mask; both are in the windows.
    n_step: how transitions are joined, if they are.
    rows_paths: the path of the time stamps by the path of another clock's rows; see
      `windows.times.rows_path`.
    window_spec: specs of one window, by path: leaves [L, K, ...]; context features have
      no such axes.
  """

  def __init__(
    self,
    element_spec: Any,
    spec_structure: SpecStructure,
    cut: Cut | None = None,
    flat: bool = False,
  ) -> None:
    """Creates the reader.

    Args:
      element_spec: specs of the flat episode, by path; leaves [T, ...] and context.
      spec_structure: the specs of a window.
      cut: how episodes become windows; None for `Cut()`.
      flat: returns each step once, [F, ...] in place of [L, K, ...]; `stack_windows`
        stacks them later, on the accelerator.
    Raises:
      SpecError: the episode does not fit the specs, or the specs do not fit the cut.
    """
    self.cut = cut = Cut() if cut is None else cut
    window_spec = specs.map_leaves(
      ExtendedTensorSpec.to_spec, specs.flatten_spec_structure(spec_structure)
    )
    self._element = specs.flatten_spec_structure(element_spec)
    window_spec = move_state_flags(window_spec, cut.n_step, self._element)
    self.grid = WindowGrid.of(window_spec, cut)
    masks = mask_paths(window_spec)
    computed = computed_paths(window_spec, cut.n_step)
    stored = TensorSpecStruct(
      (path, spec)
      for path, spec in window_spec.items()
      if path not in masks and path not in computed
    )
    if cut.sequence_length is not None:
      _check_any_sequence(stored, cut.sequence_length)
    self.readings = plan_readings(stored, self._element, self.grid)
    timed = {p: r.seconds for p, r in self.readings.items() if r.seconds is not None}
    clocks = check_seconds(timed, cut, self._element, flat)
    self.n_step: NStepPlan | None = None
    if cut.n_step is not None:
      _check_no_last(stored)
      reads = {
        path: PathRead(reading.source, reading.steps, stored[path].name)
        for path, reading in self.readings.items()
      }
      branches = cut.n_step.branches
      finals = find_finals(self.readings, stored, self._element, branches)
      self.n_step = plan_n_step(cut.n_step, stored, reads, finals, cut.pads_front)
      if not cut.n_step.branches:
        computed.update({DISCOUNT: DISCOUNT, NUM_STEPS: NUM_STEPS})
    self._computed = computed
    if flat:
      self.readings = {path: r.flat() for path, r in self.readings.items()}
    self._timed = {
      path: reading.steps
      for path, reading in self.readings.items()
      if reading.steps is not None
    }
    if not self._timed:
      raise errors.SpecError(
        "windows: the specs: expected at least one path with a time axis, got none. "
        "Give the specs time_offsets."
      )
    if cut.masks:
      masks = {
        mask_path(path): path for path in self._timed if not self.readings[path].is_last
      }
    self.masks = {mask: path for mask, path in masks.items() if path in self._timed}
    self._check_masks()
    # By mask, the path of the flags of present images.
    self._present: dict[str, str] = {}
    for mask, path in self.masks.items():
      source = self.readings[path].source
      # Empty strings pad lists of any length; they are not missing images.
      is_varlen = window_spec[path].varlen_default_value is not None
      if specs.is_encoded_image_spec(window_spec[path]) and not is_varlen:
        is_string = self._element[source].dtype == tf.string
        present = source if is_string else present_path(source)
        self._present |= {mask: present} if present in self._element else {}
    self._fetches = self._plan_fetches()
    self._times = TimedSteps(cut, clocks)
    self.rows_paths: dict[str, str] = {}
    self._timed_fetches = self._plan_timed_fetches(window_spec)
    if cut.max_rate is not None:
      self._times.bound(self._timed_fetches, cut.max_rate)
    for fetch in self._timed_fetches:
      if (other := self._times.other_clock(fetch.seconds)) is not None:
        self.rows_paths[rows_path(other)] = other
    self._context = {
      path: reading.source
      for path, reading in self.readings.items()
      if reading.steps is None
    }
    self.window_spec = self._plan_window_spec()
    self._order = tuple(self.window_spec)
    if self.n_step is not None:
      done = self.window_spec[self.n_step.fields.done]
      check_computed(computed, window_spec, self.n_step, done)

  @property
  def window_bytes(self) -> int:
    """Memory of a window's numbers, in bytes."""
    return sum(
      (spec.shape.num_elements() or 0) * spec.dtype.size
      for spec in self.window_spec.values()
      if spec.dtype != tf.string
    )

  @property
  def paths(self) -> tuple[str, ...]:
    """Paths that are read from an episode, each once."""
    sources = [reading.source for reading in self.readings.values()]
    finals = () if self.n_step is None else self.n_step.finals.values()
    others = [*self._present.values(), *finals, *self.clocks]
    others += [path for path in self.rows_paths if path in self._element]
    return tuple(dict.fromkeys([*sources, *others]))

  @property
  def timed_paths(self) -> tuple[str, ...]:
    """Those of `paths` that have a time axis."""
    sources = [self.readings[path].source for path in self._timed]
    others = [*self._present.values(), *self.clocks]
    others += [path for path in self.rows_paths if path in self._element]
    return tuple(dict.fromkeys([*sources, *others]))

  def has_steps(self, path: str) -> bool:
    """Whether one of `timed_paths` has a row for each step of the episode."""
    image = path.removesuffix(present_path(""))
    return path not in self.cut.clocks and image not in self.cut.clocks

  @property
  def clocks(self) -> tuple[str, ...]:
    """Those of `paths` whose time stamps determine which steps windows show."""
    clocks = (self._times.clocks(fetch.seconds) for fetch in self._timed_fetches)
    return tuple(dict.fromkeys(path for paths in clocks for path in paths))

  def survey_stamps(
    self, episodes: Iterable[tuple[str, Mapping[str, np.ndarray]]]
  ) -> None:
    """Checks the time stamps of all episodes, and finds how far windows reach.

    Required before windows are read from parts of episodes by `clocks`.

    Args:
      episodes: the place of each, and its stamps by path.
    Raises:
      SpecError: see `TimedSteps.survey`.
    """
    self._times.survey(self._timed_fetches, episodes)

  def check_stamps(self, episode: Mapping[str, tf.Tensor]) -> list[tf.Operation]:
    """Returns checks that an episode's time stamps are finite and never fall."""
    least: dict[str, float] = {}
    for fetch in self._timed_fetches:
      clocks, tolerance = self._times.clocks(fetch.seconds), fetch.seconds.tolerance
      if clocks and tolerance is not None and fetch.seconds.select != "event":
        least[clocks[1]] = min(tolerance, least.get(clocks[1], tolerance))
    checks = [
      check
      for path in self.clocks
      for check in assert_stamps(path, episode[path], least.get(path))
    ]
    return [check for check in checks if check is not None]

  @property
  def spans(self) -> dict[str, tuple[int, int]]:
    """The first and the last step from the first anchor that each path may show."""
    spans: dict[str, tuple[int, int]] = {}
    further = 0
    if self.n_step is not None:
      further = self.n_step.n - 1
      for path in self.n_step.fields.rewards:
        offset = self.n_step.offsets[path]
        spans[path] = offset, offset + further
    for fetch in self._fetches:
      last = int(fetch.offsets.max()) + further * fetch.is_later
      span = int(fetch.offsets.min()), last
      spans.update(dict.fromkeys(fetch.paths, span))
    clocks = [path for path in self.clocks if self.has_steps(path)]
    for timed in self._timed_fetches:
      if self._times.other_clock(timed.seconds) is not None:  # It is read whole.
        for path in clocks:
          spans.setdefault(path, (0, int(timed.anchors.max())))
        continue
      reach = self._times.reach_of(timed)
      spans.update(dict.fromkeys([*timed.paths, *clocks], reach))
    return spans

  @property
  def steps_shown(self) -> tuple[int, int]:
    """The first and the last step that a window shows, relative to its first anchor."""
    firsts, lasts = zip(*self.spans.values(), strict=True)
    return min(firsts), max(lasts)

  @property
  def end_flag(self) -> str | None:
    """The path of the flag that `num_rows` depends on; None without one."""
    if self.n_step is None or not self.n_step.keeps_terminal:
      return None
    return self.readings[self.n_step.fields.done].source

  @property
  def min_steps(self) -> int:
    """The shortest episode that may give a window."""
    reads_beyond = self.n_step is not None and self.n_step.reads_beyond
    return self.grid.min_steps - reads_beyond

  def num_rows(self, num_steps: Any, last_flags: Any = None) -> Any:
    """Returns the number of an episode's rows that `grid` counts.

    If the last stored row begins a transition, its next observation counts as one more
    row, stored or not; see `NStepPlan`.

    Args:
      num_steps: episode length(s); int, array or integer tensor.
      last_flags: bool of the same shape, whether `end_flag` is set in the last row;
        ignored if `end_flag` is None.
    Returns:
      The counts, of the same kind.
    """
    if self.n_step is not None and self.n_step.has_finals:
      return num_steps + 1
    if self.end_flag is None:
      return num_steps
    if imports.is_tensor(last_flags):
      return num_steps + tf.cast(last_flags, num_steps.dtype)
    return num_steps + np.asarray(last_flags).astype(np.int64)

  def num_rows_of(self, episode: Mapping[str, Any], num_steps: tf.Tensor) -> tf.Tensor:
    """Returns `num_rows` of an episode, given its tensors by path."""
    flag = self.end_flag
    is_set = None if flag is None else tf.cast(episode[flag][-1:], tf.bool)
    return self.num_rows(num_steps, None if flag is None else tf.reduce_any(is_set))

  @property
  def num_growing(self) -> int:
    """Steps after its first anchor that a window of a growing episode waits for."""
    if self.n_step is not None:
      return self.n_step.n - 1 + self.grid.num_after
    return max(self.grid.num_after, self.steps_shown[1], 0)

  def select(self, episode: SpecStructure) -> TensorSpecStruct:
    """Flattens an episode to the paths that the windows read, and no others."""
    flat = specs.flatten_spec_structure(episode)
    return TensorSpecStruct((path, flat[path]) for path in self.paths)

  def num_steps(self, episode: Mapping[str, Any], check: bool = True) -> tf.Tensor:
    """Returns T, checked to be the same for every path with a time axis.

    Args:
      episode: tensors by path.
      check: False if the episode has been checked before.
    Returns:
      int64 scalar.
    """
    paths = [path for path in self.timed_paths if self.has_steps(path)]
    paths = paths if check else paths[:1]
    return self.same_length(
      {path: tf.shape(episode[path], tf.int64)[0] for path in paths}
    )

  def same_length(self, lengths: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Returns T, checked to be the same for every path that is given.

    Args:
      lengths: steps by path, int64 scalars; at least one.
    """
    (first, length), *others = lengths.items()
    # `tf.debugging.assert_equal` takes ten ops more, which cost time in each episode.
    checks = [
      tf.raw_ops.Assert(
        condition=tf.equal(other, length),
        data=[
          f"windows: {path}: expected as many steps as {first} has.",
          other,
          length,
        ],
      )
      for path, other in others
    ]
    with tf.control_dependencies([check for check in checks if check is not None]):
      return tf.identity(length)

  def check_starts(self, starts: Any, num_steps: Any) -> tf.Operation | None:
    """Checks that windows start inside an episode, with all steps that are not padded.

    tf.gather on a CPU would fail, too; on a GPU it returns zeros instead.

    Args:
      starts: first anchor(s), int scalar or [B].
      num_steps: T, or `num_rows` of transitions; int64 scalar.
    Returns:
      The check, to be run before `read`.
    """
    before = self.grid.first_anchor
    after = 0 if self.grid.cut.pads_end else self.grid.num_after
    starts = tf.cast(starts, tf.int64)
    return tf.debugging.Assert(
      tf.reduce_all((starts >= before) & (starts + after < num_steps)),
      [
        f"windows: the anchors: expected {before} <= anchor < T - {after} with T =",
        num_steps,
        "steps, got",
        starts,
      ],
    )

  def read(
    self, episode: Mapping[str, Any], starts: Any, num_steps: Any = None
  ) -> TensorSpecStruct:
    """Gathers the windows that start at the given anchors.

    Args:
      episode: tensors by path, [T, ...] and context.
      starts: first anchor(s), an int scalar or [B].
      num_steps: T if it is known, int64.
    Returns:
      Leaves of starts.shape + [L, K, ...]; context leaves are repeated per start.
    """
    starts = tf.cast(starts, tf.int64)
    if starts.shape.rank not in (0, 1):
      raise errors.SpecError(
        "windows: the anchors: expected an int scalar or [B], got "
        f"{errors.describe(starts)}."
      )
    steps = self.num_steps(episode) if num_steps is None else num_steps
    episode = self.with_rows(episode)

    def take(path: str, index: tf.Tensor | None) -> tf.Tensor:
      if index is None:
        return _repeat(episode[path], starts)
      return tf.gather(episode[path], index)

    return self.read_with(take, starts, tf.convert_to_tensor(steps))

  def with_rows(self, episode: Mapping[str, Any]) -> Mapping[str, Any]:
    """Adds to an episode, of numpy or TensorFlow, the rows of other clocks."""
    missing = {path: c for path, c in self.rows_paths.items() if path not in episode}
    if not missing:
      return episode
    stamps = episode[next(path for path in self.clocks if self.has_steps(path))]
    rows = {p: clock_rows(stamps, episode[c]) for p, c in missing.items()}
    return {**episode, **rows}

  def read_with(
    self,
    take: Take,
    starts: tf.Tensor,
    num_steps: Any,
    first_rows: tf.Tensor | None = None,
  ) -> TensorSpecStruct:
    """Gathers windows with `take`, from one episode or from one for each anchor.

    Args:
      take: called with a path of an episode and the rows to read, starts.shape + [L,
        K]; returns their values, or the context features if the rows are None.
      starts: first anchor(s) in their episodes, int64 scalar or [B].
      num_steps: T, int64 scalar, or [B] for windows of several episodes.
      first_rows: row of the first step of each episode, int64 [B]; None: the rows are
        steps.
    Returns:
      Leaves of starts.shape + [L, K, ...].
    """
    rows = starts if first_rows is None else starts + first_rows
    anchors = Anchors(rows, starts, num_steps - 1 - starts)
    return TensorSpecStruct(self.read_at(take, anchors))

  def read_at(self, take: Take, anchors: Anchors) -> dict[str, Any]:
    """Gathers windows around anchors with `take`.

    Args:
      take: called with a path of an episode and rows, anchors.rows.shape + [L, K], and
        [n, ...] for the rewards of n steps; returns their values, or the context
        features where the rows are None.
      anchors: places of the windows.
    Returns:
      Leaves of anchors.rows.shape + [L, K, ...], by path, in the order of the specs.
    """
    read = {
      path: self.readings[path].fit(take(source, None))
      for path, source in self._context.items()
    }
    shift = self._shift(take, anchors)
    finals: dict[str, Any] = {}
    if self.n_step is not None:
      finals = {of: take(path, None) for of, path in self.n_step.finals.items()}
    for fetch in self._fetches:
      rows, real, shown, beyond = self._rows(fetch, anchors, shift)
      for path, source in fetch.paths.items():
        fit = self.readings[path].fit
        values = _fill_zeros(fit(take(source, rows)), shown)
        if beyond is not None and source in finals:
          last = fit(finals[source])
          values = _fill_beyond(values, last, beyond, len(anchors.rows.shape))
        read[path] = _fix_shape(path, values, rows, self.readings[path])
      for mask in fetch.masks:
        read[mask] = _mask(rows, real)
        if mask in self._present:
          read[mask] &= self._is_present(take, mask, rows, read[self.masks[mask]])
    for timed in self._timed_fetches:
      self._read_timed(take, anchors, timed, read)
    if self.n_step is not None:
      steps = self.n_step.reward_offsets(shift)
      for path in self.n_step.fields.rewards:
        reading, ahead = self.readings[path], self.n_step.offsets[path]
        offsets = steps + ahead if ahead else steps
        rows = anchors.rows + _times(offsets, anchors.stride)
        rewards = reading.fit(take(reading.source, rows))
        read[path] = self.n_step.total(rewards, shift)
      for path, name in self._computed.items():
        if name == DISCOUNT:
          read[path] = self.n_step.discount(read[self.n_step.fields.done], shift)
        else:
          read[path] = self.n_step.num_steps(shift)
    for path, reading in self.readings.items():
      if reading.cast is not None and read[path].dtype != reading.cast:
        read[path] = _cast(read[path], reading.cast)
    return {path: read[path] for path in self._order if path in read}

  def _read_timed(
    self, take: Take, anchors: Anchors, timed: TimedFetch, read: dict[str, Any]
  ) -> None:
    """Adds the windows of paths with time offsets in seconds."""
    steps = self._times.find(take, anchors, timed)
    for path, source in timed.paths.items():
      reading = self.readings[path]
      if steps.counts is not None:
        dtype = reading.cast or self._element[source].dtype
        read[path] = _fix_shape(path, _cast(steps.counts, dtype), steps.rows, reading)
        continue
      values = reading.fit(take(source, steps.rows))
      if steps.later is not None:
        later = reading.fit(take(source, steps.later))
        if reading.cast is not None:
          values, later = _cast(values, reading.cast), _cast(later, reading.cast)
        select = timed.seconds.select
        values = interpolate(select, values, later, steps.weights)
      values = _fill_zeros(values, steps.shown)
      read[path] = _fix_shape(path, values, steps.rows, reading)
    for mask in timed.masks:
      read[mask] = _mask(steps.rows, steps.real)
      if mask in self._present:
        read[mask] &= self._is_present(take, mask, steps.rows, read[self.masks[mask]])

  def _plan_timed_fetches(self, window_spec: TensorSpecStruct) -> list[TimedFetch]:
    fetches: dict[Any, TimedFetch] = {}
    for path, reading in self.readings.items():
      seconds, steps = reading.seconds, reading.steps
      if seconds is None or steps is None:
        continue
      anchors = steps[..., 0] if seconds.is_stack else steps
      key = seconds, anchors.shape, anchors.tobytes()
      fetch = fetches.setdefault(key, TimedFetch({}, [], seconds, anchors))
      fetch.paths[path] = reading.source
      fetch.masks.extend(mask for mask, of in self.masks.items() if of == path)
    return list(fetches.values())

  def _is_present(self, take: Take, mask: str, rows: Any, values: Any) -> Any:
    """Returns which rows have images, bool of the shape of the rows."""
    source = self._present[mask]
    if self._element[source].dtype != tf.string:
      return take(source, rows)
    axes = tuple(range(len(rows.shape), len(values.shape)))
    if imports.is_tensor(values):
      return tf.reduce_all(tf.not_equal(values, ""), axes)
    return np.asarray(values != b"", bool).all(axes)

  def _shift(self, take: Take, anchors: Anchors) -> Any | None:
    """Returns the steps from each anchor to its last joined step, or None."""
    n_step = self.n_step
    if n_step is None:
      return None
    flags = {}
    for path in n_step.fields.flags if n_step.n > 1 else ():
      offsets = n_step.flag_offsets(path, anchors.after)
      rows = anchors.rows + _times(offsets, anchors.stride)
      flags[path] = _is_set(take(self.readings[path].source, rows), rows)
    return n_step.shift(anchors.after, flags)

  def _rows(
    self, fetch: Fetch, anchors: Anchors, shift: Any | None
  ) -> tuple[Any, Any | None, Any | None, Any | None]:
    """Returns the rows of one fetch.

    Args:
      fetch: one of this reader's fetches.
      anchors: places of the windows.
      shift: steps from each anchor to its last joined step, or None.
    Returns:
      Rows, anchors.rows.shape + the shape of the offsets; bools of this shape: whether
      each is a real step, None if all are; whether its values are shown, and not zeros
      in their place, None if all are; whether each stands for the step after the last
      row, None if none do.
    """
    offsets, num_axes = fetch.offsets, fetch.offsets.ndim
    if _is_last(offsets):  # It is inside the episode for any padding.
      return anchors.rows + _times(anchors.after, anchors.stride), None, None, None
    if not num_axes and offsets == 0:
      # The anchors themselves, or the last joined steps: all are in their episodes.
      steps = _times(shift, anchors.stride) if fetch.is_later else None
      return anchors.rows if steps is None else anchors.rows + steps, None, None, None
    if fetch.is_later:
      offsets = add_axes(shift, num_axes) + offsets
    before, after, beyond = anchors.before, anchors.after, None
    n_step = self.n_step if fetch.is_ahead else None
    reads_beyond = n_step is not None and n_step.reads_beyond
    if self.cut.pads_front:
      before = add_axes(before, num_axes)
    if self.cut.pads_end or reads_beyond:
      after = add_axes(after, num_axes)
    offsets, real, shown = self.grid.steps(offsets, before, after)
    if reads_beyond:
      beyond = offsets > after if n_step and n_step.finals else None
      offsets = array_module(after).minimum(offsets, after)
    rows = add_axes(anchors.rows, num_axes) + _times(offsets, anchors.stride)
    return rows, real, shown, beyond

  def _plan_fetches(self) -> list[Fetch]:
    fetches: dict[Any, Fetch] = {}
    later: frozenset[str] = frozenset()
    rewards: tuple[str, ...] = ()
    if self.n_step is not None:
      later, rewards = self.n_step.later, self.n_step.fields.rewards
    for path, steps in self._timed.items():
      if path not in rewards and self.readings[path].seconds is None:
        key = path in later, steps.shape, steps.tobytes()
        fetch = Fetch({}, steps, [], path in later, bool(steps.max(initial=0) > 0))
        fetch = fetches.setdefault(key, fetch)
        fetch.paths[path] = self.readings[path].source
        fetch.masks.extend(mask for mask, of in self.masks.items() if of == path)
    return list(fetches.values())

  def _plan_window_spec(self) -> TensorSpecStruct:
    window = TensorSpecStruct()
    for path, path_read in self.readings.items():
      stored = self._element[path_read.source]
      shape, dtype = stored.shape, stored.dtype
      if path_read.steps is not None:
        shape = tf.TensorShape(path_read.steps.shape).concatenate(path_read.frame_shape)
      elif path_read.axes:
        shape = path_read.frame_shape
      if self.n_step is not None and path in self.n_step.fields.rewards:
        dtype = discounted_return_dtype(dtype)
      dtype = path_read.cast or dtype
      window[path] = tf.TensorSpec(shape, dtype)
    for mask, path in self.masks.items():
      window[mask] = tf.TensorSpec(self._timed[path].shape, tf.bool)
    for path, name in self._computed.items():
      if self.n_step is not None:
        window[path] = self.n_step.spec(name, window[self.n_step.fields.done])
    return window

  def _check_masks(self) -> None:
    clashes = [
      errors.Mismatch(path, "no spec with a name at the path of a mask", "one")
      for path in self.masks
      if path in self.readings
    ]
    if clashes:
      raise errors.mismatch_error("windows", clashes)
    if self.masks and self.n_step is not None:
      raise errors.SpecError(
        "n_step: masks: expected none, got masks of "
        f"{errors.listing(self.masks.values())}. A joined transition shows only real "
        "steps; num_steps is their number."
      )


@tf.autograph.experimental.do_not_convert
def stack_windows(
  flat: SpecStructure,
  spec_structure: SpecStructure,
  cut: Cut | None = None,
  **fields: Any,
) -> TensorSpecStruct:
  """Stacks the output of a reader with `flat=True`.

  L stacks of K frames are sent as L + K - 1 frames, and stacked by one gather with
  constant indices for each path, in a train step as well as under XLA. Masks, and the
  padding of the reader, are stacked in the same way.

  >>> import numpy as np
  >>> from t2r_seq import specs, windows
  >>> stacks = specs.ExtendedTensorSpec(
  ...   (2,), "int64", "x", is_sequence=True, time_offsets=(-1, 0)
  ... )
  >>> flat = {"x": np.array([[1, 2, 3, 4]])}  # [B, L + K - 1]
  >>> windows.stack_windows(flat, {"x": stacks}, sequence_length=3)["x"].numpy()
  array([[[1, 2], [2, 3], [3, 4]]])

  Args:
    flat: by path, [B, F, ...]; context features [B, ...].
    spec_structure: the specs of a window that the reader had.
    cut: the reader's cut; None for `Cut()`.
    **fields: fields of `Cut` that replace those of `cut`: sequence_length, stride.
  Returns:
    By path, [B, L, K, ...]; paths without a spec are unchanged.
  Raises:
    SpecError: a path has another number of steps than its spec reads, or `cut` or a
      field is invalid.
  """
  window_spec = specs.map_leaves(
    ExtendedTensorSpec.to_spec, specs.flatten_spec_structure(spec_structure)
  )
  grid = WindowGrid.of(window_spec, Cut.of("stack_windows", cut, fields))
  # A reader may add masks that no spec declares.
  masks = {mask_path(path): path for path in window_spec}
  masks = {path: of for path, of in masks.items() if path not in window_spec}
  masks.update(mask_paths(window_spec))
  stacked, mismatches = TensorSpecStruct(), []
  for path, values in specs.flatten_spec_structure(flat).items():
    spec = window_spec.get(masks.get(path, path))
    frame_rank = 0 if path in masks or spec is None else spec.frame_shape.rank
    if spec is None or (not spec.is_sequence and values.shape.rank == 1 + frame_rank):
      stacked[path] = values
      continue
    steps = steps_of(spec, grid)
    num_flat = int(steps.max() - steps.min()) + 1
    if values.shape[1] != num_flat:
      got = errors.describe(values)
      mismatches.append(errors.Mismatch(path, f"[B, {num_flat}, ...] flat steps", got))
      continue
    stacked[path] = tf.gather(values, steps - steps.min(), axis=1)
  if mismatches:
    raise errors.mismatch_error("stack_windows", mismatches)
  return stacked


def plan_readings(
  window_spec: TensorSpecStruct, element: TensorSpecStruct, grid: WindowGrid
) -> dict[str, Reading]:
  """Plans how every path is read.

  A path that the episode lacks is read from the path that is the spec's name, so that
  several specs can read one path at different times; see `source_paths`.

  Args:
    window_spec: specs of the window by path, without masks.
    element: specs of the episode by path; leaves [T, ...] and context features.
    grid: the anchors.
  Returns:
    Readings by path; optional paths that the episode lacks are left out.
  Raises:
    SpecError: the episode does not fit the specs; all mismatches are listed.
  """
  planned, mismatches = {}, []
  sources = source_paths(window_spec, element)
  for path, spec in window_spec.items():
    source = sources[path]
    if source not in element:
      if not spec.is_optional:
        hint = _missing(path, spec.name, element)
        if path.split("/")[-1] in (DISCOUNT, NUM_STEPS) and grid.cut.n_step is None:
          hint = "It comes with n_step=(n, gamma)."
        mismatches.append(errors.Mismatch(path, _describe(spec), "nothing", hint))
      continue
    result = _plan_path(path, spec, source, element[source], grid)
    if isinstance(result, errors.Mismatch):
      mismatches.append(result)
    else:
      planned[path] = result
  if mismatches:
    raise errors.mismatch_error("windows", mismatches)
  return planned


def _missing(path: str, name: str | None, element: TensorSpecStruct) -> str:
  """Returns the hint for a path that the episode lacks: its name, and similar paths."""
  near, hint = errors.nearest(path, element), ""
  if name not in (None, path):
    near = errors.nearest(str(name), element) or near
    hint = f"It reads '{name}', by its name."
  return f"{hint}{near or f' There is {errors.listing(element)}.'}"


def _plan_path(
  path: str,
  spec: ExtendedTensorSpec,
  source: str,
  given: tf.TypeSpec,
  grid: WindowGrid,
) -> Reading | errors.Mismatch:
  frame_shape, dtype, cast = spec.frame_shape, spec.dtype, None
  if spec.stored_dtype is not None and given.dtype != dtype:
    dtype, cast = spec.stored_dtype, dtype

  def misfit(want: str, hint: str = "") -> errors.Mismatch:
    place = f" at '{source}', its name" if source != path else ""
    return errors.Mismatch(path, want, errors.describe(given) + place, hint)

  if given.dtype == tf.string and specs.is_encoded_image_spec(spec):
    # Frames that are still encoded: one string a step (or a list of them).
    frame_shape, dtype = spec.frame_shape[:-3], tf.string
  if spec.time_offsets is None and not spec.is_sequence:
    if given.shape.rank is None:
      hint = "Set its static shape, or time_offsets=0 for the anchor's own step."
      return misfit(_describe(spec), hint)
    axes = added_axes(given.shape, frame_shape)
    is_scalar_a_step = frame_shape == [1] and given.shape.as_list() == [None]
    if axes or (given.shape.rank == frame_shape.rank and not is_scalar_a_step):
      fits = axes or given.shape.is_compatible_with(frame_shape)
      if given.dtype != dtype or not fits:
        return misfit(errors.describe(spec), _hint(dtype, given))
      return Reading(source, None, frame_shape, cast, axes)
  if spec.is_sequence and grid.cut.sequence_length is None:
    hint = "Pass sequence_length, or declare the spec with is_sequence=False."
    return errors.Mismatch(path, "a sequence_length", "None", hint)
  axes = 0
  if given.shape.rank:
    axes = added_axes(given.shape[1:], frame_shape)
  flat_shape = tf.TensorShape([None]).concatenate(frame_shape)
  seconds = spec.time_offsets if isinstance(spec.time_offsets, specs.Seconds) else None
  if (clock := grid.cut.clocks.get(source)) is not None:
    if seconds is None or seconds.clock not in (None, clock):
      want = f"Seconds(...), as its values are on the clock {clock}"
      got = "steps" if seconds is None else f"{seconds}"
      hint = f"Declare time_offsets=specs.Seconds(0.0, clock='{clock}')."
      return errors.Mismatch(path, want, got, hint)
    seconds = specs.Seconds(
      seconds.offsets, select=seconds.select, tolerance=seconds.tolerance, clock=clock
    )
  fits = axes or flat_shape.is_compatible_with(given.shape)
  if given.dtype != dtype or not fits:
    return misfit(_describe(spec), _hint(dtype, given))
  period = grid.cut.period
  if seconds and seconds.clock is None and period and seconds.steps(period) is not None:
    seconds = None
  return Reading(source, steps_of(spec, grid), frame_shape, cast, axes, seconds)


def steps_of(spec: ExtendedTensorSpec, grid: WindowGrid) -> np.ndarray:
  """Returns the steps that a spec reads, relative to the first anchor.

  Args:
    spec: spec of the window.
    grid: the anchors.
  Returns:
    int64 of shape [], [K], [L] or [L, K]; the steps of the anchors if only time stamps
    determine those that are read.
  """
  if spec.time_offsets == "last":
    return np.asarray(_LAST_STEP, np.int64)
  anchors = np.arange(grid.cut.num_stacks, dtype=np.int64) * grid.cut.stride
  given: Any = spec.time_offsets or 0
  if isinstance(given, specs.Seconds):
    exact = None if grid.cut.period is None else given.steps(grid.cut.period)
    given = np.zeros_like(given.array) if exact is None else exact
  offsets = np.asarray(given, dtype=np.int64)
  if spec.is_sequence:
    return anchors.reshape((-1,) + (1,) * offsets.ndim) + offsets
  return np.asarray(anchors[-1] + offsets)


def _is_last(steps: np.ndarray) -> bool:
  """Whether steps stand for the last one of an episode."""
  return not steps.ndim and steps == _LAST_STEP


def _fill_zeros(values: Any, shown: Any | None) -> Any:
  """Puts zeros, or empty strings, where no step is shown.

  Args:
    values: shown.shape + [...]; an array is changed in place.
    shown: bool; None if all are.
  """
  if shown is None:
    return values
  if not imports.is_tensor(values):
    values[~shown] = b"" if values.dtype == object else 0
    return values
  rank = tf.rank(values) if values.shape.rank is None else values.shape.rank
  keep = add_axes(shown, rank - shown.shape.rank)
  return tf.where(keep, values, tf.zeros((), values.dtype))


def _fill_beyond(values: Any, final: Any, beyond: Any, num_lead: int) -> Any:
  """Inserts the value after an episode's last row into windows that show it.

  Args:
    values: beyond.shape + [...].
    final: the value of each episode, the first `num_lead` axes of `beyond` + [...].
    beyond: bool.
    num_lead: axes of the anchors.
  """
  xp = array_module(values)
  for _ in range(len(beyond.shape) - num_lead):
    final = xp.expand_dims(final, num_lead)
  if not imports.is_tensor(values):
    return np.where(add_axes(beyond, values.ndim - beyond.ndim), final, values)
  rank = tf.rank(values) if values.shape.rank is None else values.shape.rank
  return tf.where(add_axes(beyond, rank - beyond.shape.rank), final, values)


def _times(offsets: Any, stride: int) -> Any:
  return offsets if stride == 1 else offsets * stride


def _is_set(flags: Any, rows: Any) -> Any:
  """Returns flags, which may have more axes of size 1, as bools of rows.shape."""
  if imports.is_tensor(flags):
    return tf.reshape(tf.cast(flags, tf.bool), tf.shape(rows))
  return flags.reshape(rows.shape).astype(bool)


def _mask(rows: Any, real: Any | None) -> Any:
  if real is None:
    return array_module(rows).ones_like(rows, dtype=bool)
  # Each path gets a separate array, because a caller may write to its mask.
  return real if imports.is_tensor(real) else real.copy()


def _fix_shape(path: str, values: Any, rows: Any, reading: Reading) -> Any:
  """Sets the static shape, with a check at run time if the data's shape is unknown."""
  if not imports.is_tensor(values):
    return values
  shape = rows.shape + reading.frame_shape
  if values.shape.is_subtype_of(shape):
    return values
  return tf.ensure_shape(values, shape, name="windows_" + re.sub(r"\W", "_", path))


def _repeat(value: tf.Tensor, starts: tf.Tensor) -> tf.Tensor:
  if starts.shape.rank == 0:
    return tf.convert_to_tensor(value)
  # `tf.repeat` has no kernel for uint16.
  return tf.gather(tf.expand_dims(value, 0), tf.zeros_like(starts))


def _check_no_last(stored: TensorSpecStruct) -> None:
  mismatches = [
    errors.Mismatch(
      path, "time offsets", "'last'", "Give the goal as a context feature instead."
    )
    for path, spec in stored.items()
    if spec.time_offsets == "last"
  ]
  if mismatches:
    raise errors.mismatch_error("n_step", mismatches)


def _check_any_sequence(stored: TensorSpecStruct, sequence_length: int) -> None:
  if not any(spec.is_sequence for spec in stored.values()):
    raise errors.SpecError(
      f"windows: sequence_length: expected None, because no spec has is_sequence=True, "
      f"got {sequence_length}."
    )


def _cast(values: Any, dtype: tf.DType) -> Any:
  if imports.is_tensor(values):
    return tf.cast(values, dtype)
  return values.astype(dtype.as_numpy_dtype)


def _hint(dtype: tf.DType, given: tf.TypeSpec) -> str:
  if not dtype.is_floating or given.dtype not in (tf.uint8, tf.uint16):
    return cast_hint(given.dtype, dtype)
  name = given.dtype.name
  return f"Declare {name}, and convert it: preprocessors.ImageToFloatPreprocessor."


def _describe(spec: ExtendedTensorSpec) -> str:
  step = tf.TensorSpec(spec.frame_shape, spec.dtype)
  return f"[T] steps of {errors.describe(step)}"
