"""`t2r_seq inspect`: shows what data or policies hold, and whether specs fit."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from t2r_seq import files
from t2r_seq.cli import console, sources
from t2r_seq.specs.names import VIDEO_FORMATS

if TYPE_CHECKING:
  from t2r_seq import errors
  from t2r_seq.episodes import Episodes
  from t2r_seq.records.inspect import RecordSummary
  from t2r_seq.store.summary import StoreSummary

_MAX_NAME = 36
_NUM_BINS = 8
_BAR = 40


def render_summary(summary: StoreSummary, source: str | None) -> str:
  """Renders what a store holds.

  Args:
    summary: of `summarize_store`.
    source: where the specs of the windows come from; None for the usual stacks.
  Returns:
    Lines of at most 100 columns, joined.
  """
  from t2r_seq.episodes import splits

  num_steps = int(summary.lengths.sum())
  heading = ", ".join(
    [
      console.count(len(summary.lengths), "episode"),
      console.count(num_steps, "step"),
      console.count(len(summary.segments), "segment"),
    ]
  )
  parts = [f"{summary.path}:\n{heading}", _columns(summary, num_steps)]
  if len(summary.segments) > 1:
    parts.append(_segments(summary))
  if len(summary.lengths):
    parts += [_lengths(summary.lengths), _bytes(summary)]
    parts.append(_windows(summary, source))
  if summary.splits:
    parts.append(splits.describe_splits(summary.splits))
    parts += map(console.fill, splits.describe_overlaps(summary.splits))
  if summary.metadata:
    parts.append(_metadata(summary.metadata))
  return "\n\n".join(parts)


def render_episodes(source: Episodes) -> list[str]:
  """Renders what is known of episodes before they are read.

  Args:
    source: the episodes.
  Returns:
    Parts of a text: the format and the number of episodes, their paths, notes.
  """
  from t2r_seq import specs
  from t2r_seq.episodes import splits

  counts = []
  if source.num_episodes is not None:
    counts.append(console.count(source.num_episodes, "episode"))
  if source.lengths is not None:
    counts.append(console.count(int(source.lengths.sum()), "step"))
  rows = []
  for name, leaf in source.spec.items():
    dtype = leaf.dtype.name
    if specs.is_encoded_image_spec(leaf):
      dtype = f"{leaf.data_format} {dtype}"
    if name in source.videos:
      dtype = f"video {dtype}"
    shape = "x".join(map(str, leaf.shape.as_list())) or "scalar"
    per = "step" if leaf.is_sequence else "episode"
    rows.append([name, dtype, shape, per, "yes" if leaf.is_optional else ""])
  table = console.format_table(["path", "dtype", "row", "per", "optional"], rows, ())
  heading = "\n".join([f"{source.path}: {source.format}", ", ".join(counts)]).rstrip()
  notes = [console.fill(note) for note in source.notes]
  if source.splits:
    notes.append(console.fill(splits.describe_splits(source.splits)))
  return [heading, table, *notes]


def _columns(summary: StoreSummary, num_steps: int) -> str:
  header = ["column", "dtype", "row", "rows", "per", "bytes", "bytes/step"]
  has_optional = any(c.num_present is not None for c in summary.columns)
  rows = []
  for column in summary.columns:
    row = [
      column.path,
      column.dtype,
      "x".join(map(str, column.row_shape)) or "scalar",
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


def _segments(summary: StoreSummary) -> str:
  header = ["segment", "episodes", "steps", "bytes"]
  rows = [
    [console.shorten(name, _MAX_NAME), *(f"{number:,}" for number in numbers)]
    for name, numbers in summary.segments.items()
  ]
  return console.format_table(header, rows, header[1:])


def _lengths(lengths: np.ndarray) -> str:
  low, high = int(lengths.min()), int(lengths.max())
  line = (
    f"lengths: min {low:,}, median {np.median(lengths):,.6g}, mean "
    f"{lengths.mean():,.1f}, max {high:,}"
  )
  if low == high:
    return line
  # Whole steps to a bin; the last one may hold fewer.
  width = -(-(high - low + 1) // _NUM_BINS)
  counts = np.bincount((lengths - low) // width)
  rows = []
  for number, count in enumerate(counts.tolist()):
    first = low + number * width
    last = min(first + width - 1, high)
    steps = f"{first:,}" if first == last else f"{first:,} to {last:,}"
    # What there is shows, however little.
    bar = "█" * max(round(_BAR * count / int(counts.max())), int(count > 0))
    rows.append([steps, f"{count:,}", bar])
  table = console.format_table(["steps", "episodes", ""], rows, ("steps", "episodes"))
  return f"{line}\n\n{table}"


def _bytes(summary: StoreSummary) -> str:
  ratio = summary.disk_bytes / max(summary.value_bytes, 1)
  return (
    f"{summary.disk_bytes:,} bytes on disk, {ratio:.4f} times the "
    f"{summary.value_bytes:,} bytes of the values themselves"
  )


def _windows(summary: StoreSummary, source: str | None) -> str:
  if source is None:
    if any(column.dtype.startswith(VIDEO_FORMATS) for column in summary.columns):
      return "Frames are inside of videos: a stack of them would be decoded."
    counted = next(w for w in summary.windows if w.padding == "repeat")
    return (
      f"A stack of 4 frames at every step would take {counted.stacked_bytes:,} bytes, "
      f"{counted.ratio:.2f} times as much."
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
  first, last = summary.span
  flat = summary.windows[0].flat_bytes
  heading = (
    f"The store fits {source}: windows from step {first:+d} to {last:+d} of paths that "
    f"take {flat:,} bytes"
  )
  table = console.format_table(header, rows, header[1:])
  return f"{heading}\n\n{table}"


def _metadata(metadata: dict[str, Any]) -> str:
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


FORMATS = ("python", "pbtxt", "json")
# First bytes of a written spec. A user's own module with specs is not replaced.
_STARTS = {
  "python": rb"import tensorflow as tf\nfrom t2r_seq.specs import [^\n]*\n\nSPEC = ",
  "pbtxt": rb"feature_spec \{",
  "json": rb'\{\n  "[^\n]*": \{"shape": ',
}
_SUFFIXES = {".py": "python", ".pbtxt": "pbtxt", ".json": "json"}


def format_of(path: str) -> str:
  """Returns the format that a file's suffix stands for.

  Args:
    path: of the file.
  Returns:
    One of FORMATS.
  Raises:
    UsageError: another suffix.
  """
  suffix = os.path.splitext(path)[1]
  if suffix not in _SUFFIXES:
    raise console.UsageError(
      f"--output {path}: expected a name that ends in .py, .pbtxt or .json, or a "
      f"--format, got '{suffix}'."
    )
  return _SUFFIXES[suffix]


def use_of(path: str) -> str:
  """Says how a written file is given to `--spec`."""
  stem, suffix = os.path.splitext(path)
  source = f"{os.path.basename(stem)}:SPEC" if suffix == ".py" else path
  return f"use it with --spec {source}"


def to_text(spec: Mapping[str, Any], text_format: str) -> str:
  """Renders a spec structure.

  Args:
    spec: specs by path.
    text_format: one of FORMATS.
  Returns:
    A Python module with SPEC, a T2RAssets proto with these features, or JSON.
  """
  from google.protobuf import text_format as proto_text

  from t2r_seq import specs

  if text_format == "python":
    return to_python(spec)
  structure = specs.TensorSpecStruct(spec.items())
  if text_format == "json":
    return structure.to_json()
  return proto_text.MessageToString(specs.create_t2r_assets(structure))


def to_python(spec: Mapping[str, Any]) -> str:
  """Renders Python that builds a spec structure, to be pasted into a project.

  Args:
    spec: specs by path.
  Returns:
    Lines, the last with its newline.
  """
  lines = [f"    ({path!r}, {leaf!r})," for path, leaf in spec.items()]
  return "\n".join(
    [
      "import tensorflow as tf",
      "from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct",
      "",
      "SPEC = TensorSpecStruct(",
      "  [",
      *lines,
      "  ]",
      ")",
      "",
    ]
  )


SUMMARY = "show what is in TFRecord files or a store, and whether specs fit"
DESCRIPTION = """Shows the features of TFRecord files, and a spec that would parse them.
Of the folder of an EpisodeStore, shows columns, lengths and bytes; of a dataset of
LeRobot's, a zarr group or an HDF5 file what is in it; of an export, or the folder of
`t2r_seq export --lite`, what the policy sees, remembers and gives, and its files.
--output writes the spec, or that of a store, to a file that --spec takes, here and
elsewhere; --format prints it alone. Of a damaged file it shows the records before the
damage, names the place, and exits with 1.

With --spec it checks every record against specs instead, and exits with 1 at the first
that doesn't fit, naming file, record and feature. A store is checked against specs of
windows: how many it has, and what storing them stacked would take.

  t2r_seq inspect 'data/train*.tfrecord'
  t2r_seq inspect 'data/train*.tfrecord' --output spec.json
  t2r_seq inspect data/train.tfrecord --spec my_project.specs:episode_spec
  t2r_seq inspect data/my_store --spec my_project.specs:window_spec
  t2r_seq inspect data/pusht
  t2r_seq inspect runs/pose/export/latest"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  parser.add_argument(
    "files",
    metavar="FILES",
    nargs="+",
    help="TFRecord files or patterns, the folder of a store, or of an export",
  )
  parser.add_argument("--spec", metavar="SPEC", help=console.FORMS)
  sources.add_opening(parser)
  parser.add_argument(
    "--max_records",
    type=int,
    metavar="N",
    help="show the first N records only; a check is of all",
  )
  parser.add_argument(
    "--format",
    choices=FORMATS,
    help="print the spec, and nothing else, as this",
  )
  parser.add_argument(
    "--output",
    metavar="OUT",
    help="write the spec to a file; .py, .pbtxt or .json, if --format doesn't say",
  )


def run(args: argparse.Namespace) -> int:
  """Prints the table; with a spec also what became of the check."""
  if args.max_records is not None and args.max_records < 1:
    raise console.UsageError(f"--max_records must be >= 1, got {args.max_records}.")
  text_format = _text_format(args)
  if _is_folder(args) and (shown := _policy(args.files[0])) is not None:
    _check_options(args, "this is a policy.")
    console.show(shown)
    return 0
  if sources.is_store(args.files) and not (args.split or args.drop):
    return _show_store(args, text_format)
  console.load_tensorflow()
  if not sources.are_records(args.files, args):
    return _show_episodes(args, text_format)
  from t2r_seq import records

  args.files = sources.record_files(args.files, args.split)
  expected = console.load_specs(args.spec) if args.spec else None
  summary = records.inspect_records(args.files, args.max_records, allow_damage=True)
  if not summary.num_records:
    raise console.UsageError(f"there are no records in {' '.join(args.files)}.")
  odd = records.describe_odd_values(summary)
  if text_format is None or args.output:
    console.show(
      "\n".join([records.format_table(summary), *records.describe_schemas(summary)])
    )
    if odd:
      console.show("\n".join(["", *map(console.fill, odd), _hint(args)]))
    print()
  elif odd:
    _print_error("\n".join([*odd, _hint(args)]))
  if expected is not None:
    return _check(args.files, args.spec, expected, summary)
  _show_spec(records.propose_spec(summary), text_format, args.output)
  _show_damages(summary)
  return 1 if summary.damages else 0


def _hint(args: argparse.Namespace) -> str:
  """Says which command names all values that are unlike the others."""
  spec = args.spec or args.output or "spec.json"
  spec = use_of(spec).rpartition(" ")[2] if spec.endswith(".py") else spec
  names = " ".join(map(shlex.quote, args.files))
  return f"The proposed spec is without these: t2r_seq doctor {names} --spec {spec}"


def _policy(folder: str) -> str | None:
  """Renders an export or a lite folder; None where it is neither."""
  from t2r_seq.cli import inspect_export

  if inspect_export.is_lite(folder):
    return inspect_export.render_lite(folder)
  export = inspect_export.newest_export(folder)
  return None if export is None else inspect_export.render_export(export)


def _check_options(args: argparse.Namespace, hint: str) -> None:
  if args.max_records is not None or args.spec or args.format or args.output:
    raise console.UsageError(
      "--max_records, --spec, --format and --output are for TFRecord files and stores; "
      f"{hint}"
    )


def _is_folder(args: argparse.Namespace) -> bool:
  return len(args.files) == 1 and os.path.isdir(args.files[0])


def _text_format(args: argparse.Namespace) -> str | None:
  """Returns what to write the spec as; None prints what is found for people."""
  if not args.format and not args.output:
    return None
  if args.spec:
    raise console.UsageError(
      "--format and --output are for the spec of a store, or the one that is proposed "
      "for TFRecord files; there is none with --spec."
    )
  if args.output:
    start = _STARTS[args.format or format_of(args.output)]
    files.check_output("inspect: --output", args.output, "a spec", start)
  folder = os.path.dirname(os.path.abspath(args.output or ""))
  if args.output and not os.path.isdir(folder):
    raise console.UsageError(
      f"--output {args.output}: expected a file in a folder that is there, got no "
      f"folder {folder}. Make it first."
    )
  return args.format or format_of(args.output)


def _show_spec(spec: Any, text_format: str | None, output: str | None) -> None:
  if text_format is None:
    print(f"A spec that parses them:\n\n{to_python(spec)}", end="")
  else:
    _write_spec(spec, text_format, output, "a spec that parses them")


def _write_spec(spec: Any, text_format: str, output: str | None, what: str) -> None:
  text = to_text(spec, text_format)
  if output is None:
    print(text, end="")
    return
  files.write_output(output, text.encode())
  print(f"Wrote {what} to {output}; {use_of(output)}")


def _show_store(args: argparse.Namespace, text_format: str | None) -> int:
  """Prints what a store holds, or its spec."""
  from t2r_seq import store

  if args.max_records is not None:
    raise console.UsageError("--max_records is for TFRecord files; this is a folder.")
  spec = console.load_store_specs(args.spec) if args.spec else None
  (folder,) = args.files
  if text_format is None or args.output:
    console.show(_render_store(folder, spec, args.spec))
  if text_format is not None:
    if args.output:
      print()
    stored = store.EpisodeStore(folder).spec
    _write_spec(stored, text_format, args.output, "the store's spec")
  return 0


def _render_store(folder: str, spec: Any, source: str | None) -> str:
  from t2r_seq import store

  summary = store.summarize_store(folder, spec)
  told = sources.unfinished_conversion(folder, len(summary.lengths))
  return "\n\n".join([render_summary(summary, source), *([told] if told else [])])


def _show_episodes(args: argparse.Namespace, text_format: str | None) -> int:
  """Prints what the episodes of any format have, or their spec."""
  if args.max_records is not None or args.spec:
    raise console.UsageError(
      "--max_records and --spec are for TFRecord files and stores; convert this first: "
      f"t2r_seq convert {' '.join(args.files)} a_store"
    )
  source = sources.open_source(args.files, args)
  if text_format is None or args.output:
    parts = render_episodes(source)
    if source.lengths is not None and len(source.lengths):
      parts.append(_lengths(source.lengths))
    if source.metadata:
      parts.append(_metadata(dict(source.metadata)))
    console.show("\n\n".join(parts))
  if text_format is not None:
    if args.output:
      print()
    _write_spec(source.spec, text_format, args.output, "the spec")
  return 0


def _check(
  file_patterns: list[str],
  source: str,
  expected: tuple[Any, Any],
  summary: RecordSummary,
) -> int:
  """Checks all records against the specs."""
  from t2r_seq import records

  found = records.find_bad_record(file_patterns, *expected)
  if found is None:
    print(f"All records fit {source}.")
  elif _place(found) not in map(_place, summary.damages.values()):
    _print_error(str(found))
  _show_damages(summary)
  return 0 if found is None else 1


def _show_damages(summary: RecordSummary) -> None:
  """Says where files are damaged, a line each, and what can be done about it."""
  for name, damage in summary.damages.items():
    salvage = f" Copy what is good: t2r_seq doctor {shlex.quote(name)} --salvage OUT"
    is_other = "wrong file type" in str(damage)
    _print_error(f"{damage}{' Leave it out.' if is_other else salvage}")


def _place(error: errors.RecordError) -> str:
  """Returns which record of which file an error is about."""
  return str(error).partition(": ")[0]


def _print_error(message: str) -> None:
  """Prints on stderr, after the table."""
  sys.stdout.flush()
  print(f"t2r_seq inspect: {console.printable(message)}", file=sys.stderr)
