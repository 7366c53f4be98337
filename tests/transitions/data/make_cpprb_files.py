"""Makes the files of this folder with cpprb itself (11.0.0, numpy 2.4).

    python make_cpprb_files.py FOLDER

Tests do not run it: cpprb is no dependency.
"""

import os
import sys

import cpprb
import numpy as np

ENV = {"obs": {"shape": 3}, "act": {"shape": 2}, "rew": {}, "done": {}}
NSTEP = {"size": 3, "gamma": 0.9, "rew": "rew", "next": "next_obs"}


def fill(buffer):
  """Three episodes of 5 steps; the second one is cut off, the others terminate."""
  for episode in range(3):
    for t in range(5):
      now = 100 * episode + 10 * t
      buffer.add(
        obs=now + np.arange(3),
        act=[t, -t],
        rew=2.0**t,
        next_obs=now + 10 + np.arange(3),
        done=t == 4 and episode != 1,
      )
    buffer.on_episode_end()
  return buffer


STACKS = {**ENV, "obs": {"shape": (2, 3, 4), "dtype": np.uint8}}


def fill_stacks(buffer):
  """The same episodes, of stacks of 4 frames; the first one is repeated."""
  for episode in range(3):
    first = np.full((2, 3), 80 * episode, np.uint8)
    frames = [first] * 4 + [first + t + [0, 7, 9] for t in range(1, 6)]
    stacks = [np.stack(frames[t : t + 4], -1) for t in range(6)]
    for t in range(5):
      done = t == 4 and episode != 1
      step = {"act": [t, -t], "rew": 2.0**t, "done": done}
      buffer.add(obs=stacks[t], next_obs=stacks[t + 1], **step)
    buffer.on_episode_end()
  return buffer


def main(folder):
  """Writes a file of each layout."""
  with_next = {**ENV, "next_obs": {"shape": 3}}
  buffers = {
    "plain": cpprb.ReplayBuffer(100, with_next),
    "next_of": cpprb.ReplayBuffer(100, ENV, next_of="obs"),
    "ring": cpprb.ReplayBuffer(12, ENV, next_of="obs"),
    "n_step": cpprb.ReplayBuffer(100, with_next, Nstep=NSTEP),
  }
  for name, buffer in buffers.items():
    fill(buffer).save_transitions(os.path.join(folder, f"{name}.npz"))
  for name, size in {"stacks": 100, "ring_of_stacks": 12}.items():
    buffer = cpprb.ReplayBuffer(size, STACKS, next_of="obs", stack_compress="obs")
    fill_stacks(buffer).save_transitions(os.path.join(folder, f"{name}.npz"))
  place = os.path.join(folder, "unsafe.npz")
  buffers["next_of"].save_transitions(place, safe=False)
  arrays = buffers["plain"].get_all_transitions()
  np.savez_compressed(os.path.join(folder, "arrays.npz"), **arrays)


if __name__ == "__main__":
  main(sys.argv[1])
