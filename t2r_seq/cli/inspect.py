"""`t2r_seq inspect`: shows the contents of data or policies, and checks specs."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from t2r_seq import errors, files
from t2r_seq.cli import console, sources
from t2r_seq.lite import lite_policy, policy_io
from t2r_seq.specs.names import VIDEO_FORMATS, is_image_format

if TYPE_CHECKING:
  from t2r_seq.episodes import Episodes
  from t2r_seq.records.inspect import RecordSummary
  from t2r_seq.store.summary import StoreSummary

_MAX_NAME = 36
_NUM_BINS = 8
_BAR = 40

# Formats of a written spec by suffix, and its first bytes. --output replaces only files
# that start so, not a user's own module with specs.
_SUFFIXES = {".py": "python", ".pbtxt": "pbtxt", ".json": "json"}
_STARTS = {
  "python": rb"import tensorflow as tf\nfrom t2r_seq.specs import [^\n]*\n\nSPEC = ",
  "pbtxt": rb"feature_spec \{",
  "json": rb'\{\n  "[^\n]*": \{"shape": ',
}

SUMMARY = "show what is in a data set or an export, and whether specs fit"
DESCRIPTION = """Shows the features of TFRecord files, and a spec that parses them. For
an EpisodeStore it shows columns, lengths and bytes; for data sets of other formats
paths, lengths and metadata; for an export, or a folder of `t2r_seq export --lite`,
the policy's observations, state and outputs, and its files. --output writes the spec of
the data to a file for --spec of this and other commands; --format prints only the spec.
In a damaged TFRecord file it shows the records before the damage, names the place, and
exits with 1.

With --spec it also checks every record against specs, and exits with 1 at the first one
that doesn't fit, naming file, record and feature. A store is compared with specs of
windows: how many it has, and how many bytes they would take if stored stacked.

  t2r_seq inspect 'data/train*.tfrecord'
  t2r_seq inspect 'data/train*.tfrecord' --output spec.json
  t2r_seq inspect data/train.tfrecord --spec my_project.specs:episode_spec
  t2r_seq inspect data/my_store --spec my_project.specs:window_spec
  t2r_seq inspect data/pusht
  t2r_seq inspect runs/pose/export/latest

With --gin_configs in place of FILES it reads some batches of a training's input, and
prints the stages with their shapes, bytes and times, the bottleneck and what to change.

  t2r_seq inspect --gin_configs train.gin"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  add = parser.add_argument
  add(
    "files",
    metavar="FILES",
    nargs="*",
    help=f"{sources.SOURCE_HELP}; or an export, or a lite folder",
  )
  add("--spec", metavar="SPEC", help=console.FORMS)
  sources.add_opening(parser)
  add(
    "--max_records",
    type=int,
    metavar="N",
    help="show only the first N records; --spec still checks all",
  )
  add("--format", choices=tuple(_STARTS), help="print only the spec, in this format")
  add(
    "--output",
    metavar="OUT",
    help="write the spec to a file, whose suffix, .py, .pbtxt or .json, is the format "
    "if --format is missing",
  )
  console.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
  """Prints a table, and the spec or the result of the check."""
  if args.max_records is not None and args.max_records < 1:
    raise console.UsageError(f"--max_records must be >= 1, got {args.max_records}.")
  if args.gin_configs or args.gin_bindings:
    return _explain_pipeline(args)
  if not args.files:
    raise console.UsageError("expected FILES, or --gin_configs of a training.")
  text_format = _text_format(args)
  is_folder = len(args.files) == 1 and os.path.isdir(args.files[0])
  if is_folder and (text := _render_policy(args.files[0])) is not None:
    console.reject_options(args, (), f"for a policy, {args.files[0]}")
    console.show(text)
    return 0
  if sources.is_store(args.files) and not sources.opening_options(args):
    return _show_store(args, text_format)
  if not sources.has_specs(args.files, args):
    console.load_tensorflow()
  if sources.are_records(args.files, args):
    return _show_records(args, text_format)
  return _show_episodes(args, text_format)


def _explain_pipeline(args: argparse.Namespace) -> int:
  if args.files:
    raise console.UsageError("expected FILES or --gin_configs, got both.")
  allowed = ("gin_configs", "gin_bindings")
  console.reject_options(args, allowed, "with --gin_configs and --gin_bindings")
  console.load_tensorflow()
  args.no_model = False
  console.configures_model(args)
  model, generator = console.create_model(), console.create_train_generator()
  if generator is None:
    raise console.UsageError("the gin config has no input_generator_train.")
  generator.set_specification_from_model(model, "train")
  console.show(generator.explain())
  return 0


def _text_format(args: argparse.Namespace) -> str | None:
  """Returns the format of --format or --output; None without them."""
  if not args.format and not args.output:
    return None
  if args.spec:
    raise console.UsageError(
      "--format and --output write the spec of a store, or the one that is proposed "
      "for TFRecord files: leave out --spec."
    )
  if not args.output:
    return args.format
  suffix = os.path.splitext(args.output)[1]
  text_format = args.format or _SUFFIXES.get(suffix)
  if text_format is None:
    raise console.UsageError(
      f"--output {args.output}: expected a name that ends in .py, .pbtxt or .json, or "
      f"a --format, got '{suffix}'."
    )
  files.check_output("inspect: --output", args.output, "a spec", _STARTS[text_format])
  folder = os.path.dirname(os.path.abspath(args.output))
  if not os.path.isdir(folder):
    raise console.UsageError(
      f"--output {args.output}: expected a file in a folder that is there, got no "
      f"folder {folder}. Make it first."
    )
  return text_format


def _spec_option(path: str) -> str:
  """Returns the value of `--spec` for a written file."""
  stem, suffix = os.path.splitext(path)
  return f"{os.path.basename(stem)}:SPEC" if suffix == ".py" else path


def _write_spec(
  spec: Any,
  text_format: str,
  output: str | None,
  description: str,
  questions: Mapping[str, Sequence[str]] | None = None,
) -> None:
  """Prints or writes a spec; in Python, `questions` of conventions become comments."""
  from google.protobuf import text_format as proto_text

  from t2r_seq import specs
  from t2r_seq.specs.assets import create_t2r_assets

  structure = specs.TensorSpecStruct(spec.items())
  if text_format == "python":
    text = _to_python(spec, questions)
  elif text_format == "json":
    text = structure.to_json()
  else:
    text = proto_text.MessageToString(create_t2r_assets(structure))
  if output is None:
    print(text, end="")
    return
  files.write_output(output, text.encode())
  print(f"Wrote {description} to {output}; use it with --spec {_spec_option(output)}")


def _to_python(
  spec: Mapping[str, Any], questions: Mapping[str, Sequence[str]] | None = None
) -> str:
  lines = "".join(
    "".join(f"    # convention={each}\n" for each in (questions or {}).get(path, ()))
    + f"    ({path!r}, {leaf!r}),\n"
    for path, leaf in spec.items()
  )
  names = "ExtendedTensorSpec, TensorSpecStruct"
  names = f"Convention, {names}" if "convention=Convention(" in lines else names
  return (
    "import tensorflow as tf\n"
    f"from t2r_seq.specs import {names}\n\n"
    f"SPEC = TensorSpecStruct(\n  [\n{lines}  ]\n)\n"
  )


def _show_records(args: argparse.Namespace, text_format: str | None) -> int:
  """Prints the contents of records, then proposes a spec or checks a given one."""
  from t2r_seq import records

  args.files = sources.record_files(args.files, args.split)
  expected = console.load_specs(args.spec) if args.spec else None
  summary = records.inspect_records(args.files, args.max_records, allow_damage=True)
  if not summary.num_records:
    raise console.UsageError(f"there are no records in {' '.join(args.files)}.")
  odd = summary.describe_odd_values()
  hint = ""
  if odd:
    spec = args.spec or _spec_option(args.output or "spec.json")
    names = " ".join(map(shlex.quote, args.files))
    hint = f"The proposed spec is without these: t2r_seq doctor {names} --spec {spec}"
  if text_format is None or args.output:
    schemas = summary.describe_schemas()
    console.show("\n".join([str(summary), *schemas]))
    if odd:
      console.show("\n".join(["", *map(console.fill, odd), hint]))
    print()
  elif odd:
    _print_error("\n".join([*odd, hint]))
  if expected is not None:
    return _check(args.files, args.spec, expected, summary)
  proposed = records.propose_spec(summary)
  questions: Mapping[str, Sequence[str]] = {}
  if not summary.damages and any(leaf.is_sequence for leaf in proposed.values()):
    # `doctor` explains records that fail; reading them loads TensorFlow.
    with contextlib.suppress(errors.RecordError), console.silent_libraries():
      from t2r_seq.formats.records import open_records

      source = open_records(args.files, spec=proposed)
      questions = _questions(source, text_format or "python")
  if text_format is None:
    text = _to_python(proposed, questions)
    print(f"A spec that parses them:\n\n{text}", end="")
  else:
    _write_spec(
      proposed, text_format, args.output, "a spec that parses them", questions
    )
  _show_damages(summary)
  return 1 if summary.damages else 0


def _check(
  file_patterns: list[str],
  source: str,
  expected: tuple[Any, Any],
  summary: RecordSummary,
) -> int:
  from t2r_seq.records.check import find_bad_record

  def location(error: errors.RecordError) -> str:
    return str(error).partition(": ")[0]

  bad_record = find_bad_record(file_patterns, *expected)
  if bad_record is None:
    print(f"All records fit {source}.")
  # _show_damages prints the errors of damaged records: do not print them twice.
  elif location(bad_record) not in map(location, summary.damages.values()):
    _print_error(str(bad_record))
  _show_damages(summary)
  return 0 if bad_record is None else 1


def _show_damages(summary: RecordSummary) -> None:
  for name, damage in summary.damages.items():
    salvage = f" Copy what is good: t2r_seq doctor {shlex.quote(name)} --salvage OUT"
    is_other = "wrong file type" in str(damage)
    _print_error(f"{damage}{' Leave it out.' if is_other else salvage}")


def _print_error(message: str) -> None:
  sys.stdout.flush()
  print(f"t2r_seq inspect: {console.printable(message)}", file=sys.stderr)


def _show_episodes(args: argparse.Namespace, text_format: str | None) -> int:
  if args.max_records is not None:
    raise console.UsageError("--max_records is for TFRecord files without options.")
  if args.spec:
    raise console.UsageError(
      "--spec: no effect: it is for TFRecord files and stores that are opened without "
      "other options."
    )
  with console.silent_libraries():  # Explaining damage may load TensorFlow.
    source = sources.open_source(args.files, args)
  if text_format is None or args.output:
    parts = render_episodes(source)
    if source.lengths is not None and len(source.lengths):
      parts.append(_render_lengths(source.lengths))
    if source.metadata:
      parts.append(_render_metadata(dict(source.metadata)))
    console.show("\n\n".join(parts))
  if text_format is not None:
    print(end="\n" if args.output else "")
    questions = _questions(source, text_format)
    _write_spec(source.spec, text_format, args.output, "the spec", questions)
  return 0


def _questions(source: Any, text_format: str) -> Mapping[str, Sequence[str]]:
  """Returns guessed conventions by path, for comments in Python; {} for others."""
  if text_format != "python":
    return {}
  from t2r_seq.episodes.questions import find_questions
  from t2r_seq.episodes.registry import as_episodes

  return find_questions(as_episodes(source))


def render_episodes(source: Episodes) -> list[str]:
  """Returns format and counts of episodes, a table of paths, and notes.

  Episodes are not read.
  """
  from t2r_seq.episodes import splits

  counts = []
  if source.num_episodes is not None:
    counts.append(console.count(source.num_episodes, "episode"))
  if source.lengths is not None:
    counts.append(console.count(int(source.lengths.sum()), "step"))
  rows = []
  for name, leaf in source.fields.items():
    dtype = leaf["dtype"]
    if is_image_format(leaf.get("data_format")):
      dtype = f"{leaf['data_format']} {dtype}"
    if name in source.videos:
      dtype = f"video {dtype}"
    shape = "x".join(map(str, leaf["shape"])) or "scalar"
    per = "step" if leaf.get("is_sequence") else "episode"
    rows.append([name, dtype, shape, per, "yes" if leaf.get("is_optional") else ""])
  table = console.format_table(["path", "dtype", "row", "per", "optional"], rows, ())
  heading = "\n".join([f"{source.path}: {source.format}", ", ".join(counts)]).rstrip()
  notes = [console.fill(note) for note in source.notes]
  if source.splits:
    notes.append(console.fill(splits.describe_splits(source.splits)))
  return [heading, table, *notes]


def _show_store(args: argparse.Namespace, text_format: str | None) -> int:
  from t2r_seq import store
  from t2r_seq.store.summary import summarize_store

  if args.max_records is not None:
    raise console.UsageError("--max_records is for TFRecord files; this is a folder.")
  spec = console.load_store_specs(args.spec) if args.spec else None
  (folder,) = args.files
  if text_format is None or args.output:
    summary = summarize_store(folder, spec)
    console.show("\n\n".join(_render_store(summary, folder, args.spec)))
  if text_format is not None:
    print(end="\n" if args.output else "")
    stored = store.EpisodeStore(folder).spec
    questions = _questions(folder, text_format)
    _write_spec(stored, text_format, args.output, "the store's spec", questions)
  return 0


def _render_store(
  summary: StoreSummary, folder: str, source: str | None
) -> Iterator[str]:
  """Yields the paragraphs on a store; `source` is the name of windowed specs."""
  from t2r_seq.episodes import splits

  num_steps = int(summary.lengths.sum())
  heading = ", ".join(
    [
      console.count(len(summary.lengths), "episode"),
      console.count(num_steps, "step"),
      console.count(len(summary.segments), "segment"),
    ]
  )
  yield f"{summary.path}:\n{heading}"
  yield _render_columns(summary, num_steps)
  if len(summary.segments) > 1:
    header = ["segment", "episodes", "steps", "bytes"]
    rows = [
      [console.shorten(name, _MAX_NAME), *(f"{number:,}" for number in numbers)]
      for name, numbers in summary.segments.items()
    ]
    yield console.format_table(header, rows, header[1:])
  if len(summary.lengths):
    yield _render_lengths(summary.lengths)
    ratio = summary.disk_bytes / max(summary.value_bytes, 1)
    yield (
      f"{summary.disk_bytes:,} bytes on disk, {ratio:.4f} times the "
      f"{summary.value_bytes:,} bytes of the values themselves"
    )
    yield from _render_windows(summary, source)
  if summary.splits:
    yield splits.describe_splits(summary.splits)
    yield from map(console.fill, splits.describe_overlaps(summary.splits))
  if summary.metadata:
    yield _render_metadata(summary.metadata)
  if unfinished := sources.unfinished_conversion(folder, len(summary.lengths)):
    yield unfinished


def _render_columns(summary: StoreSummary, num_steps: int) -> str:
  header = ["column", "dtype", "row", "rows", "per", "bytes", "bytes/step"]
  has_optional = any(c.num_present is not None for c in summary.columns)
  rows = []
  for column in summary.columns:
    row = [
      column.path,
      column.dtype,
      "x".join("n" if size is None else str(size) for size in column.row_shape)
      or "scalar",
      f"{column.num_rows:,}",
      "step" if column.is_per_step else "episode",
      f"{column.num_bytes:,}",
      f"{column.num_bytes / max(num_steps, 1):,.1f}",
    ]
    if has_optional:
      present = column.num_present
      row.append("" if present is None else f"in {present:,} episodes")
    rows.append(row)
  header += ["optional"] if has_optional else []
  numbers = ("rows", "bytes", "bytes/step")
  return console.format_table(header, rows, numbers, is_narrow=True)


def _render_lengths(lengths: np.ndarray) -> str:
  low, high = int(lengths.min()), int(lengths.max())
  line = (
    f"lengths: min {low:,}, median {np.median(lengths):,.6g}, mean "
    f"{lengths.mean():,.1f}, max {high:,}"
  )
  if low == high:
    return line
  # Bins are whole steps wide; the last one may be narrower.
  width = -(-(high - low + 1) // _NUM_BINS)
  counts = np.bincount((lengths - low) // width)
  rows = []
  for number, count in enumerate(counts.tolist()):
    first = low + number * width
    last = min(first + width - 1, high)
    steps = f"{first:,}" if first == last else f"{first:,} to {last:,}"
    # A bin that is not empty shows at least one block.
    bar = "█" * max(round(_BAR * count / int(counts.max())), int(count > 0))
    rows.append([steps, f"{count:,}", bar])
  table = console.format_table(["steps", "episodes", ""], rows, ("steps", "episodes"))
  return f"{line}\n\n{table}"


def _render_windows(summary: StoreSummary, source: str | None) -> Iterator[str]:
  if source is None:
    if any(column.dtype.startswith(VIDEO_FORMATS) for column in summary.columns):
      yield "Frames are inside of videos: a stack of them would be decoded."
      return
    counted = next(w for w in summary.windows if w.padding == "repeat")
    yield (
      f"A stack of 4 frames at every step would take {counted.stacked_bytes:,} bytes, "
      f"{counted.ratio:.2f} times as much."
    )
    return
  first, last = summary.span
  yield (
    f"The store fits {source}: windows from step {first:+d} to {last:+d} of paths that "
    f"take {summary.windows[0].flat_bytes:,} bytes"
  )
  header = ["padding", "windows", "episodes without", "bytes if stacked", "to flat"]
  rows = [
    [
      counted.padding,
      f"{counted.num_windows:,}",
      f"{counted.num_too_short:,}",
      f"{counted.stacked_bytes:,}",
      f"{counted.ratio:.2f} x",
    ]
    for counted in summary.windows
  ]
  yield console.format_table(header, rows, header[1:])


def _render_metadata(metadata: dict[str, Any]) -> str:
  lines = ["metadata:"]
  for key, value in metadata.items():
    text = json.dumps(value)
    if len(text) <= console.WIDTH or not isinstance(value, dict):
      lines.append(console.shorten(f"  {key}: {text}", console.WIDTH))
      continue
    lines.append(f"  {key}:")
    for name, item in value.items():
      text = json.dumps(item)
      size = f" of {len(item):,} values" if isinstance(item, (dict, list)) else ""
      if len(text) > console.WIDTH - len(name) - 8:
        text = f"{type(item).__name__}{size or f' of {len(text):,} characters'}"
      lines.append(f"    {name}: {text}")
  return "\n".join(lines)


_MOST_NUMBERS = 4
_STATE = "policy_state_"
_SHOWN_STATE = {
  "age": "steps of the episode",
  "seed": "of random numbers",
  "history": "frames of earlier steps",
  "recurrent": "recurrent state of the network",
  "chunk": "the action chunk in execution",
}


def _render_policy(path: str) -> str | None:
  """Renders a lite folder or the newest export of a folder; None if it is neither."""
  if os.path.exists(os.path.join(path, lite_policy.LAYOUT_FILE)):
    return "\n\n".join([*_describe_lite(path), _file_sizes(path)])
  names = os.listdir(path)
  if "saved_model.pb" not in names and not any(map(str.isdecimal, names)):
    return None
  from t2r_seq.specs import assets

  exports = assets.list_exports(path)
  if not exports:
    return None
  path = exports[-1].path
  robots = assets.read_record(path, lambda record: record.get("robots")) or [None]
  parts = [part for robot in robots for part in _describe_export(path, robot)]
  return "\n\n".join([*parts, _file_sizes(path)])


def _describe_lite(path: str) -> Iterator[str]:
  layout = lite_policy.Layout.read(path)
  yield (
    f"{path}:\na lite policy of step {layout.global_step:,}, {layout.weights} weights"
  )
  masks = {window.mask for window in layout.windows.values()}
  rows = []
  for name, leaf in layout.observation.items():
    window = layout.windows.get(name)
    offsets = window.offsets if window else None
    note = "and its mask" if window and window.mask else ""
    if name not in masks:
      rows.append([name, leaf.dtype.name, leaf.shape, offsets, note])
  yield _render_features(rows)
  yield _render_state(layout.state)
  yield console.fill(f"outputs: {', '.join(layout.outputs)}", 0)
  if layout.record is not None:
    yield from _render_record(layout.record)


def _describe_export(path: str, robot: str | None) -> Iterator[str]:
  from t2r_seq.specs import assets, serialization
  from t2r_seq.windows.cut import mask_paths

  t2r_assets = assets.load_t2r_assets_to_file(assets.assets_path(path, robot))
  leaves = {
    name: _leaf(fields)
    for name, fields in serialization.fields_by_path(t2r_assets.feature_spec).items()
  }
  acts = "" if robot is None else f", for the robot {robot}: --robot {robot}"
  yield f"{path}:\nan export of step {t2r_assets.global_step:,}{acts}"
  masks = mask_paths(leaves)
  rows = []
  for name, leaf in leaves.items():
    note = "a sequence" if leaf.is_sequence else ""
    note = "and its mask" if name in masks.values() else note
    if name not in masks:
      rows.append([name, leaf.dtype, leaf.shape, leaf.time_offsets, note])
  yield _render_features(rows)
  state, *record = assets.read_record(path, _export_record, robot)
  signatures = assets.of_robot(assets.read_signatures(path), robot)
  yield from filter(None, [state, _signatures(signatures), *record])


def _leaf(fields: Mapping[str, Any]) -> types.SimpleNamespace:
  """Makes an object of a spec's fields; its shape is that of one step."""
  from t2r_seq.specs.seconds import Seconds

  leaf = types.SimpleNamespace(
    **{"name": None, "time_offsets": None, "is_sequence": False, **fields}
  )
  is_stack = isinstance(leaf.time_offsets, tuple)
  if isinstance(leaf.time_offsets, Mapping):
    leaf.time_offsets = Seconds.from_json_dict(leaf.time_offsets)
    is_stack = leaf.time_offsets.is_stack
  leaf.shape = leaf.shape[1:] if is_stack else leaf.shape
  return leaf


def _export_record(record: Mapping[str, Any]) -> list[str]:
  """Returns the state of an export, or "", then its training and execution."""
  leaf, state = policy_io.Leaf.from_json, record.get("state") or {}
  text = _render_state({path: leaf(each) for path, each in state.items()})
  return [text if state else "", *_render_record(record)]


def _render_features(rows: Iterable[Sequence[Any]]) -> str:
  """Renders a table of (path, dtype, shape of a step, offsets, note)."""
  texts = [
    [path, dtype, _shape(shape), _offsets(offsets), note]
    for path, dtype, shape, offsets, note in rows
  ]
  header = ["observation", "dtype", "one step", "steps seen, 0 is now", ""]
  return console.format_table(header, texts, (), is_narrow=True)


def _render_state(state: Mapping[str, Any]) -> str:
  rows, total = [], 0
  for path, leaf in sorted(state.items()):
    dtype = leaf.dtype.name.replace("object", "string")
    size = 0
    if dtype != "string" and None not in tuple(leaf.shape):
      size = int(np.prod(leaf.shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    total += size
    note = _SHOWN_STATE.get(re.split("[_/]", path)[0], "")
    rows.append([path, dtype, _shape(leaf.shape), f"{size:,}", note])
  header = ["state", "dtype", "shape", "bytes", ""]
  table = console.format_table(header, rows, ("bytes",), is_narrow=True)
  return f"{table}\n{total:,} bytes of state for each environment"


def _signatures(
  signatures: Mapping[str, tuple[list[str], list[str]]],
) -> str:
  def names(tensors: list[str]) -> str:
    keys = [key for key in tensors if not key.startswith(_STATE)]
    keys += ["the state"] if len(keys) < len(tensors) else []
    return ", ".join(keys) or "nothing"

  lines = [
    console.fill(f"{name}: takes {names(takes)}, gives {names(gives)}")
    for name, (takes, gives) in sorted(signatures.items())
  ]
  return "\n".join(["signatures:", *lines])


def _render_record(record: Mapping[str, Any]) -> Iterator[str]:
  """Yields padding, control period, execution and normalization of a policy."""
  padding, period = record["padding"], record["control_period"]
  lines = [f"padding: {padding if isinstance(padding, str) else ', '.join(padding)}"]
  if period is not None:
    lines.append(f"control period: {1e3 * period:.4g} ms ({1 / period:.4g} Hz)")
  if execution := record["execution"]:
    averaged = execution["ensemble_decay"]
    note = "" if averaged is None else f", averaged with a decay of {averaged:g}"
    outputs = ", ".join(execution["outputs"])
    lines.append(f"chunks of {outputs}: {execution['num_executed']} executed{note}")
  if sources := record.get("source_preprocessing"):
    listed = policy_io.list_stages(sources)
    lines.append(f"not in the export, done by training's input before: {listed}")
  yield "\n".join(console.fill(line, 0) for line in lines)
  if constants := record.get("normalization"):
    rows = [
      [path, each["mode"], _numbers(each["center"]), _numbers(each["scale"])]
      for path, each in constants.items()
    ]
    header = ["normalised inside", "mode", "center", "scale"]
    yield console.format_table(header, rows, (), is_narrow=True)


def _file_sizes(path: str) -> str:
  places = [os.path.join(at, name) for at, _, names in os.walk(path) for name in names]
  sizes = {os.path.relpath(place, path): os.path.getsize(place) for place in places}
  rows = [[name, f"{size:,}"] for name, size in sorted(sizes.items())]
  table = console.format_table(["file", "bytes"], rows, ("bytes",), is_narrow=True)
  return f"{table}\n{sum(sizes.values()):,} bytes on disk"


def _shape(shape: Sequence[Any]) -> str:
  return "x".join("?" if size is None else str(size) for size in shape) or "scalar"


def _offsets(offsets: Any) -> str:
  if offsets is None:
    return "the current step"
  if isinstance(offsets, str) or not isinstance(offsets, Sequence):
    return str(offsets)
  texts = [str(offset) for offset in offsets]
  if len(texts) > 8:
    texts = [*texts[:3], "...", *texts[-2:]]
  return " ".join(texts)


def _numbers(values: Any) -> str:
  flat = np.ravel(np.asarray(values, np.float64))
  more = f" ... of {flat.size:,}" if flat.size > _MOST_NUMBERS else ""
  return " ".join(f"{value:.4g}" for value in flat[:_MOST_NUMBERS]) + more
