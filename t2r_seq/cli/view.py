"""`t2r_seq view`: a page to look at episodes, and to find the bad ones."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from t2r_seq.cli import console, sources

if TYPE_CHECKING:
  from t2r_seq.viewing.survey import Survey

SUMMARY = "make a page to look at episodes, and to find the bad ones"
DESCRIPTION = """Writes one HTML file, which needs no server and no network: frames,
curves and language at each step, histograms of the set, and all episodes in the order
of their outlier scores, with the reason. Tick-boxes save a keep-list of episodes.

  t2r_seq view my_store
  t2r_seq view 'data/train*.tfrecord' --spec my_project.specs:episode_spec -o page.html
  t2r_seq view my_store --gin_configs train.gin    (the windows as the model sees them)
  t2r_seq view my_store --export runs/pose/export/latest  (and what it would have done)
  t2r_seq view my_store --export a/export/best b/export/best  (two, side by side)
  t2r_seq view real.lerobot simulated.hdf5 -o both.html   (side by side)
  t2r_seq view my_store --episodes 3,17 -o two.html       (these, in full)

SOURCE is any data set that `convert` reads. With one --export, the model's code is that
of the gin config in the export, as for `verify`."""
_MOST_PRINTED = 5
_REASON = 62


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  add = parser.add_argument
  add("sources", metavar="SOURCE", nargs="+", help="a data set; two are side by side")
  add("-o", "--output", metavar="PAGE", default="view.html", help="page (view.html)")
  add(
    "--spec",
    metavar="SPEC",
    help=f"specs of records, or of windows, with time offsets: {console.FORMS}",
  )
  sources.add_opening(parser)
  sources.add_episodes(parser)
  add("--export", metavar="EXPORT", nargs="+", help="one or two exports, or folders")
  console.add_arguments(parser)
  add("--no_model", action="store_true", help="do not use the model's code")
  add("--max_mb", type=float, default=20.0, metavar="MB", help="maximum page size (20)")
  add("--png", metavar="FILE", help="also write a contact sheet of the worst outliers")
  add("--rrd", metavar="FILE", help="also write a Rerun recording of all episodes")


def run(args: argparse.Namespace) -> int:
  """Writes the page; prints what it shows, and the outliers."""
  if not 0 < args.max_mb < math.inf:
    raise console.UsageError(f"--max_mb must be finite and > 0, got {args.max_mb:g}.")
  console.load_tensorflow()
  from t2r_seq import viewing, windows
  from t2r_seq.policies.policy_model import operative_config_path
  from t2r_seq.progress import Progress

  config_path = model = None
  predictors = [console.load_export(path) for path in args.export or ()]
  if len(predictors) == 1:
    config_path = operative_config_path(predictors[0].model_path)
  if console.configures_model(args, config_path):
    model = console.create_model()
  spec = console.load_store_specs(args.spec) if args.spec else None
  flat = None if spec is None else windows.flat_specs(spec)
  made = viewing.view(
    [sources.open_source(path, args, flat) for path in args.sources],
    args.output,
    spec=spec,
    model=model,
    predictor=predictors or None,
    max_bytes=round(args.max_mb * 1e6),
    png=args.png,
    rrd=args.rrd,
    progress=Progress(),
  )
  for survey, chosen in zip(made.surveys, made.page.chosen, strict=True):
    parts, viewer = _render(survey, chosen), survey.viewer
    unfinished = sources.unfinished_conversion(viewer.path, viewer.num_episodes or 0)
    parts += [unfinished] if unfinished else []
    console.show("\n\n".join(parts) + "\n")
  paths = [made.page.path, *(path for path in (args.png, args.rrd) if path)]
  console.show(f"Written: {', '.join(paths)} ({made.page.num_bytes / 1e6:.1f} MB)")
  return 0


def _render(survey: Survey, chosen: str) -> list[str]:
  num_steps = sum(each.num_steps for each in survey.episodes)
  heading = (
    f"{survey.viewer.path}: {console.count(len(survey.episodes), 'episode')}, "
    f"{console.count(num_steps, 'step')}\n{chosen}"
  )
  outliers = [each for each in survey.ranked if each.reasons]
  if not outliers:
    return [heading, "No episode stands out."]
  lengths = {each.number: each.num_steps for each in survey.episodes}
  rows = [
    [
      str(each.number),
      f"{lengths[each.number]:,}",
      f"{each.score:.1f}",
      console.shorten(each.reasons[0].text, _REASON),
    ]
    for each in outliers[:_MOST_PRINTED]
  ]
  header = ["episode", "steps", "score", "because"]
  table = console.format_table(header, rows, header[:3])
  more = len(outliers) - len(rows)
  return [heading, table + (f"\nand {more} more, on the page" if more else "")]
