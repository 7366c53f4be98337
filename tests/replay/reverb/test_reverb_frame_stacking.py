"""The notebook's program against a real server, and the bytes that it takes."""

from __future__ import annotations

import os
import runpy

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.replay.byte_counter import ByteCounter
from t2r_seq import replay

PROGRAM = runpy.run_path(
  os.path.join(os.path.dirname(__file__), "../../../docs/frame_stacking.py")
)
NUM_FRAMES = 60


@pytest.mark.parametrize("stack_size, sequence_length", [(3, 4), (4, 8)])
def test_stores_and_sends_each_frame_once(
  stack_size, sequence_length, serve, tmp_path, capsys
):
  address = serve(
    PROGRAM["frame_specs"](stack_size),
    sequence_length=sequence_length,
    sampler=replay.Fifo(),
    max_times_sampled=1,
    checkpoint_dir=str(tmp_path),
    padding="drop",
  )
  counter = ByteCounter(address)
  client = PROGRAM["store_flat"](
    counter.address, stack_size, 1, sequence_length, NUM_FRAMES
  )
  num_items = client.counters.num_items
  assert num_items == NUM_FRAMES - stack_size - sequence_length + 2
  chunks = os.path.join(client.checkpoint(), "chunks.tfrecord")
  # Each is a chunk of the server; the file's own compression is left out.
  records = tf.data.TFRecordDataset(chunks, compression_type="ZLIB")
  stored = sum(len(record.numpy()) for record in records) / NUM_FRAMES
  before = counter.num_sent
  batches = client.dataset(1).take(num_items)
  windows = np.concatenate([batch["frame"].numpy() for batch in batches])
  sent = (counter.num_sent - before) / num_items
  counter.close()
  random = np.random.default_rng(0)
  frames = np.stack(
    [random.integers(0, 256, (64, 64), np.uint8) for _ in range(NUM_FRAMES)]
  )
  index = np.arange(num_items)[:, None, None] + np.arange(sequence_length)[:, None]
  np.testing.assert_array_equal(windows, frames[index + np.arange(stack_size)])
  with capsys.disabled():
    print(
      f"\n  {sequence_length} stacks of {stack_size} frames of 4096 bytes: stored "
      f"{stored:.0f} bytes a step, sent {sent:.0f} bytes a sample",
      end="",
    )
  assert stored <= 1.05 * 4096
  assert sent <= 1.05 * 4096 * (sequence_length + stack_size - 1)
