"""Exports: versioned SavedModel folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from concurrent import futures

import tensorflow as tf
from absl import logging

from t2r_seq import errors, files, specs
from t2r_seq.models import T2RModel
from t2r_seq.specs import ModeKeys
from t2r_seq.training.policy_module import PolicyFunctions, exported_feature_specs

_UNFINISHED = re.compile(r"partial-\d+|\.\d+\.[0-9a-f]{32}\.tmp")


def export_saved_model(model: T2RModel, export_dir: str, global_step: int) -> str:
  """Exports a built model as a SavedModel with its policy signatures and specs.

  With the averaged weights, where the model is trained with any.

  Args:
    model: a built model.
    export_dir: folder of all versions; made if it is missing.
    global_step: written to the assets.
  Returns:
    The new version's folder, `<export_dir>/<version>`; the version is the time in
    seconds, or the next free number.
  Raises:
    SpecError: see `exported_feature_specs`.
  """
  assets = specs.create_t2r_assets(
    exported_feature_specs(model),
    model.preprocessor.get_in_label_specification(ModeKeys.TRAIN),
    global_step,
  )
  with _new_version(export_dir) as (partial, path):
    with (
      model.averaged_weights(),
      _quiet(),
      futures.ThreadPoolExecutor(1) as executor,
    ):
      # A thread of its own is in no strategy's scope, where the functions of mirrored
      # variables can't be saved; the caller may be in one.
      executor.submit(_save, model, partial).result()
    extra = os.path.join(partial, specs.EXTRA_ASSETS_DIRECTORY)
    os.makedirs(extra, exist_ok=True)
    filename = os.path.join(extra, specs.T2R_ASSETS_FILENAME)
    specs.write_t2r_assets_to_file(assets, filename)
  logging.info("Exported step %d to %s", global_step, path)
  return path


def copy_export(saved: str, export_dir: str) -> str:
  """Copies an export to a folder of versions, as a new one; returns its folder."""
  with _new_version(export_dir) as (partial, path):
    shutil.copytree(saved, partial, dirs_exist_ok=True)
  logging.info("Copied the export %s to %s", saved, path)
  return path


@contextlib.contextmanager
def _new_version(export_dir: str) -> Iterator[tuple[str, str]]:
  """Gives the folder to write a new version to, and that which it becomes.

  Readers take folders whose names are numbers: the first one's is none.
  """
  versions = export_versions(export_dir)
  version = max([int(time.time()), *(v + 1 for v in versions)])
  path = os.path.join(export_dir, str(version))
  with files.new_folder(path) as partial:
    yield partial, path


def remove_unfinished_exports(folder: str) -> None:
  """Removes what killed runs have left of exports that were not finished.

  Args:
    folder: with exports at any depth, which nobody exports to; may be missing.
  """
  for place, names, _ in os.walk(folder):
    for name in list(filter(_UNFINISHED.fullmatch, names)):
      names.remove(name)
      shutil.rmtree(os.path.join(place, name))


def check_exportable(model: T2RModel) -> None:
  """Traces all that an export holds, so that a run doesn't fail after training.

  Args:
    model: a built model.
  Raises:
    SpecError: see `exported_feature_specs`; or the model's functions fail in mode
      'infer', where there are no labels and no optional features.
  """
  in_spec = model.preprocessor.get_in_feature_specification(ModeKeys.INFER)
  flat = specs.flatten_spec_structure(in_spec)
  optional = [path for path in flat if path not in exported_feature_specs(model)]
  if optional:
    logging.warning(
      "The exported policy is not given the optional features %s, even if the model "
      "is trained with them.",
      optional,
    )
  with futures.ThreadPoolExecutor(1) as executor:
    try:
      executor.submit(_trace, model).result()
    except errors.SpecError:
      raise
    except Exception as e:
      raise errors.SpecError(
        f"export: {type(model).__name__}: expected a model that runs in mode 'infer', "
        f"with labels and optional features None, got {type(e).__name__}: {e}"
      ) from e


def _trace(model: T2RModel) -> None:
  for function in PolicyFunctions(model).signatures().values():
    function.get_concrete_function()


def _save(model: T2RModel, path: str) -> None:
  functions = PolicyFunctions(model)
  tf.saved_model.save(functions.module, path, signatures=functions.signatures())


def export_versions(export_dir: str) -> list[int]:
  """Lists the complete exports in a folder, oldest first."""
  names = os.listdir(export_dir) if os.path.isdir(export_dir) else []
  return sorted(int(name) for name in names if name.isdigit())


def remove_old_exports(export_dir: str, exports_to_keep: int) -> None:
  """Deletes all but the newest exports of a folder; `exports_to_keep` >= 1."""
  for version in export_versions(export_dir)[:-exports_to_keep]:
    with contextlib.suppress(FileNotFoundError):
      shutil.rmtree(os.path.join(export_dir, str(version)))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Holds back SavedModel's notes on renamed inputs and timings."""
  verbosity = logging.get_verbosity()
  logging.set_verbosity(min(verbosity, logging.WARNING))
  try:
    yield
  finally:
    logging.set_verbosity(verbosity)
