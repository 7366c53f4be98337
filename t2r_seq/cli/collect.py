"""`t2r_seq collect`: runs a policy in an environment and writes its episodes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from t2r_seq.cli import console

SUMMARY = "run a policy and write its episodes to record files, or a store"
DESCRIPTION = """Runs a policy in a Gymnasium environment and writes its episodes.

Which policy, environment, specs and files is said by gin, as the arguments of
`collect_episodes`.

  t2r_seq collect --gin_configs research/pose_env/configs/collect_moving.gin \\
    --gin_bindings 'collect_episodes.num_episodes = 200'

Into an EpisodeStore, in place of record files:

  t2r_seq collect --gin_configs collect.gin --gin_bindings \\
    'collect_episodes.output_path = None' 'collect_episodes.sink = @StoreSink()' \\
    'StoreSink.path = "data/train.store"' 'StoreSink.spec = @episode_spec'

SIGTERM ends it between two steps and drops the file in progress; the files before it
are whole. The status is 143 then. `t2r_seq collect-eval` goes on collecting while a
learner trains."""

STATUS_OF_SIGTERM = 143


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  console.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
  """Collects; see `t2r_seq.actors.collect_episodes` for what can be configured."""
  console.parse(args)
  from t2r_seq import actors

  try:
    # The sink is made before the collection begins, and may wait for a server; the
    # collection has a signal of its own, which ends nothing but waits.
    with actors.StopSignal() as signal, signal.waiting():
      result = actors.collect_episodes(stop=signal)
  except actors.Stopped:
    print("Stopped by a signal before all episodes were collected.", file=sys.stderr)
    return STATUS_OF_SIGTERM
  console.warn_of_unread_bindings()
  print(
    f"Collected {result['num_episodes']} episodes ({result['num_steps']} steps, mean "
    f"reward {result['episode_reward']:.4f}){_where(result['files'])}."
  )
  return 0


def _where(files: Sequence[str]) -> str:
  """Says where the episodes are, as far as record files tell."""
  if len(files) > 1:
    return f" in {len(files)} files, {files[0]} to {files[-1]}"
  return f" in {files[0]}" if files else ""
