"""DQN from pixels: your environment, frame stacks, one job that collects and learns.

  python examples/dqn_from_pixels.py --steps 20000

Replace `Catch` by your environment: any Gymnasium environment with `Discrete` actions.
"""

import argparse
import functools
import pathlib

import gymnasium
import numpy as np

from t2r_seq import policies, zoo


class Catch(gymnasium.Env):
  """A ball falls down a board of 10 x 5 pixels; a paddle at the bottom catches it."""

  observation_space = gymnasium.spaces.Box(0, 255, (10, 5, 1), np.uint8)
  action_space = gymnasium.spaces.Discrete(3)  # left, stay, right

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self.row, self.ball, self.paddle = 0, int(self.np_random.integers(5)), 2
    return self._image(), {}

  def step(self, action):
    self.row += 1
    self.paddle = int(np.clip(self.paddle + action - 1, 0, 4))
    is_down = self.row == 9
    reward = float(self.ball == self.paddle) * 2 - 1 if is_down else 0.0
    # Terminated, not truncated: no value follows a ball that is down.
    return self._image(), reward, is_down, False, {}

  def _image(self):
    image = np.zeros((10, 5, 1), np.uint8)
    image[self.row, self.ball] = image[9, self.paddle] = 255
    return image


def main(argv: list[str] | None = None) -> dict[str, float]:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--folder", default="dqn_run")
  parser.add_argument("--steps", type=int, default=6_000, help="in the environment")
  parser.add_argument("--seed", type=int, default=0)
  args = parser.parse_args(argv)
  run = str(pathlib.Path(args.folder) / "run")

  # The model declares a stack of two frames. The replay keeps each frame once; stacks
  # are gathered when a batch is sampled, and the export keeps the last frame itself.
  model = functools.partial(
    zoo.DQNModel, num_frames=2, hidden_sizes=(64,), gamma=0.97, n_step=3
  )
  schedule = zoo.OnlineSchedule(
    num_steps=args.steps,
    learning_starts=min(500, args.steps // 4),
    steps_per_round=4,
    updates_per_round=2,
    num_evaluations=2,
    eval_episodes=20,
  )
  result = zoo.train_online(model, Catch, run, schedule, batch_size=32, seed=args.seed)
  print(f"mean return of 20 episodes: {result['closed_loop/reward']:.2f} (1 at best)")

  # The export acts one frame at a time.
  predictor = policies.ExportedSavedModelPredictor(f"{run}/export/best")
  policy = policies.RegressionPolicy(predictor)
  policy.restore()
  policy.reset()
  env, is_over = Catch(), False
  image, _ = env.reset(seed=1)
  while not is_over:
    action, _ = policy.sample_action({"observation": image})
    image, reward, is_over, _, _ = env.step(int(action))
  print("caught" if reward > 0 else "missed")
  return result


if __name__ == "__main__":
  main()
