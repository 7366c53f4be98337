"""One grasp, as the camera saw it, and what the critic thought of all the others."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from research.qtopt import grasp_env, grasp_policies
from t2r_seq import errors

try:
  import matplotlib

  matplotlib.use("Agg")
  from matplotlib import pyplot as plt
except ImportError as error:
  raise errors.missing_extra("matplotlib", "demo") from error

_SIZE, _NUM_TRIED = 240, 10


def draw(path: str, policy: grasp_policies.GraspPolicy) -> None:
  """Writes a picture of the first episode in which a policy succeeds, if one is.

  Args:
    path: of a PNG.
    policy: of an export; is restored.
  """
  policy.restore()
  env = grasp_env.GraspEnv()
  for seed in itertools.islice(itertools.count(8_000), _NUM_TRIED):
    first, actions, reward = _act(env, policy, seed)
    if reward:
      break
  env.close()
  # The same seed and actions are the same episode, at any size of its frames.
  env = grasp_env.GraspEnv(image_size=(_SIZE, _SIZE))
  frames = [env.reset(seed=seed)[0], *(env.step(action)[0] for action in actions[:-1])]
  env.close()
  figure, axes = plt.subplots(1, len(frames) + 1, figsize=(3 * len(frames) + 3, 3.2))
  view, middle = grasp_env.CAMERA_VIEW, grasp_env.CAMERA_OFFSET
  extent = (-view, view, middle - view, middle + view)
  for axis, seen in zip(axes, (frames[0], *frames), strict=True):
    axis.imshow(seen["state"]["image"], extent=extent)
    axis.axis("off")
  x, y = grasp_env.MAX_STEP[:2]
  values = _values(policy, first)
  shown = axes[0].imshow(
    values, extent=(-x, x, -y, y), origin="lower", alpha=0.6, vmin=0.0
  )
  axes[0].set(xlim=extent[:2], ylim=extent[2:])
  figure.colorbar(shown, ax=axes[0], fraction=0.045, label="Q of a grasp there")
  for number, axis in enumerate(axes[1:]):
    axis.set_title("at first" if not number else f"after action {number}")
  figure.tight_layout()
  figure.savefig(path, dpi=80)
  plt.close(figure)


def _act(env: Any, policy: Any, seed: int) -> tuple[Any, list[Any], float]:
  """Returns what is seen at first, the actions, and the reward of one episode."""
  first, _ = env.reset(seed=seed)
  policy.reset()
  policy.seed(seed)
  observation, actions, is_over = first, [], False
  while not is_over:
    actions.append(policy.sample_action(observation)[0])
    observation, reward, terminated, truncated, _ = env.step(actions[-1])
    is_over = terminated or truncated
  return first, actions, reward


def _values(policy: Any, observation: Any, size: int = 32) -> np.ndarray:
  """Values grasps all over what one step reaches, by the best of some turns."""
  state = {f"state/{k}": v[np.newaxis] for k, v in observation["state"].items()}
  height = observation["state"]["height_to_bottom"][0]
  x, y = (np.linspace(-step, step, size) for step in grasp_env.MAX_STEP[:2])
  turns = np.linspace(-0.6, 0.6, 4)
  asked = [
    grasp_policies.make_action((b, a, 0.01 - height), turn, "close_gripper")
    for a, b, turn in itertools.product(y, x, turns)
  ]
  spec = policy.predictor.get_feature_specification()
  count = spec["action/world_vector"].shape[0]
  found = []
  for start in range(0, len(asked), count):
    part = asked[start : start + count]
    actions = {
      f"action/{name}": np.stack([each[name] for each in part])[np.newaxis]
      for name in part[0]
    }
    found.append(policy.predictor.predict({**state, **actions})["q_predicted"].ravel())
  return np.concatenate(found).reshape(size, size, len(turns)).max(axis=-1)
