"""What torch's DataLoader gives is what the loader gives; run by `make test-extras`."""

from __future__ import annotations

import os
import pathlib
import pickle
import re
import types
import warnings

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.data import StoreWindowLoader
from t2r_seq.store import EpisodeStore

torch = pytest.importorskip("torch", reason="make test-extras installs it")

from t2r_seq.data.torch_windows import TorchWindowMap, TorchWindows  # noqa: E402

DataLoader = torch.utils.data.DataLoader
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


@pytest.mark.parametrize("order", ["sequential", "global", "quasi_random"])
def test_the_batches_of_the_loader_without_a_copy(store, order):
  kwargs = {"order": order, "num_epochs": 2, "seed": 4, "drop_remainder": False}
  dataset = TorchWindows(store.path, WINDOW, 4, **kwargs)
  with warnings.catch_warnings():
    # As torch gives one for memory that must not be written to.
    warnings.simplefilter("error", UserWarning)
    got = list(dataset.loader())
  assert_same(got, wanted(store, WINDOW, **kwargs))
  assert len(DataLoader(dataset, batch_size=None)) == len(dataset) == len(got)
  got[0]["float32"] += 1  # Of nobody else.
  assert_same(list(dataset)[:1], wanted(store, WINDOW, **kwargs)[:1])


def test_epochs_and_where_to_resume(store):
  want = wanted(store, num_epochs=3, seed=1)
  per_epoch = len(want) // 3
  dataset = TorchWindows(store.path, SMALL, 4, seed=1)
  assert dataset.batches_per_epoch == len(dataset) == per_epoch
  for epoch in (0, 1, 2):
    dataset.set_epoch(epoch)
    assert len(dataset) == per_epoch
    assert_same(list(dataset), want[epoch * per_epoch : (epoch + 1) * per_epoch])
  dataset.set_epoch(1, start_batch=2)
  assert_same(list(dataset), want[per_epoch + 2 : 2 * per_epoch])
  rest = TorchWindows(store.path, SMALL, 4, num_epochs=3, start_batch=7, seed=1)
  assert_same(list(rest), want[7:])
  endless = TorchWindows(store.path, SMALL, 4, num_epochs=None, start_batch=7, seed=1)
  assert_same([batch for batch, _ in zip(endless, range(5), strict=False)], want[7:12])
  with pytest.raises(TypeError, match="has no len"):
    len(endless)


def test_workers_take_turns_at_the_same_batches(store):
  kwargs = {"num_epochs": 2, "seed": 2, "drop_remainder": False, "padding": "drop"}
  dataset = TorchWindows(store.path, SMALL, 4, start_batch=1, **kwargs)
  loader = dataset.loader(num_workers=2)
  with warnings.catch_warnings():
    warnings.simplefilter("error", UserWarning)  # As of a length that is wrong.
    got = list(loader)
  want = wanted(store, **kwargs)
  assert_same(got, want[1:])
  first = [float(x) for batch in got for x in batch["float32"][:, 0, 0]]
  skipped = want[0]["float32"][:, 0, 0].numpy().tolist()
  steps = [20 * e + t for e, n in enumerate(LENGTHS) for t in range(n - 1)]
  assert sorted(first + skipped) == sorted(map(float, steps + steps))


@pytest.fixture
def as_worker(monkeypatch):
  """Lets this process read as one of two workers does: what differs is their turn."""

  def become(number):
    info = types.SimpleNamespace(id=number, num_workers=2)
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: info)

  return become


def test_turns_at_full_batches(store, as_worker):
  kwargs = {"num_epochs": 2, "seed": 2, "padding": "drop"}
  dataset = TorchWindows(store.path, SMALL, 4, start_batch=1, **kwargs)
  want = wanted(store, **kwargs)[1:]
  assert len(dataset) == len(want) == 11
  for number in (0, 1):
    as_worker(number)
    assert_same(list(dataset), want[number::2])


def test_shards_of_ranks(store):
  seen = []
  for rank in range(2):
    kwargs = {"shard_index": rank, "num_shards": 2, "drop_remainder": False}
    dataset = TorchWindows(store.path, SMALL, 4, **kwargs)
    assert_same(list(dataset), wanted(store, **kwargs))
    seen += [float(x) for batch in dataset for x in batch["float32"][:, 0, 0]]
  assert len(seen) == len(set(seen)) == sum(LENGTHS)


@pytest.mark.parametrize("cls", [TorchWindows, TorchWindowMap])
def test_a_fork_is_refused(store, cls, monkeypatch):
  dataset = cls(store.path, SMALL, *([4] if cls is TorchWindows else []))
  monkeypatch.setattr(os, "getpid", lambda: -1)  # A real fork may hang before that.
  with pytest.raises(errors.SpecError, match="multiprocessing_context='spawn'"):
    next(iter(dataset)) if cls is TorchWindows else dataset[0]
  (again,) = pickle.loads(pickle.dumps([dataset]))
  assert next(iter(again)) if cls is TorchWindows else again[0]


def test_workers_cannot_share_pools(store, as_worker):
  dataset = TorchWindows(store.path, SMALL, 4, "quasi_random")
  as_worker(1)
  message = "every: expected 1 where pools are read"
  with pytest.raises(errors.SpecError, match=message):
    next(iter(dataset))
  try:
    next(iter(dataset))
  except errors.SpecError:
    # As torch takes it from its worker to the process that waits.
    from_worker = torch._utils.ExceptionWrapper(where="in DataLoader worker process 1")
  with pytest.raises(errors.SpecError, match=message):
    pickle.loads(pickle.dumps(from_worker)).reraise()


def test_windows_for_a_sampler(store):
  dataset = TorchWindowMap(store.path, WINDOW, padding="repeat")
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


def test_no_batch_before_the_first(store):
  with pytest.raises(
    errors.SpecError, match="start_batch: expected an integer of at least 0, got -"
  ):
    TorchWindows(store.path, SMALL, 4, start_batch=-1)


def test_the_page_about_frameworks(tmp_path, monkeypatch):
  """What tests/docs cannot run, because it does without torch."""
  monkeypatch.chdir(tmp_path)
  page = pathlib.Path(__file__).parents[2] / "docs" / "frameworks.md"
  text = page.read_text(encoding="utf-8")
  store_is_made = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
  blocks = re.findall(r"```py\n(.*?)```", text, re.DOTALL)
  assert len(blocks) == 2
  namespace = {"__name__": "page"}
  for block in (store_is_made, *blocks):
    exec(compile(block, str(page), "exec"), namespace)
