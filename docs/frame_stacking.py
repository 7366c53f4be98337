"""The two programs of Reverb's frame-stacking notebook, on this library.

    python docs/frame_stacking.py

They differ in one word, `store`: what a sample looks like is the same.
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


def store_stacked(
  address: str, stack_size: int, stride: int, sequence_length: int, num_frames: int
) -> ReverbReplay:
  """Stacks frames before they are sent: what stacks share is stored again and again."""
  return _store("stacked", address, stack_size, stride, sequence_length, num_frames)


def store_flat(
  address: str, stack_size: int, stride: int, sequence_length: int, num_frames: int
) -> ReverbReplay:
  """Sends every frame once, and stacks what is sampled."""
  return _store("flat", address, stack_size, stride, sequence_length, num_frames)


def _store(
  store: str,
  address: str,
  stack_size: int,
  stride: int,
  sequence_length: int,
  num_frames: int,
) -> ReverbReplay:
  client = ReverbReplay(
    frame_specs(stack_size),
    address,
    sequence_length=sequence_length,
    stride=stride,
    store=store,
    timeout=20,
  )
  random = np.random.default_rng(0)
  with client.writer() as writer:
    for _ in range(num_frames):
      # Noise, so that compression does not blur the comparison.
      writer.append({"frame": random.integers(0, 256, FRAME_SHAPE, np.uint8)})
  return client


def main() -> None:
  """Runs both programs, each against a server of its own."""
  for program in (store_stacked, store_flat):
    store = program.__name__.removeprefix("store_")
    sampler = replay.Fifo()
    with ReplayServer(
      frame_specs(3), sequence_length=4, store=store, sampler=sampler
    ) as server:
      client = program(server.address, 3, 1, 4, num_frames=100)
      for batch in client.dataset(2).take(2):
        print(program.__name__, batch["frame"].shape)


if __name__ == "__main__":
  main()
