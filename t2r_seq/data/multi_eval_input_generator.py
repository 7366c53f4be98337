"""Input generators of several named evaluations."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.data import arguments
from t2r_seq.data.abstract_input_generator import AbstractInputGenerator
from t2r_seq.data.record_input_generator import (
  DefaultRecordInputGenerator,
  FilePatterns,
)

_MULTI_EVAL_NAME = "multi_eval_name"


def get_multi_eval_name() -> str | None:
  """Returns the 'multi_eval_name' of the environment's TF_CONFIG, if it has one.

  So Tensor2Robot told each of several evaluating jobs which dataset is its own.
  """
  return json.loads(os.environ.get("TF_CONFIG") or "{}").get(_MULTI_EVAL_NAME)


@gin.configurable
class MultiEvalInputGenerator(AbstractInputGenerator):
  """Holds one input generator for each named evaluation.

  `train_eval_model` evaluates on each of them, and logs '<name>/<metric>'; the metric
  without a name is the mean over the names.
  """

  def __init__(
    self, evals: Mapping[str, AbstractInputGenerator], eval_name: str | None = None
  ) -> None:
    """Creates the generator.

    Args:
      evals: input generators by name.
      eval_name: the only one to evaluate on; None: 'multi_eval_name' of the
        environment variable TF_CONFIG if that is there, and else all.
    Raises:
      SpecError: there are no evals by name, a value is no input generator, a name is
        none of a folder, or there is no eval of that name.
    """
    super().__init__()
    self._check_map("evals", "input generators", evals)
    self._evals = dict(evals)
    self._check_evals()
    name = get_multi_eval_name() if eval_name is None else eval_name
    if name is not None and name not in self._evals:
      raise errors.SpecError(
        f"{type(self).__name__}: eval_name: expected one of "
        f"{errors.listing(self._evals)}, got {name!r}."
        f"{errors.nearest(str(name), self._evals)}"
      )
    if name is not None:
      self._evals = {name: self._evals[name]}

  def named_evals(self) -> dict[str, AbstractInputGenerator]:
    """Returns the generators to evaluate with, by name."""
    return dict(self._evals)

  def _check_map(self, name: str, values: str, given: Any) -> None:
    if not isinstance(given, Mapping):
      raise errors.SpecError(
        f"{type(self).__name__}: {name}: expected a map of names to {values}, got "
        f"{given!r}."
      )

  def _check_evals(self) -> None:
    found = [
      errors.Mismatch(f"evals: {name}", "an input generator", errors.describe(value))
      for name, value in self._evals.items()
      if not isinstance(value, AbstractInputGenerator)
    ]
    found += [
      errors.Mismatch(f"evals: {name!r}", "a name that a folder can have", f"{name!r}")
      for name in self._evals
      if not isinstance(name, str) or not name or os.path.basename(name) != name
    ]
    if not self._evals:
      found = [errors.Mismatch("evals", "at least one", "none")]
    if found:
      raise errors.mismatch_error(type(self).__name__, found)

  def _create_batches(self, mode: str, batch_size: int) -> tf.data.Dataset:
    raise errors.SpecError(
      f"{type(self).__name__}: expected to be asked for one of its evaluations, "
      f"{errors.listing(self._evals)}, got a call for all at once. Use "
      "named_evals()[name]."
    )


@gin.configurable
class MultiEvalRecordInputGenerator(MultiEvalInputGenerator):
  """Evaluates on several sets of TFRecord files. After Tensor2Robot's class."""

  def __init__(
    self,
    eval_map: Mapping[str, FilePatterns],
    eval_name: str | None = None,
    **record_arguments: Any,
  ) -> None:
    """Creates the generator.

    Args:
      eval_map: file patterns by the evaluation's name.
      eval_name: see the base class.
      **record_arguments: of `DefaultRecordInputGenerator`, for all of them.
    Raises:
      SpecError: see the base class; eval_map is no map of file patterns.
    """
    self._check_map("eval_map", "file patterns", eval_map)
    where = type(self).__name__
    checked = {
      name: arguments.check_file_patterns(where, patterns, f"eval_map[{name!r}]")
      for name, patterns in eval_map.items()
    }
    evals = {
      name: DefaultRecordInputGenerator(patterns, **record_arguments)
      for name, patterns in checked.items()
    }
    super().__init__(evals, eval_name)
