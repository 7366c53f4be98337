# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # DQN from pixels
#
# One job collects, learns, evaluates and exports. Replace `Catch` by your Gymnasium
# environment with `Discrete` actions. `pip install '.[all]'` in a clone.

# %%
import functools

import gymnasium
import matplotlib.pyplot as plt
import numpy as np

from t2r_seq import policies, zoo

STEPS = 6000


class Catch(gymnasium.Env):
  """A ball falls down a board of 10 x 5 pixels; a paddle at the bottom catches it."""

  observation_space = gymnasium.spaces.Box(0, 255, (10, 5, 1), np.uint8)
  action_space = gymnasium.spaces.Discrete(3)  # left, stay, right

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self.row, self.ball, self.paddle = 0, int(self.np_random.integers(5)), 2
    return self.image(), {}

  def step(self, action):
    self.row += 1
    self.paddle = int(np.clip(self.paddle + action - 1, 0, 4))
    is_down = self.row == 9
    reward = float(self.ball == self.paddle) * 2 - 1 if is_down else 0.0
    # Terminated, not truncated: the value after the last step is 0.
    return self.image(), reward, is_down, False, {}

  def image(self):
    image = np.zeros((10, 5, 1), np.uint8)
    image[self.row, self.ball] = image[9, self.paddle] = 255
    return image


# %% [markdown]
# The model declares a stack of two frames. The replay holds each frame once, and the
# export keeps the last frame itself.

# %%
model = functools.partial(
  zoo.DQNModel, num_frames=2, hidden_sizes=(64,), gamma=0.97, n_step=3
)
schedule = zoo.OnlineSchedule(
  num_steps=STEPS,
  learning_starts=min(500, STEPS // 4),
  steps_per_round=4,
  updates_per_round=2,
  num_evaluations=2,
  eval_episodes=20,
)
result = zoo.train_online(model, Catch, "dqn_run", schedule, batch_size=32, seed=0)
print(f"mean return of 20 episodes: {result['closed_loop/reward']:.2f} (1 at best)")

# %% [markdown]
# The exported policy takes one frame at a time.

# %%
predictor = policies.ExportedSavedModelPredictor("dqn_run/export/best")
policy = policies.RegressionPolicy(predictor)
policy.restore()
policy.reset()
env, is_over, images = Catch(), False, []
image, _ = env.reset(seed=1)
while not is_over:
  images.append(image[..., 0])
  action, _ = policy.sample_action({"observation": image})
  image, reward, is_over, _, _ = env.step(int(action))
print("caught" if reward > 0 else "missed")

# %%
plt.imshow(np.concatenate([np.pad(each, 1) for each in images], axis=1), cmap="gray")
plt.axis("off")
plt.show()
