"""A dataset of flat episodes -> a dataset of windows, gathered late."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from t2r_seq.specs import SpecStructure, TensorSpecStruct
from t2r_seq.windows.report import WindowReport, print_too_short
from t2r_seq.windows.window_reader import WindowReader

_as_it_is = tf.autograph.experimental.do_not_convert


def windows(
  dataset: tf.data.Dataset,
  spec_structure: SpecStructure,
  sequence_length: int | None = None,
  stride: int = 1,
  shift: int = 1,
  padding: str = "drop",
  masks: bool = False,
  shuffle_buffer_size: int | None = None,
  seed: int | None = None,
  report: WindowReport | None = None,
  num_epochs: int | None = 1,
) -> tf.data.Dataset:
  """Cuts flat episodes into windows.

  What passes through the shuffle are (episode, anchor) pairs: an episode's tensors are
  shared by reference, so the buffer holds every frame once, and stacks are gathered
  after it. Windows never cross episodes.

  With `sequence_length` L, specs with `is_sequence=True` get [L, K, ...]: L stacks
  whose anchors are `stride` steps apart. Two sequences start `shift` stacks apart.
  Other specs of the structure are read at the sequence's last anchor.

  A spec without time offsets is the anchor's own step if the dataset has a time axis
  for it, and a context feature of the whole episode if not.

  Args:
    dataset: elements are episodes by path (nested or flat); leaves [T, ...], T may be
      unknown, and context leaves without T. Frames may be decoded or still encoded.
    spec_structure: the specs of a window.
    sequence_length: L, stacks in a sequence; None for single windows.
    stride: steps between the stacks of one sequence.
    shift: stacks between the starts of two sequences; for single windows, steps
      between two anchors in units of `stride`.
    padding: 'drop' keeps full windows only, from the first anchor that has one;
      'repeat' pads with the episode's edge step, 'zero' with zeros (and empty strings),
      and then every step on the stride is an anchor.
    masks: adds a bool '<path>_mask' for every windowed path, true for real steps; masks
      that the structure declares (`add_mask_specs`) are always added.
    shuffle_buffer_size: windows to shuffle among; None keeps the order.
    seed: of the shuffle.
    report: counts episodes, windows and episodes that are too short; under 'drop'
      without one, a line on stderr tells of each episode that is too short.
    num_epochs: passes over the dataset, each shuffled anew and ended before the next
      begins; None for ever. Better than `repeat` on the result: tf.data makes gathering
      and a `batch` that follows at once one step, a third faster on large frames.
  Returns:
    Dataset of TensorSpecStructs by path, leaves [L, K, ...]; dtypes unchanged.
  Raises:
    SpecError: the dataset's elements do not fit the specs; every path is named.
  """
  reader = WindowReader(
    dataset.element_spec,
    spec_structure,
    sequence_length,
    stride,
    shift,
    padding,
    masks,
  )

  # No control flow to convert: without AutoGraph the dataset is made in a quarter of
  # the time, and errors keep their class and message.
  @_as_it_is
  def flatten(*episode: Any) -> TensorSpecStruct:
    return reader.select(episode[0] if len(episode) == 1 else episode)

  @_as_it_is
  def pairs(flat: TensorSpecStruct) -> tf.data.Dataset:
    num_steps = reader.num_steps(flat)
    count = reader.grid.num_windows(num_steps)
    noted = []
    if report is not None:
      noted.append(report.count(num_steps, count))
    elif padding == "drop":
      noted.append(print_too_short(num_steps, count, reader.grid.min_steps))
    with tf.control_dependencies(noted):
      count = tf.identity(count)
    # Nothing but the episode and a number: what is made here is made by one thread
    # and goes through the shuffle. The rest is left to `gather`, which runs in
    # parallel; with T and the anchor made here, a window cost a sixth more.
    return tf.data.Dataset.range(count).map(_as_it_is(lambda i: (flat, i)))

  @_as_it_is
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
