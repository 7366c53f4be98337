"""Checks the arguments of a training run before it starts."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import gin
from absl import logging

from t2r_seq import errors, specs, windows
from t2r_seq.data import AbstractInputGenerator, joint
from t2r_seq.lite import policy_io
from t2r_seq.models import T2RModel
from t2r_seq.windows.cut import invented_paths

DEFAULT_BINDINGS = "DEFAULT_BINDINGS"


def check(
  t2r_model: Any,
  input_generator_train: Any,
  input_generator_eval: Any,
  model_dir: str,
  max_train_steps: Any,
  eval_steps: Any,
) -> None:
  """Checks the arguments of `train_eval_model`.

  Raises:
    SpecError: arguments of another kind, no generator, invalid counts, or a `model_dir`
      that cannot be a folder.
  """
  mismatches = [_check_kind("t2r_model", t2r_model, T2RModel)]
  generators = {
    "input_generator_train": input_generator_train,
    "input_generator_eval": input_generator_eval,
  }
  for name, generator in generators.items():
    if generator is not None:
      mismatches.append(_check_kind(name, generator, AbstractInputGenerator))
  if input_generator_train is None and input_generator_eval is None:
    expected = "a generator for training or evaluation"
    mismatches.append(errors.Mismatch(" and ".join(generators), expected, "neither"))
  counts = {"max_train_steps": max_train_steps}
  if eval_steps is not None:
    counts["eval_steps"] = eval_steps
  mismatches += bad_counts(counts)
  errors.check_local("train_eval_model: model_dir", model_dir)
  if os.path.exists(model_dir) and not os.path.isdir(model_dir):
    got = f"the file {model_dir}"
    mismatches.append(errors.Mismatch("model_dir", "a folder", got))
  if bad := [mismatch for mismatch in mismatches if mismatch]:
    raise errors.mismatch_error("train_eval_model", bad)


def bad_counts(counts: Mapping[str, Any]) -> list[errors.Mismatch]:
  """Returns a mismatch for each value that is not an integer of at least 1."""
  return [
    errors.Mismatch(name, "an integer of at least 1", repr(value))
    for name, value in counts.items()
    if isinstance(value, bool) or not isinstance(value, int) or value < 1
  ]


def warn_of_invented_steps(model: T2RModel, source: AbstractInputGenerator) -> None:
  """Warns of specs that look ahead and train on padding at the end of an episode.

  Args:
    model: the model to train.
    source: its training data; n-step transitions are not padded at the end.
  """
  read = joint.join(
    model.preprocessor.get_in_feature_specification(specs.ModeKeys.TRAIN),
    model.preprocessor.get_in_label_specification(specs.ModeKeys.TRAIN),
  )
  unmasked = invented_paths(read, windows.Cut(padding=model.padding))
  if unmasked and source.n_step is None:  # Read last: a replay connects for it.
    logging.warning(
      "%s look ahead and are padded (%r) at the end of every episode, which trains on "
      "invented values. Declare masks (windows.add_mask_specs) and use them in the "
      "loss (layers.masked_mean), or pad the front only: padding=('repeat', 'drop').",
      unmasked,
      model.padding,
    )


def follow_sources(
  model: T2RModel,
  train: AbstractInputGenerator | None,
  evaluation: AbstractInputGenerator | None,
) -> None:
  """Records in the model the input's stages before the model's preprocessor.

  An export does not have these stages. Sets the specs of the generators. Warns if the
  evaluation's input has other stages than the training's.

  Args:
    model: the model to train, or to evaluate and export.
    train: generator of training batches; None uses `evaluation`.
    evaluation: generator of eval batches, of one or several sets, or None.
  """
  eval_stages = {
    f"{name}/{source}".strip("/"): stages
    for name, each in (evaluation.named_evals() if evaluation else {}).items()
    for source, stages in _stages(model, each, specs.ModeKeys.EVAL).items()
  }
  train_stages = eval_stages
  if train is not None:
    train_stages = _stages(model, train, specs.ModeKeys.TRAIN)
  model.follow_source_preprocessing(train_stages)
  # Names of sources differ between the two, so any source of the training may match.
  differing = {
    n: each for n, each in eval_stages.items() if each not in train_stages.values()
  }
  if differing:
    logging.warning(
      "The evaluation's input has other stages before the model's preprocessor than "
      "the training's: %s, not %s.",
      policy_io.list_stages(differing),
      policy_io.list_stages(train_stages),
    )


def _stages(model: T2RModel, generator: AbstractInputGenerator, mode: str) -> Any:
  generator.set_specification_from_model(model, mode)
  return generator.source_preprocessing(mode)


def warn_of_unread_bindings() -> None:
  """Warns of gin bindings that no call has read so far: they have no effect.

  Call it when everything that gin configures exists. The macro `DEFAULT_BINDINGS` lists
  bindings that may be unread, as a ready policy's file covers several cases.
  """
  read = _bindings(gin.operative_config_str())
  defaults: Sequence[str] = ()
  with contextlib.suppress(ValueError):  # There is no such macro.
    defaults = (*gin.query_parameter(f"%{DEFAULT_BINDINGS}"), DEFAULT_BINDINGS)
  # A call in the scope 'a/b' reads bindings of the scope 'a', too.
  unread = sorted(
    key
    for scope, name in _bindings(gin.config_str())
    if (key := f"{scope}/{name}" if scope else name) not in defaults
    and not any(
      name == other and f"{call_scope}/".startswith(f"{scope}/" if scope else "")
      for call_scope, other in read
    )
  )
  if unread:
    logging.warning(
      "Nothing reads the gin bindings %s. Does a reference use the scope, as in "
      "@scope/Name()? Or does the code pass the argument, so that gin's has no effect?",
      errors.listing(unread),
    )


def _bindings(config: str) -> list[tuple[str, str]]:
  """Returns (scope, 'Name.parameter' or macro) of each binding of a config."""
  keys = re.findall(r"^([^\s#=]+) =", config, re.MULTILINE)
  return [(scope, name) for scope, _, name in (key.rpartition("/") for key in keys)]


def _check_kind(name: str, value: Any, kind: type) -> errors.Mismatch | None:
  if isinstance(value, kind):
    return None
  if isinstance(value, type):
    hint = f"Make one: @{value.__name__}() in gin, with the parentheses."
    return errors.Mismatch(name, f"a {kind.__name__}", f"the class {value!r}", hint)
  return errors.Mismatch(name, f"a {kind.__name__}", errors.describe(value))
