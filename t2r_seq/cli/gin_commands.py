"""The commands that gin configures, collect, collect-eval, replay-server; and gin."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from t2r_seq import errors
from t2r_seq.cli import console, gin_registry

STATUS_OF_SIGTERM = 143  # 128 + 15, as shells report a process that SIGTERM ended.


def _collect(args: argparse.Namespace) -> int:
  console.parse(args)
  from t2r_seq import actors
  from t2r_seq.training import arguments
  from t2r_seq.training.stopping import Stopped, StopSignal

  try:
    # A sink may wait for a server when it is created: this signal ends that wait. The
    # collection then has a separate signal, which lets steps finish.
    with StopSignal() as signal, signal.waiting():
      result = actors.collect_episodes(stop=signal)
  except Stopped:
    print("Stopped by a signal before all episodes were collected.", file=sys.stderr)
    return STATUS_OF_SIGTERM
  arguments.warn_of_unread_bindings()
  print(
    f"Collected {result['num_episodes']} episodes ({result['num_steps']} steps, mean "
    f"reward {result['episode_reward']:.4f}){_where(result['files'])}."
  )
  return 0


def _where(files: Sequence[str]) -> str:
  if len(files) > 1:
    return f" in {len(files)} files, {files[0]} to {files[-1]}"
  return f" in {files[0]}" if files else ""


def _collect_eval(args: argparse.Namespace) -> int:
  console.parse(args)
  from t2r_seq import actors
  from t2r_seq.training.stopping import Stopped, StopSignal

  try:
    # See `_collect`.
    with StopSignal() as signal, signal.waiting():
      result = actors.collect_eval_loop(stop=signal)
  except Stopped:
    print("Stopped by a signal before the first round.")
    return 0
  rewards = [
    f"mean reward {result[key]:.4f} in the last {what}"
    for key, what in (
      ("collect/episode_reward", "round"),
      ("eval/episode_reward", "evaluation"),
    )
    if key in result
  ]
  outcome = "Stopped by a signal" if result["was_stopped"] else "Done"
  print(
    f"{outcome} at the policy of step "
    f"{int(result['global_step'])}: collected {int(result['num_episodes'])} episodes "
    f"({int(result['num_steps'])} steps) in {int(result['num_rounds'])} rounds"
    f"{''.join(f'; {text}' for text in rewards)}."
  )
  return 0


def _replay_server(args: argparse.Namespace) -> int:
  console.parse(args)
  from t2r_seq.replay import reverb

  with reverb.ReplayServer() as server:
    print(f"replay-server: at {server.address}", flush=True)
    server.serve()
  print("replay-server: stopped", flush=True)
  return 0


def _gin(args: argparse.Namespace) -> int:
  console.load_configurables()
  for module in args.modules:
    console.allow_project_code()
    importlib.import_module(module)
  if not args.patterns:
    print(gin_registry.render_names(gin_registry.configurables()))
    return 0
  from t2r_seq.zoo.registry import policies

  selected: dict[str, Any] = {}
  for pattern in args.patterns:
    policy = policies().get(pattern.lower())
    if policy is not None:
      print(f"{policy.name}: {policy.summary}. Its choices: {policy.config_file()}\n")
    matching = gin_registry.matching(policy.model_name if policy else pattern)
    if not matching:
      near = errors.nearest(pattern, [*policies(), *gin_registry.configurables()])
      raise console.UsageError(
        f"nothing that gin can configure is called '{pattern}'.{near} To "
        "include a project's configurables: --import MODULE."
      )
    selected |= matching
  print("\n\n".join(gin_registry.render(name, selected[name]) for name in selected))
  return 0


def _add_gin_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    "patterns",
    metavar="PATTERN",
    nargs="*",
    help="names, parts of names, or patterns such as '*Sink'",
  )
  parser.add_argument(
    "--import",
    dest="modules",
    metavar="MODULE",
    action="append",
    default=[],
    help="a module of a project whose configurables are included; can be repeated",
  )


class Command(NamedTuple):
  """A command for `main`.

  Attributes:
    SUMMARY: one line of help.
    DESCRIPTION: the whole help.
    run: runs the command; returns the exit status.
    add_arguments: adds its arguments.
  """

  SUMMARY: str
  DESCRIPTION: str
  run: Callable[[argparse.Namespace], int]
  add_arguments: Callable[[argparse.ArgumentParser], None] = console.add_arguments


COLLECT = Command(
  "run a policy and write its episodes to record files, or a store",
  """Runs a policy in a Gymnasium environment and writes its episodes.

gin binds the policy, environment, specs and files: the arguments of
`collect_episodes`.

  t2r_seq collect --gin_configs research/pose_env/configs/collect_moving.gin \\
    --gin_bindings 'collect_episodes.num_episodes = 200'

Into an EpisodeStore, in place of record files:

  t2r_seq collect --gin_configs collect.gin --gin_bindings \\
    'collect_episodes.output_path = None' 'collect_episodes.sink = @StoreSink()' \\
    'StoreSink.path = "data/train.store"' 'StoreSink.spec = @episode_spec'

SIGTERM ends it between two steps and drops the file in progress; the files before it
are whole. The status is 143 then. `t2r_seq collect-eval` keeps collecting while a
learner trains.""",
  _collect,
)

COLLECT_EVAL = Command(
  "collect and evaluate with the newest export, round after round",
  """Collects episodes with the newest exported policy, and evaluates it.

A learner in another process trains and exports; this one acts. gin binds the policy,
the environments, and where the steps go: the arguments of `collect_eval_loop`. With
`collect_eval_loop.continuous = True` it continues with the next export, up to
`max_steps`; otherwise it ends after one round.

  t2r_seq collect-eval --gin_configs actor.gin --gin_bindings \\
    'collect_eval_loop.continuous = True' 'collect_eval_loop.root_dir = "runs/actor0"'

The steps go to a sink: `@ReplaySink()` (a live replay), `@StoreSink()` (an
EpisodeStore) or `@RecordSink()` (TFRecord files). SIGTERM ends the loop between two
steps: a replay keeps the steps of the episode in progress, the other sinks drop it, and
the status is 0. Another SIGTERM, at least 10 s later, ends the process immediately.""",
  _collect_eval,
)

REPLAY_SERVER = Command(
  "run a replay server, for actors to write to and learners to read from",
  """Runs a Reverb server until SIGTERM.

gin binds its specs, size, sampler, remover and rate limiter: the arguments of
`ReplayServer`. With a checkpoint_dir it resumes from the newest checkpoint there, and
writes one every checkpoint_secs, and when it stops. Needs the extra `reverb`.

  t2r_seq replay-server \\
    --gin_configs research/pose_env/configs/distributed_reverb_server.gin \\
    --gin_bindings 'REPLAY_DIR = "runs/replay"' 'ReplayServer.port = 8000'""",
  _replay_server,
)

GIN = Command(
  "show what gin can configure: names, parameters, defaults",
  """Lists what gin can configure; for a pattern also parameters and defaults.

  t2r_seq gin
  t2r_seq gin StoreInputGenerator
  t2r_seq gin '*decoder*' --import my_project.models""",
  _gin,
  _add_gin_arguments,
)
