"""Counts of what a mixture gave, source by source."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from t2r_seq.data.abstract_input_generator import AbstractInputGenerator
from t2r_seq.data.input_report import InputReport


class MixtureReport:
  """Examples and epochs that a mixture has read of every source.

  Counted as batches are made: what waits in a prefetch buffer is in it, too.
  """

  def __init__(self, sources: Mapping[str, AbstractInputGenerator]) -> None:
    """Creates a report with all counts zero.

    Args:
      sources: by name; asked for their sizes when the report is read.
    """
    self._sources = dict(sources)
    with tf.init_scope(), tf.device("cpu:0"):
      self._counts = tf.Variable(tf.zeros([len(sources)], tf.int64), trainable=False)

  def count(self, num_examples: tf.Tensor) -> tf.Operation:
    """Adds a batch; called inside the input pipeline.

    Args:
      num_examples: of each source, int64 [S].
    Returns:
      The op that counts.
    """
    return self._counts.assign_add(num_examples, read_value=False)

  @property
  def num_sources(self) -> int:
    """How many sources there are."""
    return len(self._sources)

  @property
  def examples(self) -> dict[str, int]:
    """Examples read, by source."""
    return dict(zip(self._sources, self._counts.numpy().tolist(), strict=True))

  @property
  def sizes(self) -> dict[str, int | None]:
    """Examples of one pass, by source; None where that is not known."""
    return {name: source.num_examples for name, source in self._sources.items()}

  @property
  def epochs(self) -> dict[str, float | None]:
    """Passes made, by source; None where the source's size is not known."""
    sizes = self.sizes
    return {
      name: count / size if (size := sizes[name]) else None
      for name, count in self.examples.items()
    }

  @property
  def reports(self) -> dict[str, InputReport]:
    """The sources' own reports, of those that have one."""
    reports = {name: source.report for name, source in self._sources.items()}
    return {name: report for name, report in reports.items() if report is not None}

  @property
  def too_short(self) -> int:
    """Episodes that were too short for a window, in all sources."""
    return sum(report.too_short for report in self.reports.values())

  def __str__(self) -> str:
    return "; ".join(self._line(name) for name in self._sources)

  def _line(self, name: str) -> str:
    size, epochs, report = self.sizes[name], self.epochs[name], self.reports.get(name)
    passes = "size unknown" if size is None else f"{epochs:.3g} epochs of {size}"
    line = f"{name}: {self.examples[name]} examples ({passes})"
    return line if report is None else f"{line} from {report}"
