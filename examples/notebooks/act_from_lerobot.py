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
# # ACT from a LeRobot data set
#
# Trains a policy, proves that it sees what training saw, and plots its chunks over the
# recorded actions. `pip install '.[all]'` in a clone. Put your LeRobot folder into
# `dataset` and use more `STEPS`: 20,000 are a start for a real task.

# %%
import matplotlib.pyplot as plt
import numpy as np

import t2r_seq
from t2r_seq import convert, policies, specs, store, verification, zoo

STEPS = 300
rng = np.random.default_rng(0)
dataset = "reach.lerobot"


def column(name, size):
  return specs.ExtendedTensorSpec((size,), np.float32, name, is_sequence=True)


# A point moves to a target. State: position and target; action: the next position.
columns = {path: column(path, size) for path, size in [("state", 4), ("action", 2)]}
with store.EpisodeStore.create("reach.store", columns, {"fps": 10}) as writer:
  for _ in range(20):
    positions, target = [rng.uniform(-1, 1, 2)], rng.uniform(-1, 1, 2)
    for _ in range(30):
      positions.append(positions[-1] + 0.2 * (target - positions[-1]))
    states = np.concatenate([positions[:-1], np.tile(target, (30, 1))], axis=1)
    actions = np.asarray(positions[1:])
    writer.append_episode({"state": states.astype("f"), "action": actions.astype("f")})
convert.convert("reach.store", dataset, task="reach the target")

# %% [markdown]
# ## Train
#
# Specs, statistics, the split and the masks of padded chunks follow from the data.
# Every number is a gin binding: `t2r_seq gin act` lists them.

# %%
episodes = t2r_seq.open_episodes(dataset)
print("the policy reads", zoo.find_signature(episodes).describe(with_language=False))
bindings = [f"NUM_TRAIN_STEPS = {STEPS}"]
zoo.train_policy("act", dataset, "act_run", "tiny", gin_bindings=bindings)

# %% [markdown]
# ## Verify
#
# Replays episodes step by step through the export, as a robot does.

# %%
predictor = policies.ExportedSavedModelPredictor("act_run/export/latest")
predictor.restore()
report = verification.verify(predictor, dataset, num_episodes=2)
print(report)

# %% [markdown]
# ## A chunk over the truth
#
# `predictor.inspect` returns the inputs and outputs of the network without a step.

# %%
episode = episodes.read(0)
predictor.reset()
inspection = predictor.inspect({"state": episode["state"][:1]})
(chunk,) = inspection.outputs["inference_output"]
plt.figure(figsize=(6, 3))
plt.plot(episode["action"], "k", label="recorded")
plt.plot(chunk, "--", label="predicted at step 0")
plt.xlabel("step")
plt.legend()
plt.show()
