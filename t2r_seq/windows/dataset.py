"""Flat episodes -> windows, gathered late, and a count of skipped episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import specs
from t2r_seq.specs import SpecStructure, TensorSpecStruct
from t2r_seq.windows.cut import Cut
from t2r_seq.windows.reader import WindowReader

_no_autograph = tf.autograph.experimental.do_not_convert


def windows(
  dataset: tf.data.Dataset,
  spec_structure: SpecStructure,
  cut: Cut | None = None,
  *,
  shuffle_buffer_size: int | None = None,
  seed: int | None = None,
  report: WindowReport | None = None,
  num_epochs: int | None = 1,
  **fields: Any,
) -> tf.data.Dataset:
  """Cuts flat episodes into windows.

  (episode, window number) pairs pass through the shuffle buffer: an episode's tensors
  are shared by reference, so the buffer holds every frame once. Stacks are gathered
  after it. Windows never cross episodes.

  With `sequence_length` L, specs with `is_sequence=True` get [L, K, ...]: L stacks
  whose anchors are `stride` steps apart. Two sequences start `shift` stacks apart.
  Other specs of the structure are read at the sequence's last anchor.

  A spec without time offsets is the anchor's own step if the dataset has a time axis
  for it, and a context feature of the whole episode if not.

  >>> import tensorflow as tf
  >>> from t2r_seq import specs, windows
  >>> episodes = tf.data.Dataset.from_tensors({"x": [1, 2, 3]})
  >>> pair = specs.ExtendedTensorSpec((2,), "int32", "x", time_offsets=(-1, 0))
  >>> for window in windows.windows(episodes, {"x": pair}, padding="repeat"):
  ...   print(window["x"].numpy())
  [1 1]
  [1 2]
  [2 3]

  Args:
    dataset: elements are episodes by path (nested or flat); leaves [T, ...], T may be
      unknown, and context leaves without T. Frames may be decoded or still encoded.
    spec_structure: the specs of a window.
    cut: how episodes become windows; None for `Cut()`.
    shuffle_buffer_size: windows to shuffle among; None keeps the order.
    seed: seed of the shuffle.
    report: counts episodes, windows and episodes that are too short; under 'drop'
      without one, a line on stderr reports each episode that is too short.
    num_epochs: passes over the dataset, each shuffled, and ended before the next
      begins; None: no end. Better than `repeat` on the result, after which tf.data
      can't fuse the gathering with a `batch`: a third slower on large frames.
    **fields: fields of `Cut` that replace those of `cut`.
  Returns:
    Dataset of TensorSpecStructs by path, leaves [L, K, ...]; casts a `stored_dtype`.
  Raises:
    SpecError: the dataset's elements do not fit the specs, and all mismatches are
      listed; or `cut` or a field is invalid.
  """
  reader = WindowReader(
    dataset.element_spec, spec_structure, Cut.of("windows", cut, fields)
  )

  # No control flow to convert: without AutoGraph the dataset is made in a quarter of
  # the time, and errors keep their class and message.
  @_no_autograph
  def flatten(*episode: Any) -> TensorSpecStruct:
    return reader.select(episode[0] if len(episode) == 1 else episode)

  @_no_autograph
  def pairs(flat: TensorSpecStruct) -> tf.data.Dataset:
    num_steps = reader.num_steps(flat)
    count = reader.grid.num_windows(reader.num_rows_of(flat, num_steps))
    effects = reader.check_stamps(flat)
    if report is not None:
      effects.append(report.count(num_steps, count))
    elif not (reader.cut.pads_front and reader.cut.pads_end):
      effects.append(print_too_short(num_steps, count, reader.min_steps))
    with tf.control_dependencies(effects):
      count = tf.identity(count)
    # Only the episode and a number: this runs in one thread, and its results fill the
    # shuffle buffer. `gather` computes the rest in parallel: computing T and the anchor
    # here costs a sixth more per window.
    return tf.data.Dataset.range(count).map(_no_autograph(lambda i: (flat, i)))

  @_no_autograph
  def gather(episode: TensorSpecStruct, window: tf.Tensor) -> TensorSpecStruct:
    start = reader.grid.start(window)
    return reader.read(episode, start, reader.num_steps(episode, check=False))

  # A mapping as an element reaches a map function whole, a tuple as its parts.
  result = dataset.map(flatten).flat_map(pairs)
  if shuffle_buffer_size:
    result = result.shuffle(shuffle_buffer_size, seed, reshuffle_each_iteration=True)
  if num_epochs != 1:
    result = result.repeat(num_epochs)
  return result.map(gather, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


@tf.autograph.experimental.do_not_convert
def gather_windows(
  episode: SpecStructure,
  starts: Any,
  spec_structure: SpecStructure,
  cut: Cut | None = None,
  **fields: Any,
) -> TensorSpecStruct:
  """Gathers windows from one flat episode.

  >>> import numpy as np
  >>> from t2r_seq import specs, windows
  >>> next_two = specs.ExtendedTensorSpec((2,), "int64", "x", time_offsets=(0, 1))
  >>> windows.gather_windows({"x": np.arange(5)}, [0, 3], {"x": next_two})["x"].numpy()
  array([[0, 1], [3, 4]])

  Args:
    episode: tensors or arrays by path; leaves [T, ...], and context features.
    starts: anchor(s), an int scalar or [B]; for sequences the first anchor of each.
    spec_structure: the specs of a window.
    cut: how the windows are cut; None for `Cut()`.
    **fields: fields of `Cut` that replace those of `cut`: sequence_length, stride,
      padding, masks, n_step.
  Returns:
    Windows by path, leaves starts.shape + [L, K, ...]: L only with sequence_length, K
    only with a tuple of time offsets.
  Raises:
    SpecError: the episode does not fit the specs, or `cut`, a field or the shape of
      `starts` is invalid.
    tf.errors.InvalidArgumentError: time stamps are not finite or fall, paths differ in
      their steps, or an anchor is outside of the episode or, under 'drop', without a
      full window (XLA leaves these checks out and clamps the steps).
  """
  flat = specs.flatten_spec_structure(episode)
  tensors = TensorSpecStruct((p, tf.convert_to_tensor(v)) for p, v in flat.items())
  element = specs.map_leaves(tf.TensorSpec.from_tensor, tensors)
  reader = WindowReader(element, spec_structure, Cut.of("gather_windows", cut, fields))
  num_steps = reader.num_steps(tensors)
  check = reader.check_starts(starts, reader.num_rows_of(tensors, num_steps))
  checks = [*reader.check_stamps(tensors), *([] if check is None else [check])]
  with tf.control_dependencies(checks):
    return reader.read(tensors, starts, tf.identity(num_steps))


class WindowReport:
  """Counts episodes, steps and windows as a dataset is read.

  An episode that is too short for a single window under padding 'drop' has no window;
  it is counted here, so that nothing is lost silently. Counts add up over passes,
  except for data whose episode lengths are known in advance: those are counted once.

  Attributes:
    is_of_one_pass: True if the counts are of one pass, because all lengths are known in
      advance; False if they add up over passes.
  """

  is_of_one_pass = False

  def __init__(self) -> None:
    """Creates a report with all counts zero."""
    names = ("episodes", "steps", "windows", "too_short", "longest_too_short")
    # On the host and outside of any strategy: input pipelines run there.
    with tf.init_scope(), tf.device("cpu:0"):
      self._counts = {
        name: tf.Variable(0, dtype=tf.int64, trainable=False, name=name)
        for name in names
      }

  @classmethod
  def of_episodes(cls, num_steps: np.ndarray, num_windows: np.ndarray) -> WindowReport:
    """Returns the report of a pass over episodes whose lengths are known.

    Args:
      num_steps: int64 [episodes].
      num_windows: int64 [episodes], 0 for an episode that is too short.
    """
    report = cls()
    report.is_of_one_pass = True
    short = num_steps[num_windows < 1]
    with tf.init_scope():
      report._counts["episodes"].assign(len(num_steps))
      report._counts["steps"].assign(num_steps.sum())
      report._counts["windows"].assign(num_windows.sum())
      report._counts["too_short"].assign(len(short))
      report._counts["longest_too_short"].assign(short.max(initial=0))
    return report

  def count(self, num_steps: tf.Tensor, num_windows: tf.Tensor) -> tf.Operation:
    """Returns an op of the input pipeline that adds episodes.

    Args:
      num_steps: steps of one episode, int64 scalar; or of several, [n].
      num_windows: int64 scalar or [n], 0 for an episode that is too short.
    """
    is_short = tf.cast(num_windows < 1, tf.int64)
    longest = self._counts["longest_too_short"]
    # reduce_max of an empty tensor is int64.min.
    longest_new = tf.reduce_max(is_short * num_steps)
    return tf.group(
      self._counts["episodes"].assign_add(tf.size(num_steps, tf.int64)),
      self._counts["steps"].assign_add(tf.reduce_sum(num_steps)),
      self._counts["windows"].assign_add(tf.reduce_sum(num_windows)),
      self._counts["too_short"].assign_add(tf.reduce_sum(is_short)),
      longest.assign(tf.maximum(longest, longest_new)),
    )

  @property
  def episodes(self) -> int:
    """Episodes read."""
    return int(self._counts["episodes"].numpy())

  @property
  def steps(self) -> int:
    """Steps in all episodes read."""
    return int(self._counts["steps"].numpy())

  @property
  def windows(self) -> int:
    """Windows (or sequences of stacks) that the episodes gave."""
    return int(self._counts["windows"].numpy())

  @property
  def too_short(self) -> int:
    """Episodes without a window."""
    return int(self._counts["too_short"].numpy())

  @property
  def longest_too_short(self) -> int:
    """Steps of the longest episode that gave no window."""
    return int(self._counts["longest_too_short"].numpy())

  def __str__(self) -> str:
    line = f"{self.windows} windows from {self.episodes} episodes ({self.steps} steps)"
    if not self.too_short:
      return line
    return (
      f"{line}; {self.too_short} episodes too short for a window, the longest of them "
      f"with {self.longest_too_short} steps"
    )


@_no_autograph
def print_too_short(
  num_steps: tf.Tensor, num_windows: tf.Tensor, min_steps: int
) -> tf.Operation:
  """Returns an op that warns on stderr about an episode without windows.

  Args:
    num_steps: int64 scalar.
    num_windows: int64 scalar; nothing is printed if the episode gave any.
    min_steps: the shortest episode that gives a window.
  """

  def print_line() -> tf.Operation:
    return tf.print(
      "windows: left out an episode of",
      num_steps,
      f"steps: a window needs {min_steps}. Pass a WindowReport to count instead.",
    )

  return tf.cond(num_windows < 1, _no_autograph(print_line), tf.no_op)
