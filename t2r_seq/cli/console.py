"""Shared by commands: gin options, specs by name, failures and tables.

For a mistake in a config, a file or a call of the library only the message is printed.
Any other error may be a bug and has its traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import glob
import importlib
import io
import logging
import os
import re
import sys
import tempfile
import textwrap
import tokenize
import types
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.cli import gin_registry

# Text that gin appends to a message for every configurable on the call stack.
_GIN_CALLS = re.compile(r"\n\s*In call to configurable [^\n]*")
_GIN_UNKNOWN = re.compile("No configurable matching")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LIBRARY_ERRORS = (ArithmeticError, RuntimeError, ValueError)


class UsageError(Exception):
  """A command line that is invalid."""


def is_expected(error: BaseException) -> bool:
  """Whether to print an error as one message, without a traceback.

  Expected are: data that does not fit, missing files and packages, TensorFlow's file
  errors, a wrong command or config, and errors that this library or gin raises on
  purpose. Other errors of TensorFlow, and errors of a user's model, are not.
  """
  if isinstance(error, (errors.SpecError, ImportError, OSError, UsageError)):
    return True
  if _is_tensorflow_file_error(error):
    return True
  module = _raised_in(error.__traceback__)
  if module.startswith("t2r_seq."):
    return isinstance(error, _LIBRARY_ERRORS)
  return module.startswith("gin.")


def message(error: BaseException) -> str:
  """Returns the error's message without gin's call stack.

  It is one line, except for a SpecError that lists several mismatches, one per line.
  """
  text = _GIN_CALLS.sub("", str(error)).strip()
  near = gin_registry.hint(text)
  if undefined := gin_registry.UNDEFINED.match(text):
    text = f"the gin macro %{undefined[1]} is used and not defined."
  text += near
  if _GIN_UNKNOWN.match(text):
    text += " Is its module imported? A gin file does so: import my_project.models"
  if not isinstance(error, errors.SpecError):
    text = " ".join(text.split())
  if "://" in text and _is_tensorflow_file_error(error):
    text = f"{text}. {errors.IF_REMOTE}"
  return printable(text) or type(error).__name__


def printable(text: str) -> str:
  """Escapes control characters: names may come from untrusted files."""
  return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


def show(text: object) -> None:
  """Prints a text that may contain names from untrusted files."""
  print(printable(str(text)))


def _escape(record: logging.LogRecord) -> bool:
  record.msg, record.args = printable(record.getMessage()), ()
  return True


def _is_tensorflow_file_error(error: BaseException) -> bool:
  """Whether TensorFlow did not find a file, or cannot access it."""
  tf = sys.modules.get("tensorflow")
  if tf is None:
    return False
  if isinstance(error, (tf.errors.NotFoundError, tf.errors.PermissionDeniedError)):
    return True
  module = _raised_in(error.__traceback__)
  is_in_file_io = module.startswith("tensorflow.python.lib.io.")
  return is_in_file_io and isinstance(error, tf.errors.OpError)


def _raised_in(traceback: types.TracebackType | None) -> str:
  """Returns the name of the module in which an error was raised."""
  name = ""
  while traceback is not None:
    name = str(traceback.tb_frame.f_globals.get("__name__", ""))
    traceback = traceback.tb_next
  return name


def load_tensorflow() -> None:
  """Loads TensorFlow, and searches for GPUs, without the output of its libraries.

  They write to the process's stderr before they read any settings, and would bury a
  command's own output. It is shown if loading fails, or if the machine has a GPU that
  TensorFlow does not find. Raises ImportError if TensorFlow is not installed.
  """
  if "tensorflow" not in sys.modules:
    with silent_libraries() as notes:
      try:
        tf = importlib.import_module("tensorflow")
      except ModuleNotFoundError as error:
        if error.name != "tensorflow":
          raise
        raise ImportError(
          "TensorFlow is not installed. t2r_seq_lite serves folders that `t2r_seq "
          "export --lite` wrote; for anything else install t2r_seq instead"
        ) from error
      has_gpu = bool(glob.glob("/dev/nvidia[0-9]*") or os.path.exists("/dev/dxg"))
      notes.is_shown = has_gpu and not tf.config.list_physical_devices("GPU")
  # TensorFlow has created the logger; its warnings may name features of files.
  logging.getLogger("absl").addFilter(_escape)


@contextlib.contextmanager
def silent_libraries() -> Iterator[types.SimpleNamespace]:
  """Captures what libraries write to the process's stderr, file descriptor 2.

  It is printed at the end if an unexpected error ends the block, or if `is_shown` of
  the yielded namespace is set.
  """
  sys.stderr.flush()
  original, notes = os.dup(2), types.SimpleNamespace(is_shown=False)
  with tempfile.TemporaryFile() as written:
    os.dup2(written.fileno(), 2)
    try:
      yield notes
    except BaseException as error:
      notes.is_shown = not is_expected(error)
      raise
    finally:
      sys.stderr.flush()
      os.dup2(original, 2)
      os.close(original)
      if notes.is_shown:
        written.seek(0)
        os.write(2, written.read())


def _repeats_no_error(record: logging.LogRecord) -> bool:
  """Drops gin's log line about a missing file, which the error repeats."""
  return not str(record.msg).startswith("Path not found")


def _is_no_note(record: logging.LogRecord) -> bool:
  """Drops TensorFlow's notes about itself, such as how long a save took."""
  is_its_own = "/tensorflow/python/" in record.pathname
  return record.levelno > logging.INFO or not is_its_own


def allow_project_code() -> None:
  """Adds the current folder to the end of the import path.

  Call it to import a project's code, after TensorFlow and this library are loaded, so
  that their optional imports are not searched there: a folder of data may be somebody
  else's, and contain a `tensorflow.py`.
  """
  folder = os.getcwd()
  if folder not in sys.path:
    sys.path.append(folder)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds --gin_configs and --gin_bindings; both can be repeated."""
  parser.add_argument(
    "--gin_configs",
    metavar="FILE",
    nargs="+",
    action="extend",
    default=[],
    help="gin files, in order; a later binding wins",
  )
  parser.add_argument(
    "--gin_bindings",
    metavar="BINDING",
    nargs="+",
    action="extend",
    default=[],
    help="bindings after the files, e.g. 'train_eval_model.max_train_steps = 100'",
  )


def load_configurables() -> None:
  """Imports all modules that register with gin, which takes seconds."""
  load_tensorflow()
  from t2r_seq import (
    actors,
    convert,
    hooks,
    meta_learning,
    preprocessors,
    transitions,
    zoo,
  )
  from t2r_seq.replay import reverb

  del actors, convert, hooks, meta_learning, preprocessors, reverb, transitions, zoo


def parse(args: argparse.Namespace) -> None:
  """Reads the gin files and bindings of a command, `gin_configs` and `gin_bindings`.

  They may import modules of the current folder.

  Raises:
    UsageError: neither is given; see also `read_gin`.
    Exception: see `read_gin`; or gin's, for undefined macros and references.
  """
  if not args.gin_configs and not args.gin_bindings:
    raise UsageError(
      "nothing is configured. Name a gin file with --gin_configs FILE, or give "
      "--gin_bindings."
    )
  read_gin(args)
  import gin

  with gin.unlock_config():  # Checks macros and references without a lock at the end.
    gin.finalize()


def read_gin(args: argparse.Namespace) -> None:
  """Reads the gin files and bindings of a command; macros may still be undefined.

  Args:
    args: arguments with `gin_configs` and `gin_bindings`.
  Raises:
    UsageError: a binding or a file is not gin, or a parameter is unknown; quotes it.
    Exception: another error of gin for a config that it cannot read.
  """
  load_configurables()
  import gin
  from absl import logging as absl_logging

  absl_logging.set_verbosity(absl_logging.INFO)
  absl_logging.get_absl_logger().addFilter(_is_no_note)
  allow_project_code()
  logging.getLogger().addFilter(_repeats_no_error)
  for filename in args.gin_configs:
    try:
      gin.parse_config_file(filename)
    except tokenize.TokenError as error:
      raise UsageError(
        f"{filename}: {_reason(error)}: a bracket or a string is not closed."
      ) from error
  try:
    gin.parse_config(args.gin_bindings)
  except (SyntaxError, tokenize.TokenError) as error:
    raise UsageError(
      f"--gin_bindings: {_culprit(error, args.gin_bindings)!r} is not gin: "
      f"{_reason(error)}."
    ) from error
  if unknown := gin_registry.unknown_parameter():
    raise UsageError(unknown)


def _culprit(error: Exception, bindings: Sequence[str]) -> str:
  """Returns the binding that gin cannot read; if unknown, all of them."""
  line = (getattr(error, "text", None) or "").strip()
  for binding in bindings:
    if line and line in binding:
      return binding
    try:
      list(tokenize.generate_tokens(io.StringIO(binding).readline))
    except (SyntaxError, tokenize.TokenError):
      return binding
  return "; ".join(bindings)


def _reason(error: Exception) -> str:
  """Returns gin's reason, without its line numbers, which count all bindings."""
  text = str(getattr(error, "msg", None) or error.args[0])
  return " ".join(text.split()).rstrip(".")


_MODEL = "train_eval_model.t2r_model"
_GENERATOR = "train_eval_model.input_generator_train"


def configures_model(args: argparse.Namespace, config_path: str | None = None) -> bool:
  """Reads the gin config of a training; returns whether it has the model.

  Args:
    args: arguments with `gin_configs`, `gin_bindings` and `no_model`.
    config_path: the config that an export keeps, used if no other is given.
  Raises:
    UsageError: a given config has no model, or `no_model` is set with a config.
    Exception: see `parse`.
  """
  import gin

  is_given = bool(args.gin_configs or args.gin_bindings)
  if args.no_model:
    if is_given:
      raise UsageError("--gin_configs, --gin_bindings: no effect with --no_model.")
    return False
  if not is_given:
    if config_path is None or not os.path.exists(config_path):
      return False
    args.gin_configs = [config_path]
  parse(args)
  try:
    gin.query_parameter(_MODEL)
  except ValueError as error:
    if not is_given:  # Trained from Python, where nothing binds the model.
      return False
    raise UsageError(
      f"the gin config has no {_MODEL}. Name that of the training, or do without: "
      "--no_model."
    ) from error
  return True


def create_model() -> Any:
  """Creates the model of the training, by gin."""
  import gin

  # gin makes the object of a reference when the reference is copied.
  return copy.deepcopy(gin.query_parameter(_MODEL))


def create_train_generator() -> Any:
  """Creates the input generator of the training, by gin; None if it has none."""
  import gin

  try:
    return copy.deepcopy(gin.query_parameter(_GENERATOR))
  except ValueError:
    return None


FORMS = "MODULE:NAME, an export's t2r_assets.pbtxt, or a .json file of specs"


def load_specs(source: str) -> tuple[Any, Any]:
  """Loads the flat specs of records; see `load_window_specs`.

  Windowed specs, as models declare them, become flat specs of the episode.
  """
  from t2r_seq import windows

  features, labels = load_window_specs(source)
  return windows.flat_specs(features), windows.flat_specs(labels) if labels else None


def load_window_specs(source: str) -> tuple[Any, Any]:
  """Loads specs with their time offsets; `load_specs` flattens them.

  Args:
    source: 'module:name' of a spec structure, or of a function without arguments that
      returns one; or the path of a .pbtxt or .json file.
  Returns:
    The feature specs and the label specs (None unless it is a .pbtxt).
  Raises:
    UsageError: the module has no such name, or the source has another form.
    ImportError: the module cannot be imported.
    OSError: the file cannot be read.
    SpecError: the source has no valid spec structure, or no specs.
  """
  from t2r_seq import specs
  from t2r_seq.specs import structures
  from t2r_seq.specs.assets import load_t2r_assets_to_file

  labels = None
  try:
    if source.endswith(".pbtxt"):
      assets = load_t2r_assets_to_file(source)
      features = specs.TensorSpecStruct.from_proto(assets.feature_spec)
      labels = specs.TensorSpecStruct.from_proto(assets.label_spec)
    elif source.endswith(".json"):
      with open(source, encoding="utf-8") as f:
        features = specs.TensorSpecStruct.from_json(f.read())
    else:
      loaded = load_object("--spec", source, FORMS)
      features = loaded() if callable(loaded) else loaded
    structures.assert_valid_spec_structure(features)
  except (errors.SpecError, UnicodeDecodeError) as error:
    raise errors.SpecError(f"--spec: {source}: {error}") from error
  if not features and not labels:
    raise errors.SpecError(f"--spec: {source}: expected specs, got none.")
  return features, labels


def load_store_specs(source: str) -> Any:
  """Loads specs of windows, features and labels, as one flat structure.

  Raises UsageError if a path is in both with different specs; see `load_window_specs`.
  """
  from t2r_seq import specs

  features, labels = load_window_specs(source)
  all_specs = specs.flatten_spec_structure(features)
  for path, spec in specs.flatten_spec_structure(labels or {}).items():
    if path in all_specs and not all_specs[path].is_identical_to(spec):
      raise UsageError(
        f"--spec: {source}: {path} is a feature and a label with different specs. A "
        "store has one column for a path."
      )
    all_specs[path] = spec
  return all_specs


def reject_options(
  args: argparse.Namespace, allowed: Collection[str], reason: str
) -> None:
  """Raises UsageError for given options that are not in `allowed`, with a reason."""
  others = {*vars(args)} - {*allowed, "debug", "help"}
  if given := given_options(args, others):
    raise UsageError(f"{', '.join(given)}: no effect {reason}.")


def given_options(args: argparse.Namespace, names: Collection[str]) -> dict[str, Any]:
  """Returns the values of options that differ from their defaults, by '--name'."""
  return {
    option.option_strings[-1]: getattr(args, option.dest)
    for option in args.parsers[args.command]._actions
    if option.option_strings and option.dest in names
    if getattr(args, option.dest) != option.default
  }


def option_words(args: argparse.Namespace, names: Collection[str]) -> list[str]:
  """Returns the given options among `names`, as words of a command line."""
  words: list[str] = []
  for option, value in given_options(args, names).items():
    values = value if isinstance(value, list) else [value] * (value is not True)
    words += [option, *map(str, values)]
  return words


def seed(text: str) -> int:
  """Parses an option that is a seed: NumPy takes no negative ones."""
  if not text.isdecimal():
    raise argparse.ArgumentTypeError(
      f"expected an integer of at least 0, got {text!r}."
    )
  return int(text)


def add_robot(parser: argparse.ArgumentParser) -> None:
  """Adds the choice of a robot of an export."""
  parser.add_argument(
    "--robot", metavar="NAME", help="the robot that acts, if the export has several"
  )


def load_export(
  export_dir: str, allow_nan: bool = True, robot: str | None = None
) -> Any:
  """Returns a predictor of an export, or of the newest one of a folder.

  Raises:
    UsageError: there is no export, or the newest is damaged.
    SpecError: the export does not have the robot, or needs one.
  """
  from t2r_seq import policies

  exports = policies.list_exports(export_dir)
  if not exports:
    below = os.path.join(export_dir, "export", "latest")
    hint = f" Did you mean {below}?" if policies.list_exports(below) else ""
    what = "finished export in" if os.path.exists(export_dir) else "folder"
    raise UsageError(f"there is no {what} {export_dir}.{hint}")
  predictor = policies.ExportedSavedModelPredictor(
    export_dir, timeout=0, allow_nan=allow_nan, robot=robot
  )
  if not predictor.restore():
    raise UsageError(
      f"the newest export, {exports[-1].path}, cannot be loaded: it is damaged, or was "
      "made by a newer TensorFlow. Name another one's folder."
    )
  return predictor


def load_object(option: str, source: str, forms: str = "MODULE:NAME") -> Any:
  """Returns the object of 'module:name'; the module may be in the current folder.

  Raises:
    UsageError: `source` has another form, or the module has no such name.
    ImportError: the module cannot be imported.
  """
  module_name, separator, name = source.partition(":")
  if not (module_name and separator and name):
    raise UsageError(f"{option} takes {forms}, got '{source}'.")
  allow_project_code()
  module = importlib.import_module(module_name)
  if not hasattr(module, name):
    near = errors.nearest(name, vars(module))
    raise UsageError(f"{option}: {module_name} has no '{name}'.{near}")
  return getattr(module, name)


WIDTH = 100
_MIN_FIRST, _MAX_ELEMENTS = 12, 8


def format_table(
  header: Sequence[str],
  rows: Sequence[Sequence[str]],
  numbers: Collection[str] = (),
  is_narrow: bool = False,
) -> str:
  """Returns rows aligned under their header.

  Args:
    header: the names of the columns.
    rows: rows with one cell per column.
    numbers: the columns that are aligned on the right.
    is_narrow: shortens the first column so that a row fits into `WIDTH`.
  """
  table = [list(header), *[[printable(cell) for cell in row] for row in rows]]
  widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
  if is_narrow:
    width = max(WIDTH - sum(widths[1:]) - 2 * len(widths[1:]), _MIN_FIRST)
    widths[0] = min(widths[0], width)
    table = [[shorten(row[0], width), *row[1:]] for row in table]
  table.insert(1, ["─" * width for width in widths])
  return "\n".join(
    "  ".join(
      cell.rjust(width) if name in numbers else cell.ljust(width)
      for cell, width, name in zip(row, widths, header, strict=True)
    ).rstrip()
    for row in table
  )


def count(number: int, noun: str) -> str:
  """Returns '1 file', '2 files', '1,000 files'."""
  return f"{number:,} {noun}{'' if number == 1 else 's'}"


def fill(text: str, indent: int = 2, hanging: int = 4) -> str:
  """Wraps a text at `WIDTH`; `hanging` indents all lines but the first."""
  return textwrap.fill(
    text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * hanging,
    break_long_words=False, break_on_hyphens=False,
  )  # fmt: skip


def shorten(text: str, width: int) -> str:
  """Cuts the middle out of a text that is longer than `width`."""
  if len(text) <= width:
    return text
  head = (width - 1) // 2
  return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def format_value(value: Any) -> str:
  """Returns an array's numbers or texts; for many numbers dtype, shape and range."""
  value = np.asarray(value)
  if value.dtype.kind in "SUO":
    return str(to_json(value))
  if value.size > _MAX_ELEMENTS:
    numbers = value.astype(np.float64)
    span = f"{numbers.min():.4g} to {numbers.max():.4g}"
    return f"{value.dtype} {value.shape} from {span}"
  if value.dtype.kind in "biu":
    return str(value.tolist())
  text = np.array2string(
    value.astype(np.float64),
    max_line_width=sys.maxsize,
    separator=", ",
    formatter={"float_kind": lambda number: f"{number:.4g}"},
  )
  return " ".join(text.split())


def to_json(value: Any) -> Any:
  """Returns an array as JSON values; bytes become text."""
  value = np.asarray(value)
  if value.dtype.kind in "SUO":
    texts = np.frompyfunc(_to_text, 1, 1)(value.astype(object))
    return np.asarray(texts, object).tolist()
  if value.dtype.kind in "biu":
    return value.tolist()
  # float16 and bfloat16 widen without loss.
  return value.astype(np.float64).tolist()


def _to_text(value: Any) -> Any:
  is_bytes = isinstance(value, bytes)
  return value.decode("utf-8", "backslashreplace") if is_bytes else value
