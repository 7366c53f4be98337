"""`NStepItems`: n-step transitions as flat items, joined by whoever receives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from t2r_seq import specs, windows
from t2r_seq.replay.memory import sizing
from t2r_seq.replay.memory.anchors import AnchorRule
from t2r_seq.replay.memory.n_step import NStepReading
from t2r_seq.replay.reverb.flat_items import FIRST_ANCHOR, LAST_STEP, FlatItems
from t2r_seq.replay.reverb.layout import ItemLayout, Row, Rows
from t2r_seq.store.layout import Columns
from t2r_seq.transitions.n_step import DISCOUNT, NUM_STEPS


class NStepItems(ItemLayout):
  """Items hold the steps that up to n joined transitions show, each step once.

  They are flat items of wider windows, with all rewards, flags and next observations
  that n joined steps may end with; at the end of an episode there are fewer, and which
  ones count follows from how many there are. The values are those of `NStepReading`.
  """

  def __init__(
    self,
    reader: windows.WindowReader,
    columns: Columns,
    spec_structure: specs.TensorSpecStruct,
    n_step: NStepReading,
  ) -> None:
    """Plans the columns.

    Args:
      reader: cuts one-step transitions from episodes.
      columns: what a step has.
      spec_structure: the specs of one-step transitions.
      n_step: what n steps are joined to.
    """
    self.reader = reader
    self.columns = columns
    self._n_step = n_step
    self._rule = AnchorRule.of(reader, n_step.n)
    steps = _wide_steps(reader, n_step)
    self._places = {
      path: np.searchsorted(steps[path], _later_steps(reader, n_step, path))
      for path in n_step.later
    }
    # The end of an episode shortens items, whether or not its beginning is padded.
    padding = "repeat" if reader.cut.padding == "drop" else reader.cut.padding
    cut = windows.Cut(padding=padding)
    wide = windows.WindowReader(
      sizing.element_spec(columns), _wide_specs(spec_structure, steps), cut
    )
    self._items = FlatItems(wide, columns)
    self.signature = self._items.signature
    self.full_shapes = self._items.full_shapes
    self.num_rows_kept = self._items.num_rows_kept
    self.num_steps_kept = self._items.num_steps_kept

  def num_rows(self, num_steps: int, has_ended: bool) -> int:
    """Returns how many rows the steps give: as many."""
    return self._items.num_rows(num_steps, has_ended)

  def row(self, step: Callable[[int], Row], number: int, num_steps: int) -> Row:
    """Makes a row: the step and its number."""
    return self._items.row(step, number, num_steps)

  def num_items(self, num_rows: int) -> int:
    """Returns how many anchors have n steps after them."""
    return self._num_anchors(num_rows, self._rule.need)

  def num_items_at_end(self, num_steps: int) -> int:
    """Returns how many anchors have a next observation."""
    return self._num_anchors(num_steps, self._rule.need_ended)

  def item(self, number: int, num_steps: int) -> dict[str, Rows]:
    """Returns which rows a transition shows."""
    return self._items.item(self.first_anchor(number), num_steps)

  def to_windows(self, items: Mapping[str, tf.Tensor]) -> specs.TensorSpecStruct:
    """Joins a batch of items."""
    n_step = self._n_step
    wide = self._items.to_windows(items)
    num_after = items[LAST_STEP] - items[FIRST_ANCHOR]
    shift = tf.clip_by_value(num_after - n_step.after, 0, n_step.n - 1)
    window = specs.TensorSpecStruct()
    for path in self.reader.window_spec:
      window[path] = wide[path]
      if path in n_step.rewards:
        window[path] = self._sum(wide[path], path, shift)
      elif path in n_step.later:
        places = tf.gather(self._places[path], shift)
        window[path] = tf.gather(wide[path], places, batch_dims=1)
    done = tf.cast(window[n_step.done], tf.float32)
    discounts = tf.reshape(tf.gather(n_step.discounts, shift), tf.shape(done))
    window[DISCOUNT] = discounts * (1 - done)
    window[NUM_STEPS] = tf.cast(shift + 1, tf.int32)
    return window

  def _sum(self, values: tf.Tensor, path: str, shift: tf.Tensor) -> tf.Tensor:
    """Returns discounted returns of rewards [B, n + after, ...], summed in float64."""
    values = tf.cast(values[:, : self._n_step.n], tf.float64)
    weights = tf.gather(self._n_step.weights.T, shift)
    axes = [1] * (values.shape.rank - 2)
    weights = tf.reshape(weights, tf.concat([tf.shape(weights), axes], 0))
    return tf.cast(tf.reduce_sum(values * weights, 1), self._n_step.return_dtypes[path])

  def _num_anchors(self, num_steps: int, num_after: int) -> int:
    """Returns how many anchors have so many steps after them."""
    room = num_steps - 1 - num_after - self._rule.first
    return max(room // self._rule.period + 1, 0)


def _later_steps(
  reader: windows.WindowReader, n_step: NStepReading, path: str
) -> np.ndarray:
  """Returns the steps that a path is read at after 1, 2, ... n joined steps."""
  steps = np.asarray(reader.readings[path].steps)
  return steps + np.arange(n_step.n).reshape([-1] + [1] * steps.ndim)


def _wide_steps(
  reader: windows.WindowReader, n_step: NStepReading
) -> dict[str, np.ndarray]:
  """Returns the steps that are read of the paths that joining reads at other times."""
  wide = {path: np.unique(_later_steps(reader, n_step, path)) for path in n_step.later}
  # As far as an item may reach: how far it does tells how many steps are joined.
  for path in n_step.rewards:
    wide[path] = np.arange(n_step.n + n_step.after)
  return wide


def _wide_specs(
  spec_structure: specs.TensorSpecStruct, steps: Mapping[str, np.ndarray]
) -> specs.TensorSpecStruct:
  wide = spec_structure.copy()
  for path, offsets in steps.items():
    spec = specs.ExtendedTensorSpec.to_spec(spec_structure[path])
    wide[path] = specs.ExtendedTensorSpec.from_spec(
      spec,
      shape=tf.TensorShape([len(offsets)]).concatenate(spec.frame_shape),
      time_offsets=offsets.tolist(),
    )
  return wide
