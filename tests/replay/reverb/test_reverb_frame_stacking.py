"""The notebook's two programs against real servers, with the bytes of both ways."""

from __future__ import annotations

import os
import runpy

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.replay.byte_counter import ByteCounter
from t2r_seq import replay

PROGRAMS = runpy.run_path(
  os.path.join(os.path.dirname(__file__), "../../../docs/frame_stacking.py")
)
NUM_FRAMES = 60


@pytest.mark.parametrize("stack_size, sequence_length", [(3, 4), (4, 8)])
def test_flat_stores_and_sends_each_frame_once(
  stack_size, sequence_length, serve, tmp_path, capsys
):
  stored, sent, windows = {}, {}, {}
  for store in ("stacked", "flat"):
    address = serve(
      PROGRAMS["frame_specs"](stack_size),
      store=store,
      sequence_length=sequence_length,
      sampler=replay.Fifo(),
      max_times_sampled=1,
      checkpoint_dir=str(tmp_path / store),
    )
    counter = ByteCounter(address)
    program = PROGRAMS[f"store_{store}"]
    client = program(counter.address, stack_size, 1, sequence_length, NUM_FRAMES)
    num_items = client.counters.num_items
    assert num_items == NUM_FRAMES - stack_size - sequence_length + 2
    chunks = os.path.join(client.checkpoint(), "chunks.tfrecord")
    # Each is a chunk of the server; the file's own compression is left out.
    records = tf.data.TFRecordDataset(chunks, compression_type="ZLIB")
    stored[store] = sum(len(record.numpy()) for record in records)
    before = counter.num_sent
    batches = client.dataset(1).take(num_items)
    windows[store] = np.concatenate([batch["frame"].numpy() for batch in batches])
    sent[store] = (counter.num_sent - before) / num_items
    counter.close()
  np.testing.assert_array_equal(windows["flat"], windows["stacked"])
  assert windows["flat"].shape[1:3] == (sequence_length, stack_size)
  with capsys.disabled():
    for store in stored:
      print(
        f"\n  {store}, {sequence_length} stacks of {stack_size} frames of 4096 bytes: "
        f"stored {stored[store] / NUM_FRAMES:.0f} bytes a step, sent "
        f"{sent[store]:.0f} bytes a sample",
        end="",
      )
  flat_length = sequence_length + stack_size - 1
  bound = 1.05 * flat_length / (sequence_length * stack_size)
  assert stored["flat"] <= bound * stored["stacked"]
  assert sent["flat"] <= bound * sent["stacked"]
