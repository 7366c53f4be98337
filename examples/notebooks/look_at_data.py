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
# # Look at a data set before you train on it
#
# Most faults of data can be seen: a frozen camera, clipped actions, labels one step
# late. `pip install '.[all]'` in a clone, then run the cells. Put the path of your data
# set into `path`: LeRobot, HDF5, zarr, RLDS, TFRecord, Minari, MCAP.

# %%
import matplotlib.pyplot as plt
import numpy as np

import t2r_seq
from t2r_seq import specs, statistics, store, viewing, windows

rng = np.random.default_rng(0)
path = "square.store"
columns = {
  "camera": specs.ExtendedTensorSpec((32, 32, 3), np.uint8, "camera", is_sequence=True),
  "action": specs.ExtendedTensorSpec((2,), np.float32, "action", is_sequence=True),
}
with store.EpisodeStore.create(path, columns, {"fps": 10}) as writer:
  for number in range(8):
    place, frames, actions = rng.integers(0, 24, 2), [], []
    for _ in range(15):
      frame = rng.integers(0, 30, (32, 32, 3), np.uint8)  # The noise of a sensor.
      frame[place[0] : place[0] + 8, place[1] : place[1] + 8] = 200
      # In episode 5 the camera freezes.
      frames.append(frames[-1] if number == 5 and len(frames) > 6 else frame)
      actions.append(np.clip(12 - place, -2, 2) + rng.normal(0, 0.3, 2))
      place = (place + actions[-1]).astype(int).clip(0, 24)
    values = {"camera": np.asarray(frames), "action": np.asarray(actions, np.float32)}
    writer.append_episode(values)

# %% [markdown]
# Any format opens as one kind of object. An episode is arrays by path.

# %%
episodes = t2r_seq.open_episodes(path)
print(f"{len(episodes.lengths)} episodes of {episodes.lengths.min()} or more steps")
for name, spec in episodes.spec.items():
  print(name, spec.shape, spec.dtype.name)

# %%
frames = episodes.read(0)["camera"]
figure, axes = plt.subplots(1, 6, figsize=(10, 2))
for axis, step in zip(axes, range(0, 15, 3), strict=False):
  axis.imshow(frames[step])
  axis.set_title(f"step {step}")
  axis.axis("off")
axes[-1].plot(episodes.read(0)["action"])
axes[-1].set_title("actions")
plt.show()

# %% [markdown]
# Statistics are exact, from one pass. `Normalize` reads this file.

# %%
found = statistics.compute_statistics(path, "statistics.json")
print("mean", found.paths["action"].mean, "std", found.paths["action"].std)

# %% [markdown]
# A policy sees windows. Here two frames, the previous and the present one, and the next
# four actions; at an episode's ends the edge step is repeated.

# %%
window_spec = {
  "camera": specs.ExtendedTensorSpec(
    (2, 32, 32, 3), np.uint8, "camera", time_offsets=(-1, 0)
  ),
  "action": specs.ExtendedTensorSpec((4, 2), np.float32, time_offsets=range(4)),
}
window = windows.gather_windows(episodes.read(0), 0, window_spec, padding="repeat")
print({name: tuple(value.shape) for name, value in window.items()})

# %% [markdown]
# The page ranks all episodes by outlier score. Open `view.html` in a browser, untick
# the bad episodes, and save the keep-list: generators and commands take it as
# `episodes=`.

# %%
page = viewing.view(path, "view.html")
worst = page.surveys[0].ranked[0]
print(f"episode {worst.number}: {worst.reasons[0].text}")
