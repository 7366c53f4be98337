"""`t2r_seq predict`: asks an exported model for its outputs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from t2r_seq.cli import console

SUMMARY = "print what an exported model predicts for records, or for random inputs"
DESCRIPTION = """Loads the newest export of a folder and prints its outputs.

An export parses records by itself, and knows what its inputs look like: no model code
is needed. For windowed features the prediction is that of an episode's last step.

  t2r_seq predict runs/pose/export/latest --records 'data/test*.tfrecord'
  t2r_seq predict runs/pose/export/latest --random --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  parser.add_argument("export_dir", metavar="EXPORT_DIR", help="holds the exports")
  source = parser.add_mutually_exclusive_group(required=True)
  source.add_argument("--records", metavar="FILES", help="TFRecord files or patterns")
  source.add_argument(
    "--random", action="store_true", help="random inputs that fit the specs"
  )
  parser.add_argument(
    "--max_records", type=int, default=5, metavar="N", help="how many inputs (5)"
  )
  parser.add_argument("--seed", type=int, default=0, help="of the random inputs (0)")
  parser.add_argument(
    "--json", action="store_true", help="one JSON object a line, in full precision"
  )


def run(args: argparse.Namespace) -> int:
  """Prints one line of outputs per input."""
  if args.max_records < 1:
    raise console.UsageError(f"--max_records must be >= 1, got {args.max_records}.")
  console.load_tensorflow()
  predictor = console.load_export(args.export_dir)
  if args.random:
    outputs = _predict_random(predictor, args.max_records, args.seed)
  else:
    outputs = _predict_records(predictor, args.records, args.max_records)
  print(_render(outputs, args.json))
  return 0


def _predict_random(predictor: Any, count: int, seed: int) -> Mapping[str, Any]:
  """Predicts for random inputs."""
  from t2r_seq import specs

  inputs = specs.make_random_numpy(
    predictor.get_feature_specification(), batch_size=count, seed=seed
  )
  return predictor.predict(inputs)


def _predict_records(
  predictor: Any, file_patterns: str, count: int
) -> Mapping[str, Any]:
  """Predicts for the first records of the files."""
  from t2r_seq import records, windows

  _, filenames = records.get_data_format_and_filenames(file_patterns)
  dataset = records.record_dataset(filenames).take(count)
  flat = windows.flat_specs(predictor.get_feature_specification())
  with records.explain_failures(filenames, flat):
    serialized = list(dataset.as_numpy_iterator())
    if not serialized:
      raise console.UsageError(f"there are no records in {file_patterns}.")
    return predictor.predict_records(serialized)


def _render(outputs: Mapping[str, Any], as_json: bool) -> str:
  """Returns the outputs, one line an input."""
  names = sorted(outputs)
  count = len(outputs[names[0]])
  if as_json:
    return "\n".join(
      json.dumps({name: console.to_json(outputs[name][row]) for name in names})
      for row in range(count)
    )
  rows = [
    [str(row), *[console.format_value(outputs[name][row]) for name in names]]
    for row in range(count)
  ]
  return console.format_table(["input", *names], rows)
