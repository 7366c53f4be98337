"""Windows through torch's DataLoader; `make test-extras` runs it."""

from __future__ import annotations

import os
import pathlib
import pickle
import re
import warnings

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.data import StoreWindowLoader
from t2r_seq.store import EpisodeStore

torch = pytest.importorskip("torch", reason="make test-extras installs it")

from t2r_seq.data.torch_windows import TorchWindows, to_torch  # noqa: E402

Spec = specs.ExtendedTensorSpec
DTYPES = (
  *(tf.bool, tf.uint8, tf.int16, tf.int32, tf.int64, tf.uint32),
  *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64),
)
LENGTHS = (5, 1, 9, 3, 12)
WINDOW = {
  **{dtype.name: Spec((2,), dtype) for dtype in DTYPES},
  "float32": Spec((2, 2), tf.float32, time_offsets=(0, 1)),
  "word": Spec((), tf.string),
}
SMALL = {"float32": WINDOW["float32"]}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
  path = tmp_path_factory.mktemp("stores") / "store"
  stored = {dtype.name: Spec((2,), dtype, is_sequence=True) for dtype in DTYPES}
  stored["word"] = Spec((), tf.string, is_sequence=True)
  with EpisodeStore.create(path, stored, commit_every=10) as writer:
    for episode, length in enumerate(LENGTHS):
      steps = 20 * episode + np.arange(length)
      values = np.stack([steps, steps + 1], 1)
      arrays = {d.name: (values % 7).astype(d.as_numpy_dtype) for d in DTYPES}
      arrays["float32"] = values.astype(np.float32)
      writer.append_episode({**arrays, "word": [b"%d" % step for step in steps]})
  return EpisodeStore(path)


def wanted(store, window=SMALL, num_epochs=1, order="global", **kwargs):
  loader = StoreWindowLoader(store, window, 4, order, num_epochs=num_epochs, **kwargs)
  return list(loader.dataset())


def assert_same(got, want):
  assert len(got) == len(want)
  for one, other in zip(got, want, strict=True):
    assert list(one) == list(other)
    for path, tensor in one.items():
      array = other[path].numpy()
      if path == "word":
        assert tensor.tolist() == array.tolist()
        continue
      assert str(tensor.dtype) == f"torch.{array.dtype.name}"
      if path == "bfloat16":
        tensor, array = tensor.float(), array.astype(np.float32)
      np.testing.assert_array_equal(tensor.numpy(), array)


def test_loaders_batches_become_tensors_without_a_copy(store):
  kwargs = {"num_epochs": 2, "seed": 4, "drop_remainder": False}
  loader = StoreWindowLoader(store, WINDOW, 4, **kwargs)
  with warnings.catch_warnings():
    warnings.simplefilter("error", UserWarning)  # torch's, for read-only memory.
    got = list(map(to_torch, loader.numpy_batches()))
  assert_same(got, wanted(store, WINDOW, **kwargs))


def test_fork_is_refused(store, monkeypatch):
  dataset = TorchWindows(store.path, SMALL)
  monkeypatch.setattr(os, "getpid", lambda: -1)  # A real fork may hang before that.
  with pytest.raises(errors.SpecError, match="multiprocessing_context='spawn'"):
    dataset[0]
  (again,) = pickle.loads(pickle.dumps([dataset]))
  assert again[0]


def test_windows_for_a_sampler(store):
  dataset = TorchWindows(store.path, WINDOW, padding="repeat")
  want = wanted(store, WINDOW, order="sequential", padding="repeat")
  assert len(dataset) == sum(LENGTHS)
  loader = dataset.loader(batch_size=4)
  assert_same(list(loader)[: len(want)], want)
  sampler = [29, 0, 7, 7]
  (batch,) = dataset.loader(batch_size=4, sampler=sampler)
  singles = [dataset[i] for i in (-1, 0, 7, 7)]
  for path in SMALL:
    torch.testing.assert_close(batch[path], torch.stack([s[path] for s in singles]))
  with pytest.raises(IndexError, match="expected windows below 30, got 30"):
    dataset[30]
  spawned = dataset.loader(num_workers=1, batch_size=4)
  assert_same(list(spawned)[: len(want)], want)


def test_distributed_samplers_split_the_windows(store):
  dataset = TorchWindows(store.path, SMALL, padding="repeat")
  seen = []
  for rank in range(2):
    sampler = torch.utils.data.DistributedSampler(dataset, 2, rank, seed=1)
    sampler.set_epoch(3)
    for batch in dataset.loader(batch_size=4, sampler=sampler, drop_last=True):
      assert batch["float32"].shape == (4, 2, 2)
      seen += batch["float32"][:, 0, 0].tolist()
  assert len(seen) == len(set(seen)) == 24


def test_page_about_frameworks(tmp_path, monkeypatch):
  """What tests/docs cannot run, because it does without torch."""
  monkeypatch.chdir(tmp_path)
  page = pathlib.Path(__file__).parents[2] / "docs" / "frameworks.md"
  text = page.read_text(encoding="utf-8")
  store_is_made = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
  blocks = re.findall(r"```py\n(.*?)```", text, re.DOTALL)
  assert len(blocks) == 1
  namespace = {"__name__": "page"}
  for block in (store_is_made, *blocks):
    exec(compile(block, str(page), "exec"), namespace)
