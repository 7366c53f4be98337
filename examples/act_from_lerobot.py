"""ACT from a LeRobot data set: look, train, verify, act.

  python examples/act_from_lerobot.py --dataset my.lerobot --folder run --steps 20000

The command line does the same, and Python lets you inspect each stage:

  t2r_seq train --policy act --size tiny --steps 20000 --dataset my.lerobot \\
    --model_dir run/run
"""

import argparse
import pathlib

import numpy as np

import t2r_seq
from t2r_seq import cli, policies, store, zoo
from t2r_seq.specs import ExtendedTensorSpec as Spec


def write_demonstrations(path: str) -> str:
  """Writes a small LeRobot folder: a point moves to a target."""
  rng = np.random.default_rng(0)
  columns = {
    # State: position and target. Action: the next position.
    "observation.state": Spec((4,), np.float32, "observation.state", is_sequence=True),
    "action": Spec((2,), np.float32, "action", is_sequence=True),
  }
  with store.EpisodeStore.create(path + ".store", columns, {"fps": 10}) as writer:
    for _ in range(20):
      position, target = rng.uniform(-1, 1, (2, 2))
      states, actions = [], []
      for _ in range(30):
        states.append(np.concatenate([position, target]))
        position = position + 0.2 * (target - position)
        actions.append(position)
      writer.append_episode(
        {
          "observation.state": np.asarray(states, np.float32),
          "action": np.asarray(actions, np.float32),
        }
      )
  t2r_seq.convert.convert(path + ".store", path, task="reach the target")
  return path


def main(argv: list[str] | None = None) -> np.ndarray:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--dataset", help="LeRobot folder (default: writes a small one)")
  parser.add_argument("--folder", default="act_run", help="run folder (act_run)")
  parser.add_argument("--size", default="tiny", choices=("tiny", "base"))
  parser.add_argument("--steps", type=int, default=200)
  parser.add_argument("--bindings", nargs="*", default=[], help="extra gin bindings")
  args = parser.parse_args(argv)
  folder = pathlib.Path(args.folder)
  dataset = args.dataset or write_demonstrations(str(folder / "reach.lerobot"))

  # 1. Look. Any format is opened by the same function.
  episodes = t2r_seq.open_episodes(dataset)
  print(f"{len(episodes.lengths)} episodes, {episodes.lengths.sum()} steps")
  signature = zoo.find_signature(episodes)
  print(f"the policy reads {signature.describe(with_language=False)}")

  # 2. Train. Statistics, the split and the masks of padded chunks follow from the data;
  # every number is a gin binding (`t2r_seq gin act` lists them).
  run = str(folder / "run")
  bindings = [f"NUM_TRAIN_STEPS = {args.steps}", *args.bindings]
  zoo.train_policy("act", dataset, run, args.size, gin_bindings=bindings)

  # 3. Verify: replays episodes step by step through the export, and compares what the
  # network sees with what training saw, bit for bit.
  export = f"{run}/export/latest"
  assert cli.main(["verify", export, dataset, "--episodes", "2"]) == 0

  # 4. Act. The predictor keeps the state: the current chunk, and with `--size base` the
  # earlier ones, for the ensemble.
  policy = policies.RegressionPolicy(policies.ExportedSavedModelPredictor(export))
  policy.restore()
  policy.reset()
  first = episodes.read(0, stop=1)
  observed = [*signature.states, *signature.cameras]
  observation = {path: first[path][0] for path in observed}
  action, _ = policy.sample_action(observation)
  print(f"action {np.round(action, 3)}, demonstrated {np.round(first['action'][0], 3)}")
  return action


if __name__ == "__main__":
  main()
