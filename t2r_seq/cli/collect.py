"""`t2r_seq collect`: runs a policy in an environment and writes its episodes."""

from __future__ import annotations

import argparse

from t2r_seq.cli import gin_flags

SUMMARY = "run a policy and write its episodes to record files"
DESCRIPTION = """Runs a policy in a Gymnasium environment and writes its episodes.

Which policy, environment, specs and files is said by gin, as the arguments of
`collect_episodes`.

  t2r_seq collect --gin_configs research/pose_env/configs/collect_moving.gin \\
    --gin_bindings 'collect_episodes.num_episodes = 200'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  gin_flags.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
  """Collects; see `t2r_seq.actors.collect_episodes` for what can be configured."""
  gin_flags.parse(args)
  from t2r_seq import actors

  result = actors.collect_episodes()
  files = result["files"]
  where = (
    files[0] if len(files) == 1 else f"{len(files)} files, {files[0]} to {files[-1]}"
  )
  print(
    f"Collected {result['num_episodes']} episodes ({result['num_steps']} steps, mean "
    f"reward {result['episode_reward']:.4f}) in {where}."
  )
  return 0
