"""Two robots of different sizes and rates in one policy: train, verify, act.

  python examples/two_robots.py --dataset ur5.lerobot franka.hdf5 --folder run

`t2r_seq train --policy mlp --dataset A B --model_dir RUN --size tiny` does the first
part; `t2r_seq verify --robot` and `t2r_seq serve --robot` do the rest.
"""

import argparse
import pathlib

import numpy as np

import t2r_seq
from t2r_seq import cli, policies, store, zoo
from t2r_seq.specs import ExtendedTensorSpec as Spec


def write_demonstrations(path: str, size: int, hertz: int) -> str:
  """Writes a small store: a point of `size` coordinates moves to a target."""
  rng = np.random.default_rng(size)
  columns = {
    # State: position and target. Action: the next position.
    "observation.state": Spec(
      (2 * size,), np.float32, "observation.state", is_sequence=True
    ),
    "action": Spec((size,), np.float32, "action", is_sequence=True),
  }
  with store.EpisodeStore.create(path, columns, {"fps": hertz}) as writer:
    for _ in range(20):
      position, target = rng.uniform(-1, 1, (2, size))
      states, actions = [], []
      for _ in range(3 * hertz):
        states.append(np.concatenate([position, target]))
        position = position + 2 / hertz * (target - position)
        actions.append(position)
      writer.append_episode(
        {
          "observation.state": np.asarray(states, np.float32),
          "action": np.asarray(actions, np.float32),
        }
      )
  return path


def main(argv: list[str] | None = None) -> dict[str, np.ndarray]:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument(
    "--dataset", nargs="+", help="a data set for each of two or more robots"
  )
  parser.add_argument("--folder", default="robots_run", help="new output folder")
  parser.add_argument("--size", default="tiny", choices=("tiny", "base"))
  parser.add_argument("--steps", type=int, default=200)
  parser.add_argument("--bindings", nargs="*", default=[], help="extra gin bindings")
  args = parser.parse_args(argv)
  folder = pathlib.Path(args.folder)
  datasets = args.dataset or [
    write_demonstrations(str(folder / "planar"), 2, 10),
    write_demonstrations(str(folder / "spatial"), 3, 20),
  ]

  if len(datasets) < 2:
    parser.error("--dataset: expected data sets of two or more robots, got one")

  # 1. Train. Each data set is a robot (two LeRobot sets of one robot_type would be one
  # robot, which this example does not expect): its vectors are padded to the largest
  # and normalized by statistics. Batches have robots in proportion to their windows.
  run = str(folder / "run")
  bindings = [f"NUM_TRAIN_STEPS = {args.steps}", *args.bindings]
  result = zoo.train_policy("mlp", datasets, run, args.size, gin_bindings=bindings)
  losses = {name: value for name, value in result.items() if name.endswith("/loss")}
  print("eval loss of each robot:", losses)

  # 2. One export acts for each robot, with the robot's own inputs and units.
  export = f"{run}/export/latest"
  policy = policies.RobotPolicies(export)
  actions = {}
  # The robots are in the order of their data sets.
  for name, dataset in zip(policy.robots, datasets, strict=True):
    if cli.main(["verify", export, dataset, "--robot", name, "--episodes", "2"]):
      raise SystemExit(f"verify failed for {name}")
    episodes = t2r_seq.open_episodes(dataset)
    first = episodes.read(0, stop=1)
    recorded = first[zoo.find_signature(episodes).action][0]
    observation = {path: first[path] for path in policy.of(name).step_specification()}
    state = policy.initial_state(robot=name)
    outputs, state = policy.step(observation, state, is_first=True, robot=name)
    actions[name] = outputs["inference_output"][0]
    predicted = np.round(actions[name], 3)
    print(f"{name}: predicted {predicted}, recorded {np.round(recorded, 3)}")
  return actions


if __name__ == "__main__":
  main()
