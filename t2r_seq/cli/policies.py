"""`t2r_seq export`, `import`, `predict` and `verify`: commands on exported policies."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from t2r_seq.cli import console, evaluate, sources
from t2r_seq.cli.gin_commands import Command
from t2r_seq.lite import lite_policy


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("export_dir", metavar="EXPORT", help="an export, or a folder of exports")
  add("out", metavar="OUT", help="the folder to write; new or empty")
  add("--lite", action="store_true", required=True, help="write the form for LiteRT")
  add(
    "--weights",
    default="float32",
    choices=("float32", "float16", "int8"),
    help="how weights are stored (float32)",
  )
  add(
    "--overlap",
    action="store_true",
    default=None,
    help="also write what `lite.OverlappedPolicy` needs, with another copy of the "
    "weights (if the export declares an overlap)",
  )
  console.add_robot(parser)


def _export(args: argparse.Namespace) -> int:
  console.load_tensorflow()
  from t2r_seq import policies

  with console.silent_libraries():
    report = policies.export_lite(
      args.export_dir, args.out, args.weights, overlap=args.overlap, robot=args.robot
    )
  drawn = f"; each call draws {', '.join(report.drawn)}" if report.drawn else ""
  rounding = f" ({', '.join(report.narrow)} became float32)" if report.narrow else ""
  print(
    f"{report.folder}: {report.num_steps} steps of both forms: what the network sees "
    f"is identical, outputs differ by at most {report.max_difference:.1e} of the range "
    f"of an element{rounding}{drawn}."
  )
  return 0


def _add_import_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add(
    "--lerobot",
    required=True,
    metavar="CHECKPOINT",
    help="folder with config.json and model.safetensors, of ACT or Diffusion Policy",
  )
  add("out", metavar="OUT", help="the folder for the export")
  add(
    "--seed",
    type=console.seed,
    help="Diffusion Policy: seed of the noise of each denoising (new noise each time)",
  )


def _import(args: argparse.Namespace) -> int:
  console.load_tensorflow()
  from t2r_seq.zoo.lerobot import import_policy

  with console.silent_libraries():
    path = import_policy(args.lerobot, args.out, args.seed)
  print(f"{path}: acts as {args.lerobot}.")
  return 0


def _add_predict_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("export_dir", metavar="EXPORT_DIR", help="an export, or a folder of exports")
  source = parser.add_mutually_exclusive_group(required=True)
  source.add_argument("--records", metavar="FILES", help="TFRecord files or patterns")
  source.add_argument(
    "--random", action="store_true", help="random inputs that fit the specs"
  )
  add("--max_records", type=int, default=5, metavar="N", help="number of inputs (5)")
  add("--seed", type=console.seed, help="seed of the random inputs (0)")
  add("--json", action="store_true", help="one JSON object per input, not rounded")
  console.add_robot(parser)


def _predict(args: argparse.Namespace) -> int:
  if args.max_records < 1:
    raise console.UsageError(f"--max_records must be >= 1, got {args.max_records}.")
  if args.seed is not None and not args.random:
    raise console.UsageError("--seed: no effect without --random.")
  console.load_tensorflow()
  predictor = console.load_export(args.export_dir, robot=args.robot)
  if args.random:
    outputs = _predict_random(predictor, args.max_records, args.seed or 0)
  else:
    outputs = _predict_records(predictor, args.records, args.max_records)
  print(_render(outputs, args.json))
  return 0


def _predict_random(predictor: Any, count: int, seed: int) -> Mapping[str, Any]:
  from t2r_seq import specs

  inputs = specs.make_random_numpy(
    predictor.get_feature_specification(), batch_size=count, seed=seed
  )
  return predictor.predict(inputs)


def _predict_records(
  predictor: Any, file_patterns: str, count: int
) -> Mapping[str, Any]:
  from t2r_seq import records, windows
  from t2r_seq.records.files import get_data_format_and_filenames

  _, filenames = get_data_format_and_filenames(file_patterns)
  dataset = records.record_dataset(filenames).take(count)
  flat = windows.flat_specs(predictor.get_feature_specification())
  with records.explain_failures(filenames, flat):
    serialized = list(dataset.as_numpy_iterator())
    if not serialized:
      raise console.UsageError(f"there are no records in {file_patterns}.")
    return predictor.predict_records(serialized)


def _render(outputs: Mapping[str, Any], as_json: bool) -> str:
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


_SERVER = "ws://"


def _add_verify_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add(
    "export_dir",
    metavar="EXPORT",
    help="an export, or its folder; a lite folder; or ws://HOST:PORT of a server",
  )
  add("dataset", metavar="DATASET", help="a data set of any format")
  sources.add_opening(parser)
  console.add_arguments(parser)
  add("--no_model", action="store_true", help="do not use the model's code")
  add(
    "--checkpoint",
    metavar="PATH",
    help="expected outputs: those of a checkpoint, or of a run's newest one",
  )
  add(
    "--export",
    metavar="EXPORT",
    help="the export of a lite folder or server, if it has moved",
  )
  add("--statistics", metavar="FILE", help="those of the training data (the model's)")
  add(
    "--source",
    metavar="NAME",
    help="the source of the training mixture that DATASET is like",
  )
  add(
    "--observe",
    metavar="MODULE:NAME",
    help="the robot's code that changes observations: called with arrays by path, and "
    "whether an episode starts; returns arrays by path",
  )
  add(
    "--act",
    metavar="MODULE:NAME",
    help="the robot's code that makes commands of outputs: called with the recorded "
    "actions by name, and whether an episode starts; returns the command",
  )
  add(
    "--episodes", type=int, default=10, metavar="N", help="the first N; 0 for all (10)"
  )
  add(
    "--tolerance",
    type=float,
    metavar="SHARE",
    help="tolerance of outputs, as a share of each element's range (0.005)",
  )
  add(
    "--clock",
    metavar="PATH",
    help="path of the steps' time stamps, or seconds between steps, as for the input "
    "of training; for time offsets in seconds",
  )
  evaluate.add_latency(parser)
  add(
    "--replay",
    nargs="*",
    metavar="NAME=NUMBER",
    help="give each step all values since the step before, as for a robot at another "
    "rate: rate=25 jitter=0.005 drop=0.05 delay=0.02 seed=0 (recorded steps, with the "
    "newest values)",
  )
  console.add_robot(parser)
  add("--strict", action="store_true", help="also exit with 1 if there are warnings")
  add("--json", action="store_true", help="print the report as one JSON object")


def _verify(args: argparse.Namespace) -> int:
  """Prints the report of `verify`; returns the exit status."""
  if args.episodes < 0:
    raise console.UsageError(f"--episodes must be >= 0, got {args.episodes}.")
  evaluate.check_latency(args)
  console.load_tensorflow()
  with contextlib.ExitStack() as stack:
    policy = _load_policy(args.export_dir, stack, args.robot)
    report = _verify_policy(args, policy)
  console.show(json.dumps(report.to_json()) if args.json else report)
  return int(not report.is_identical or bool(args.strict and report.warnings))


def _verify_policy(args: argparse.Namespace, policy: Any) -> Any:
  from t2r_seq import policies, verification
  from t2r_seq.verification.replay import parse_replay

  is_export = isinstance(policy, policies.ExportedSavedModelPredictor)
  if is_export and args.export is not None:
    raise console.UsageError(f"--export: no effect: {args.export_dir} is an export.")
  if not is_export and args.robot is not None:
    raise console.UsageError(f"--robot: no effect: {args.export_dir} has one robot.")
  export = policy if is_export else _find_export(args.export, policy)
  model = reference = None
  if console.configures_model(args, _config_path(policy, export)):
    model = _create_model(policy)
    if args.checkpoint and export is None:
      raise console.UsageError("--checkpoint needs the export: name it by --export.")
    reference = None if export is None else _reference(args.checkpoint, export)
  elif args.checkpoint:
    raise console.UsageError("--checkpoint needs the model's code: name --gin_configs.")
  if reference is None and not is_export:
    reference = export
  return verification.verify(
    policy,
    args.dataset,
    model,
    reference=reference,
    statistics_path=args.statistics,
    observe=console.load_object("--observe", args.observe) if args.observe else None,
    act=console.load_object("--act", args.act) if args.act else None,
    num_episodes=args.episodes or None,
    **({} if args.tolerance is None else {"tolerance": args.tolerance}),
    source=args.source,
    latency=evaluate.latency_of(args, policy.control_period),
    clock=_clock(args.clock),
    replay=None if args.replay is None else parse_replay(args.replay),
    **_opening_options(args),
  )


def _clock(given: str | None) -> str | float | None:
  """Returns --clock as a number of seconds, or as a path."""
  try:
    return None if given is None else float(given)
  except ValueError:
    return given


def _opening_options(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the options of the dataset, with training's options for video frames."""
  import gin

  from t2r_seq.episodes import registry

  given = sources.opening_options(args)
  name = given.get("format")
  chosen = registry.get_format(name) if name else registry.find_format(args.dataset)
  configured = {}
  for name in {"frames_by", "frame_tolerance"} & chosen.options:
    with contextlib.suppress(ValueError):  # Not configured.
      configured[name] = gin.query_parameter(f"LeRobotInputGenerator.{name}")
  return configured | given


def _create_model(policy: Any) -> Any:
  model, robot = console.create_model(), _record(policy).get("robot")
  return model if robot is None else model.as_robot(robot)


def _record(policy: Any) -> Mapping[str, Any]:
  """Returns the policy record of a predictor, lite folder or server, as a dict."""
  from t2r_seq import lite, policies

  if isinstance(policy, policies.AbstractPredictor):
    record = policy.get_policy_record()
    return {} if record is None else record.to_fields()
  if isinstance(policy, lite.LitePolicy):
    return policy.layout.record or {}
  return policy.metadata.get("record") or {}


def _load_policy(
  place: str, stack: contextlib.ExitStack, robot: str | None = None
) -> Any:
  """Loads the policy to verify: a predictor, a lite policy, or a client."""
  from t2r_seq import lite, serving

  if place.startswith(_SERVER):
    host, _, port = place.removeprefix(_SERVER).rstrip("/").rpartition(":")
    if not host or not port.isdecimal():
      raise console.UsageError(f"expected ws://HOST:PORT, got {place}.")
    client = serving.PolicyClient(host, int(port), timeout=60.0)
    stack.callback(client.close)
    return client
  if os.path.exists(os.path.join(place, lite_policy.LAYOUT_FILE)):
    keys = lite_policy.Layout.read(place).outputs
    return lite.LitePolicy(place, keys[0], allow_nan=True)
  return console.load_export(place, robot=robot)


def _find_export(given: str | None, policy: Any) -> Any:
  """Loads the export behind a lite folder or a server; None if it is missing."""
  from t2r_seq import lite, policies

  robot = _record(policy).get("robot")
  if given is not None:
    return console.load_export(given, robot=robot)
  if isinstance(policy, lite.LitePolicy):
    place = policy.layout.export
  else:
    place = str(policy.metadata.get("model", ""))
    if os.path.exists(os.path.join(place, lite_policy.LAYOUT_FILE)):
      place = lite_policy.Layout.read(place).export
  if not place or not policies.list_exports(place):
    return None
  return console.load_export(place, robot=robot)


def _config_path(policy: Any, export: Any) -> str | None:
  """Returns the path at which the training's gin config may be."""
  from t2r_seq import lite
  from t2r_seq.policies.policy_model import OPERATIVE_CONFIG, operative_config_path

  if export is not None:
    return operative_config_path(export.model_path)
  if isinstance(policy, lite.LitePolicy):
    return os.path.join(policy.model_path, OPERATIVE_CONFIG)
  return None


def _reference(checkpoint: str | None, predictor: Any) -> Any:
  """Returns a predictor of a checkpoint; None: the export's, if it still exists."""
  from t2r_seq import policies

  if checkpoint is None:
    # <model_dir>/export/<name>/<version>
    model_dir = os.path.join(predictor.model_path, *[os.pardir] * 3)
    step = predictor.global_step
    checkpoint = os.path.normpath(os.path.join(model_dir, f"model.ckpt-{step}"))
    if not os.path.exists(f"{checkpoint}.index"):
      return None
  reference = policies.CheckpointPredictor(
    _create_model(predictor), checkpoint, timeout=0, allow_nan=True
  )
  if not reference.restore():
    raise console.UsageError(f"there is no checkpoint in {checkpoint}.")
  return reference


EXPORT = Command(
  "write an export as a folder that runs without TensorFlow",
  """Writes the newest export of a folder in another form.

With --lite: for LiteRT, which runs without TensorFlow. `t2r_seq.lite` loads the folder.
It is written only if both forms agree in some random steps.

  t2r_seq export --lite runs/pose/export/latest pose_lite
  t2r_seq export --lite runs/pose/export/latest pose_lite --weights int8""",
  _export,
  _add_export_arguments,
)

PREDICT = Command(
  "print what an exported model predicts for records, or for random inputs",
  """Loads the newest export of a folder and prints its outputs.

An export parses records by itself, and has the specs of its inputs: no model code
is needed. For windowed features the prediction is that of an episode's last step.

  t2r_seq predict runs/pose/export/latest --records 'data/test*.tfrecord'
  t2r_seq predict runs/pose/export/latest --random --json""",
  _predict,
  _add_predict_arguments,
)

VERIFY = Command(
  "check on a dataset that an exported policy sees what training saw",
  """Replays the episodes of a dataset through an export as a robot would,
one observation at a time, and compares every window and mask, to the last bit, and
every preprocessed value that the network gets, to the last place, with those of
training's input pipeline; and the actions with the model's.

  t2r_seq verify runs/pose/export/latest 'data/test*.tfrecord'
  t2r_seq verify runs/pose/export/latest my_store --statistics statistics.json
  t2r_seq verify runs/pose/export/latest pusht --observe my_robot.glue:to_observation
  t2r_seq verify runs/pose/export/latest my_store --latency 0.12 --control_rate 20
  t2r_seq verify pose_lite my_store          # what `t2r_seq export --lite` wrote
  t2r_seq verify ws://10.0.0.5:8000 my_store    # what `t2r_seq serve` serves

The model's code is that of the gin config in the export, or of --gin_configs. With
--no_model preprocessed values are not compared. Expected outputs are those of the
export's checkpoint, if it still exists, and otherwise of the export's own network. For
a lite folder or a server, the export is searched at its old path; if it has moved, give
--export.

The status is 0 if all is identical, and 1 if something differs; with --strict also if
there are warnings, e.g. that the dataset does not fit.""",
  _verify,
  _add_verify_arguments,
)

IMPORT = Command(
  "export a policy that LeRobot trained",
  """Writes an export with the weights of a checkpoint of LeRobot.

The policy is ACT or Diffusion Policy. The export takes raw observations, by LeRobot's
names, and gives the actions that LeRobot's select_action gives, chunks and temporal
ensembling included.

  t2r_seq import --lerobot outputs/train/act/checkpoints/last/pretrained_model policy
  t2r_seq verify policy my.lerobot --no_model && t2r_seq serve policy""",
  _import,
  _add_import_arguments,
)
