"""`t2r_seq export`: writes an export in another form."""

from __future__ import annotations

import argparse

from t2r_seq.cli import console

SUMMARY = "write an export as a folder that runs without TensorFlow"
DESCRIPTION = """Writes the newest export of a folder in another form.

With --lite: for LiteRT, which needs no TensorFlow where it runs. `t2r_seq.lite` loads
the folder. Both forms take some steps first, and have to agree.

  t2r_seq export --lite runs/pose/export/latest pose_lite
  t2r_seq export --lite runs/pose/export/latest pose_lite --weights int8"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  parser.add_argument("export_dir", metavar="EXPORT", help="an export, or their folder")
  parser.add_argument("out", metavar="OUT", help="the folder to write")
  parser.add_argument("--lite", action="store_true", required=True, help="for LiteRT")
  parser.add_argument(
    "--weights",
    default="float32",
    choices=("float32", "float16", "int8"),
    help="how weights are stored (float32)",
  )


def run(args: argparse.Namespace) -> int:
  """Writes the folder, and says what was compared."""
  console.load_tensorflow()
  from t2r_seq import policies

  with console.silent_libraries():
    report = policies.export_lite(args.export_dir, args.out, args.weights)
  rounding = f" ({', '.join(report.narrow)} became float32)" if report.narrow else ""
  print(
    f"{report.folder}: {report.num_steps} steps of both forms: what the network sees "
    f"is identical, outputs differ by at most {report.max_difference:.1e} of the range "
    f"of an element{rounding}."
  )
  return 0
