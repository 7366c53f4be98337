"""From options to selectors."""

from __future__ import annotations

from t2r_seq import errors
from t2r_seq.replay import options
from t2r_seq.replay.selectors.heap import HeapSelector
from t2r_seq.replay.selectors.ordered import OrderedSelector
from t2r_seq.replay.selectors.prioritized import PrioritizedSelector
from t2r_seq.replay.selectors.selector import Selector
from t2r_seq.replay.selectors.uniform import UniformSelector


def make_selector(option: options.SelectorOption, capacity: int) -> Selector:
  """Makes what an option describes.

  Args:
    option: one of `options`' selectors.
    capacity: rows are in range(capacity).
  Returns:
    A selector without items.
  Raises:
    SpecError: the option is none of the selectors'.
  """
  match option:
    case options.Uniform():
      return UniformSelector(capacity)
    case options.Fifo() | options.Lifo():
      return OrderedSelector(capacity, isinstance(option, options.Lifo))
    case options.Prioritized():
      return PrioritizedSelector(capacity, option.priority_exponent)
    case options.MinHeap() | options.MaxHeap():
      return HeapSelector(capacity, isinstance(option, options.MaxHeap))
  raise errors.SpecError(
    f"make_selector: the option: expected a selector, got {errors.describe(option)}."
  )
