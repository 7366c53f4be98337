"""`t2r_seq collect-eval`: acts with the newest export, while a learner trains."""

from __future__ import annotations

import argparse

from t2r_seq.cli import console

SUMMARY = "collect and evaluate with the newest export, round after round"
DESCRIPTION = """Collects episodes with the newest exported policy, and evaluates it.

A learner in another process trains and exports; this one acts. Which policy, which
environments, and where the steps go is said by gin, as the arguments of
`collect_eval_loop`. With `collect_eval_loop.continuous = True` it goes on with the next
export, up to `max_steps`; else it ends after one round.

  t2r_seq collect-eval --gin_configs actor.gin --gin_bindings \\
    'collect_eval_loop.continuous = True' 'collect_eval_loop.root_dir = "runs/actor0"'

The steps go to a sink: `@ReplaySink()` (a live replay), `@StoreSink()` (an
EpisodeStore) or `@RecordSink()` (TFRecord files). SIGTERM ends the loop between two
steps: a replay keeps the steps of the episode in progress, the other sinks drop it, and
the status is 0. A second SIGTERM ends the process at once."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  console.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
  """Acts; see `t2r_seq.actors.collect_eval_loop` for what can be configured."""
  console.parse(args)
  from t2r_seq import actors

  try:
    # The sink is made before the loop begins, and may wait for a server; the loop has a
    # signal of its own, which ends nothing but waits.
    with actors.StopSignal() as signal, signal.waiting():
      result = actors.collect_eval_loop(stop=signal)
  except actors.Stopped:
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
  how = "Stopped by a signal" if result["was_stopped"] else "Done"
  print(
    f"{how} at the policy of step "
    f"{int(result['global_step'])}: collected {int(result['num_episodes'])} episodes "
    f"({int(result['num_steps'])} steps) in {int(result['num_rounds'])} rounds"
    f"{''.join(f'; {text}' for text in rewards)}."
  )
  return 0
