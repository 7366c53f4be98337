"""`t2r_seq stats`: mean, std, quantiles of every path, to a table and a JSON file."""

from __future__ import annotations

import argparse
import fnmatch
import os
from collections.abc import Sequence
from typing import Any

from t2r_seq.cli import console, sources

SUMMARY = "mean, std, min, max and quantiles of every path, for normalisation"
DESCRIPTION = """Computes statistics of a data set of any format, in one pass.

Mean and standard deviation are exact; quantiles are within the printed rank error.
Writes a JSON file, which the preprocessor Normalize reads, and prints a table.

  t2r_seq stats my_store
  t2r_seq stats 'data/train*.tfrecord' --spec my_project.specs:episode_spec
  t2r_seq stats my_store --transform my_project.actions:to_deltas --output deltas.json
  t2r_seq stats my_store --gin_configs train.gin   (the input of Normalize)
  t2r_seq stats my_store --policy act --gin_bindings 'ACTModel.conventions = {...}'
  t2r_seq stats my_store --check

With --check it computes nothing, and exits with 1 if the JSON file is missing or the
source has changed since."""
_FILENAME = "statistics.json"
_OF_SPLIT, _OF_EPISODES = "{}.statistics.json", "episodes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  add = parser.add_argument
  add("source", metavar="SOURCE", nargs="+", help=sources.SOURCE_HELP)
  add("--spec", metavar="SPEC", help=console.FORMS)
  sources.add_opening(parser)
  sources.add_episodes(parser)
  add(
    "--transform",
    metavar="MODULE:NAME",
    help="a function of an episode, a preprocessor or a model, whose outputs count",
  )
  add("--policy", metavar="NAME", help="a ready policy: count inputs of its Normalize")
  add("--images", action="store_true", help="decode images, for statistics per channel")
  console.add_arguments(parser)
  add(
    "-o",
    "--output",
    metavar="FILE",
    help=f"JSON file; by default {_FILENAME} in the folder, or beside the files; for a "
    "split SPLIT.statistics.json, for --episodes episodes.statistics.json",
  )
  add("--elements", action="store_true", help="show a line for each element")
  add("--check", action="store_true", help="only check whether the file is up to date")
  add("--num_workers", type=int, metavar="N", help="threads (one per core, at most 8)")


def run(args: argparse.Namespace) -> int:
  """Computes or checks; prints the table."""
  if args.num_workers is not None and args.num_workers < 1:
    raise console.UsageError(f"--num_workers must be >= 1, got {args.num_workers}.")
  ignored = {"spec", "transform", "images", "num_workers"}
  if args.check:
    ignored |= {"policy", "gin_configs", "gin_bindings"}
    reason = "with --check, which computes nothing"
    console.reject_options(args, {*vars(args)} - ignored, reason)
  elif args.policy:
    console.reject_options(args, {*vars(args)} - ignored, "with --policy")
  console.load_tensorflow()
  if args.policy:
    console.read_gin(args)
  from absl import logging

  from t2r_seq import statistics
  from t2r_seq.statistics.compute import check_statistics

  logging.set_verbosity(logging.INFO)  # Logs what it infers.
  source: Any
  if sources.are_records(args.source, args) and args.episodes is None:
    source = sources.record_files(args.source, args.split)
  else:
    source = sources.open_source(args.source, args)
  part = args.split if args.episodes is None else _OF_EPISODES
  output = args.output or _default_output(args.source, part)
  if args.check:
    _print(check_statistics(output, source), args.elements)
    print(f"{output} is up to date.")
    return 0
  if args.output:  # Patterns of files leave out the default names.
    _check_output(output, args.source)
  if args.policy:
    _print(_policy_statistics(args, output), args.elements)
    console.show(f"Written to {output}")
    return 0
  transform, cut = _transform(args)
  spec = console.load_store_specs(args.spec) if args.spec else None
  conversion = None
  if spec is not None and transform is None:
    conversion = _conversion(args, source)
  measured = statistics.compute_statistics(
    source,
    output,
    spec=spec if conversion is None else None,
    transform=transform if conversion is None else conversion,
    cut=cut,
    images=args.images,
    num_workers=args.num_workers,
  )
  _print(measured, args.elements)
  console.show(f"Written to {output}")
  return 0


def _policy_statistics(args: argparse.Namespace, output: str) -> Any:
  if len(args.source) > 1:
    raise console.UsageError("--policy takes one SOURCE.")
  from t2r_seq.zoo.train import policy_statistics

  return policy_statistics(
    args.policy,
    args.source[0],
    output,
    gin_configs=args.gin_configs,
    gin_bindings=args.gin_bindings,
    open_options=sources.opening_options(args),
    episodes=sources.parse_episodes(args.episodes),
  )


def _conversion(args: argparse.Namespace, source: Any) -> Any:
  """Returns the stage that converts data to the conventions of --spec, or None."""
  from t2r_seq import preprocessors, specs
  from t2r_seq.episodes.registry import open_episodes

  features, labels = console.load_window_specs(args.spec)
  named = {
    leaf.name or path: leaf.convention
    for structure in (features, labels or {})
    for path, leaf in specs.flatten_spec_structure(structure).items()
  }
  if not any(named.values()):
    return None
  is_files = isinstance(source, list)
  stored = (open_episodes(source[0]) if is_files else source).spec
  data = {
    name: stored[name].convention
    for name in named
    if name in stored and stored[name].convention
  }
  if all(data[name] in (named[name], None) for name in data):
    return None
  return preprocessors.ConvertConventions(
    lambda mode: features, lambda mode: labels or {}, data
  )


def _transform(args: argparse.Namespace) -> tuple[Any, Any]:
  """Returns the transform, and the `Cut` of the training, if gin configures it."""
  if args.transform:
    console.allow_project_code()
  if not args.gin_configs and not args.gin_bindings:
    return args.transform, None
  if args.transform:
    raise console.UsageError(
      "--transform and --gin_configs both name a transform. Leave one of them out."
    )
  import gin

  args.no_model = False
  console.configures_model(args)
  # The file that Normalize would read may be the one to write.
  with gin.unlock_config():
    gin.bind_parameter("Normalize.modes", {"*": None})
    gin.bind_parameter("Normalize.statistics_path", "")
  model = console.create_model()
  generator = console.create_train_generator()
  if generator is None:
    return model, None
  generator.set_padding(model.padding)
  return model, generator.cut


def _default_output(source: Sequence[str], part: str | None) -> str:
  from t2r_seq.records.files import get_data_format_and_filenames

  filename = _FILENAME if part is None else _OF_SPLIT.format(part)
  if len(source) == 1 and os.path.isdir(source[0]):
    return os.path.join(source[0], filename)
  _, filenames = get_data_format_and_filenames(source)
  return os.path.normpath(os.path.join(os.path.dirname(filenames[0]), filename))


def _check_output(output: str, source: Sequence[str]) -> None:
  """Raises UsageError if a pattern of the source matches the output."""
  path = os.path.abspath(output)
  for pattern in ",".join(source).split(","):
    if fnmatch.fnmatch(path, os.path.abspath(pattern.strip())):
      raise console.UsageError(
        f"{pattern} would match the statistics, {output}. Name another file with "
        "--output, or the data files more exactly."
      )


def _print(measured: Any, elements: bool) -> None:
  from t2r_seq.statistics import statistics as statistics_lib

  if measured.lengths is None:
    print(f"{measured.num_items} records")
  else:
    print(statistics_lib.describe_lengths(measured.lengths))
  if measured.transform:
    print(f"after {measured.transform}")
  rows = statistics_lib.table_rows(measured, elements)
  print()
  print(console.format_table(statistics_lib.HEADER, rows, statistics_lib.HEADER[2:]))
  print()
  for line in statistics_lib.describe_problems(measured):
    console.show(line)
