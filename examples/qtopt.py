"""QT-Opt: a critic of states and actions, and a policy that searches it.

  python examples/qtopt.py --env Pendulum-v1 --steps 10000

The cross-entropy method finds the best action by the critic, in training (for the
target), while collecting, and in the export.
"""

import argparse
import functools
import pathlib

import gymnasium
import numpy as np

from t2r_seq import policies, zoo


def main(argv: list[str] | None = None) -> float:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--env", default="Pendulum-v1", help="with a Box of actions")
  parser.add_argument("--folder", default="qtopt_run")
  parser.add_argument("--steps", type=int, default=2_000, help="in the environment")
  parser.add_argument("--seed", type=int, default=0)
  args = parser.parse_args(argv)
  run = str(pathlib.Path(args.folder) / "run")

  schedule = zoo.OnlineSchedule(
    num_steps=args.steps,
    learning_starts=min(500, args.steps // 4),
    steps_per_round=4,
    updates_per_round=4,
    num_evaluations=1,
    eval_episodes=3,
  )
  zoo.train_online(
    functools.partial(zoo.QTOptModel, hidden_sizes=(64, 64)),
    args.env,
    run,
    schedule,
    batch_size=64,
    seed=args.seed,
  )

  # An episode by the export: its `step` runs the search in the graph, so that the
  # state is encoded once and a step is one call.
  predictor = policies.ExportedSavedModelPredictor(f"{run}/export/best")
  policy = policies.RegressionPolicy(predictor)
  policy.restore()
  policy.reset()
  env = gymnasium.make(args.env)
  observation, _ = env.reset(seed=1)
  total, is_over = 0.0, False
  while not is_over:
    action, _ = policy.sample_action({"observation": np.asarray(observation, "f4")})
    observation, reward, terminated, truncated, _ = env.step(action)
    total, is_over = total + float(reward), terminated or truncated
  print(f"return of one episode: {total:.0f}")
  return total


if __name__ == "__main__":
  main()
