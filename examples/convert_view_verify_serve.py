"""A data set to another format, a page to look at it, a policy, and a server for it.

  python examples/convert_view_verify_serve.py --dataset my.lerobot

Each step is also a command: `t2r_seq convert`, `view`, `train`, `verify`, `serve`.
"""

import argparse
import pathlib

import numpy as np

import t2r_seq
from t2r_seq import cli, policies, serving, store, viewing, zoo
from t2r_seq.specs import ExtendedTensorSpec as Spec


def write_episodes(path: str) -> str:
  """Writes a small store with a camera: a bright square, moved by the actions."""
  rng = np.random.default_rng(0)
  columns = {
    "camera": Spec((32, 32, 3), np.uint8, "camera", is_sequence=True),
    "state": Spec((2,), np.float32, "state", is_sequence=True),
    "action": Spec((2,), np.float32, "action", is_sequence=True),
  }
  with store.EpisodeStore.create(path, columns, {"fps": 10}) as writer:
    for _ in range(6):
      place = rng.integers(0, 24, 2)
      frames, states, actions = [], [], []
      for _ in range(15):
        frame = np.zeros((32, 32, 3), np.uint8)
        frame[place[0] : place[0] + 8, place[1] : place[1] + 8] = 200
        move = np.clip(12 - place, -2, 2)
        frames.append(frame)
        states.append(place / 24)
        actions.append(move)
        place = place + move
      writer.append_episode(
        {
          "camera": np.asarray(frames),
          "state": np.asarray(states, np.float32),
          "action": np.asarray(actions, np.float32),
        }
      )
  return path


def main(argv: list[str] | None = None) -> np.ndarray:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--dataset", help="of any format (a small one is written)")
  parser.add_argument("--folder", default="serve_run")
  parser.add_argument("--policy", default="mlp")
  parser.add_argument("--steps", type=int, default=100)
  parser.add_argument("--bindings", nargs="*", default=[], help="of gin, on top")
  args = parser.parse_args(argv)
  folder = pathlib.Path(args.folder)
  folder.mkdir(parents=True, exist_ok=True)
  dataset = args.dataset or write_episodes(str(folder / "square.store"))

  # 1. Convert. The suffix names the format.
  converted = str(folder / "square.zarr")
  t2r_seq.convert.convert(dataset, converted)

  # 2. Look: one HTML file with frames, curves, histograms, and the odd episodes first.
  page = viewing.view(converted, output=str(folder / "view.html"))
  print(f"open {folder / 'view.html'}: {page}"[:200])

  # 3. Train a ready policy on the converted data, and verify its export on it.
  run = str(folder / "run")
  bindings = [f"NUM_TRAIN_STEPS = {args.steps}", "BATCH_SIZE = 16", *args.bindings]
  zoo.train_policy(args.policy, converted, run, "tiny", gin_bindings=bindings)
  export = f"{run}/export/latest"
  assert cli.main(["verify", export, converted, "--episodes", "2"]) == 0

  # 4. Serve. The server keeps each client's state; the client needs no TensorFlow.
  predictor = policies.ExportedSavedModelPredictor(export)
  predictor.restore()
  episodes = t2r_seq.open_episodes(converted)
  signature = zoo.find_signature(episodes)
  with serving.PolicyServer(predictor, port=0) as server:
    client = serving.PolicyClient(port=server.port)
    client.reset()
    row = episodes.read(0, stop=1)
    observed = [*signature.states, *signature.cameras]
    action, _ = client.sample_action({path: row[path][0] for path in observed})
    client.close()
  print(f"action over the socket: {np.round(action, 3)}")
  return action


if __name__ == "__main__":
  main()
