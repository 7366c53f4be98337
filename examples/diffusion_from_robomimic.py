"""Diffusion Policy from robomimic's HDF5, and its export without TensorFlow.

python examples/diffusion_from_robomimic.py --dataset low_dim.hdf5 --steps 20000
"""

import argparse
import pathlib

import h5py
import numpy as np

import t2r_seq
from t2r_seq import lite, policies, zoo


def write_demonstrations(path: pathlib.Path) -> str:
  """Writes what robomimic records: a group of arrays for each demonstration."""
  rng = np.random.default_rng(0)
  with h5py.File(path, "w") as file:
    data = file.create_group("data")
    data.attrs["env_args"] = '{"env_name": "Reach", "env_kwargs": {"control_freq": 20}}'
    for number in range(12):
      position, target = rng.uniform(-1, 1, (2, 3))
      positions, actions = [], []
      for _ in range(40):
        positions.append(position)
        actions.append(0.1 * (target - position))
        position = position + actions[-1]
      demo = data.create_group(f"demo_{number}")
      demo.attrs["num_samples"] = len(actions)
      demo["actions"] = np.asarray(actions)
      demo["obs/eef_pos"] = np.asarray(positions)
      demo["obs/object"] = np.tile(target, (len(actions), 1))
  return str(path)


def main(argv: list[str] | None = None) -> np.ndarray:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--dataset", help="an HDF5 file (a small one is written)")
  parser.add_argument("--folder", default="diffusion_run")
  parser.add_argument("--size", default="tiny", choices=("tiny", "base"))
  parser.add_argument("--steps", type=int, default=200)
  parser.add_argument("--bindings", nargs="*", default=[], help="of gin, on top")
  args = parser.parse_args(argv)
  folder = pathlib.Path(args.folder)
  folder.mkdir(parents=True, exist_ok=True)
  dataset = args.dataset or write_demonstrations(folder / "reach.hdf5")

  episodes = t2r_seq.open_episodes(dataset)
  for path, spec in episodes.spec.items():
    print(f"{path}: {spec.shape} {spec.dtype.name}")

  # The file is read in place: rows of a window, not the file. Two steps are seen, 16
  # actions are predicted and 8 executed, as in the paper.
  run = str(folder / "run")
  bindings = [f"NUM_TRAIN_STEPS = {args.steps}", *args.bindings]
  zoo.train_policy("diffusion", dataset, run, args.size, gin_bindings=bindings)

  # The robot needs the folder and `pip install './lite'`: no TensorFlow, no model code.
  # The export is compared with the SavedModel while it is written.
  robot = str(folder / "robot")
  policies.export_lite(f"{run}/export/latest", robot)
  policy = lite.LitePolicy(robot)
  policy.reset()
  signature, actions = zoo.find_signature(episodes), []
  observed = [*signature.states, *signature.cameras]
  for step in range(10):  # Denoises at steps 0 and 8; the others execute the chunk.
    row = episodes.read(0, start=step, stop=step + 1)
    action, _ = policy.sample_action({path: row[path][0] for path in observed})
    actions.append(action)
  print(f"ten actions by LiteRT, the last {np.round(actions[-1], 3)}")
  return np.asarray(actions)


if __name__ == "__main__":
  main()
