"""The program of Reverb's frame-stacking notebook, on this library.

    python docs/frame_stacking.py

Of its two ways it is the second: frames are stored and sent once.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from t2r_seq import replay, specs
from t2r_seq.replay.reverb import ReplayServer, ReverbReplay

FRAME_SHAPE = (64, 64)


def frame_specs(stack_size: int) -> specs.TensorSpecStruct:
  """Declares sequences of stacks; all that is stored and sent follows from it."""
  spec = specs.ExtendedTensorSpec(
    (stack_size, *FRAME_SHAPE),
    tf.uint8,
    "frame",
    time_offsets=range(1 - stack_size, 1),
    is_sequence=True,
  )
  return specs.TensorSpecStruct(frame=spec)


def store_flat(
  address: str, stack_size: int, stride: int, sequence_length: int, num_frames: int
) -> ReverbReplay:
  """Sends every frame once, and stacks what is sampled."""
  client = ReverbReplay(
    frame_specs(stack_size),
    address,
    sequence_length=sequence_length,
    stride=stride,
    padding="drop",
    timeout=20,
  )
  random = np.random.default_rng(0)
  with client.writer() as writer:
    for _ in range(num_frames):
      # Noise, so that compression does not blur the comparison.
      writer.append({"frame": random.integers(0, 256, FRAME_SHAPE, np.uint8)})
  return client


def main() -> None:
  """Runs the program against a server."""
  with ReplayServer(
    frame_specs(3), sequence_length=4, padding="drop", sampler=replay.Fifo()
  ) as server:
    client = store_flat(server.address, 3, 1, 4, num_frames=100)
    for batch in client.dataset(2).take(2):
      print(batch["frame"].shape)


if __name__ == "__main__":
  main()
