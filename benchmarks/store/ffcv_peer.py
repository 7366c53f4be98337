"""FFCV with fields that share an episode: every frame once in its file.

FFCV has no such field; these are written as its documentation says. A sample is a
window. All windows of an episode carry the address of the same bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
from ffcv.fields.base import ARG_TYPE, Field
from ffcv.libffcv import imdecode, memcpy
from ffcv.loader import Loader, OrderOption
from ffcv.pipeline.allocation_query import AllocationQuery
from ffcv.pipeline.compiler import Compiler
from ffcv.pipeline.operation import Operation
from ffcv.pipeline.state import State
from ffcv.transforms import ToTensor
from ffcv.writer import DatasetWriter

from benchmarks.store import works
from benchmarks.store.works import Work

# Numba's TBB layer grows slower with every parallel call (a quarter of the rate after
# 6000 batches), and OpenMP's threads spin where another process wants the core.
numba.config.THREADING_LAYER = "workqueue"

_PAGE_BYTES = 1 << 24
"""A page holds an episode of the largest work, 7 MB of frames, as a whole."""

_MAX_FRAMES = 8


class RowsField(Field):
  """Windows of rows of numbers: one address into the episode's rows."""

  def __init__(self, num_frames: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Creates the field of [num_frames, *shape] windows."""
    self.window_shape = (num_frames, *shape)
    self.dtype = np.dtype(dtype)
    self._episode: np.ndarray | None = None
    self._address = 0

  @property
  def metadata_type(self) -> np.dtype:
    """The dtype of what FFCV keeps of a sample beside its bytes."""
    return np.dtype([("address", "<u8")])

  def encode(self, destination: Any, window: Any, malloc: Callable) -> None:
    """Writes the episode with its first window, and its address with every one."""
    rows, start = window
    if rows is not self._episode:
      self._address, storage = malloc(rows.nbytes)
      storage[:] = rows.reshape(-1).view(np.uint8)
      self._episode = rows
    destination["address"] = self._address + start * rows[0].nbytes

  def get_decoder_class(self) -> type[Operation]:
    """Returns what reads the field."""
    return RowsDecoder

  def to_binary(self) -> Any:
    """Returns the field's parameters; it has none."""
    return np.zeros(1, ARG_TYPE)[0]

  def from_binary(self, binary: Any) -> Field:  # type: ignore[override]
    """Returns the field itself: the loader is given fields, not their classes."""
    return self


class RowsDecoder(Operation):
  """Copies a window: its rows are neighbours, so this is one memcpy."""

  def declare_state_and_memory(
    self, previous_state: State
  ) -> tuple[State, AllocationQuery]:
    """Declares the batch that the decoder fills."""
    shape, dtype = self.field.window_shape, self.field.dtype
    state = dataclasses.replace(previous_state, jit_mode=True, shape=shape, dtype=dtype)
    return state, AllocationQuery(shape, dtype)

  def generate_code(self) -> Callable:
    """Returns the decoder, which FFCV compiles."""
    in_range, copy = Compiler.get_iterator(), Compiler.compile(memcpy)
    size = int(np.prod(self.field.window_shape)) * self.field.dtype.itemsize

    def decode(indices, destination, metadata, storage):  # type: ignore[no-untyped-def]
      for i in in_range(indices.shape[0]):
        address = metadata[indices[i]]["address"]
        copy(storage[0][address : address + size], destination[i].view(np.uint8))
      return destination

    decode.is_parallel = True  # type: ignore[attr-defined]
    return decode


class JpegField(Field):
  """Windows of JPEG frames: K addresses and sizes into the episode's bytes."""

  def __init__(self, num_frames: int, image_size: int) -> None:
    """Creates the field of [num_frames, image_size, image_size, 3] windows."""
    self.window_shape = (num_frames, image_size, image_size, 3)
    self._episode: np.ndarray | None = None
    self._frames: list[tuple[int, int]] = []

  @property
  def metadata_type(self) -> np.dtype:
    """The dtype of what FFCV keeps of a sample beside its bytes."""
    return np.dtype([("address", "<u8", _MAX_FRAMES), ("size", "<u8", _MAX_FRAMES)])

  def encode(self, destination: Any, window: Any, malloc: Callable) -> None:
    """Writes the episode with its first window."""
    encoded, start = window
    if encoded is not self._episode:
      joined = b"".join(encoded)
      address, storage = malloc(len(joined))
      storage[:] = np.frombuffer(joined, np.uint8)
      sizes = [len(frame) for frame in encoded]
      starts = address + np.cumsum([0, *sizes[:-1]])
      self._frames = list(zip(starts.tolist(), sizes, strict=True))
      self._episode = encoded
    for k in range(self.window_shape[0]):
      destination["address"][0, k], destination["size"][0, k] = self._frames[start + k]

  def get_decoder_class(self) -> type[Operation]:
    """Returns what reads the field."""
    return JpegDecoder

  def to_binary(self) -> Any:
    """Returns the field's parameters; it has none."""
    return np.zeros(1, ARG_TYPE)[0]

  def from_binary(self, binary: Any) -> Field:  # type: ignore[override]
    """Returns the field itself: the loader is given fields, not their classes."""
    return self


class JpegDecoder(Operation):
  """Decodes the K frames of every window with libjpeg-turbo, FFCV's own call."""

  def declare_state_and_memory(
    self, previous_state: State
  ) -> tuple[State, AllocationQuery]:
    """Declares the batch that the decoder fills."""
    shape, dtype = self.field.window_shape, np.dtype(np.uint8)
    state = dataclasses.replace(previous_state, jit_mode=True, shape=shape, dtype=dtype)
    return state, AllocationQuery(shape, dtype)

  def generate_code(self) -> Callable:
    """Returns the decoder, which FFCV compiles."""
    in_range, decode_jpeg = Compiler.get_iterator(), Compiler.compile(imdecode)
    num_frames, height, width, _ = self.field.window_shape

    def decode(indices, destination, metadata, storage):  # type: ignore[no-untyped-def]
      for i in in_range(indices.shape[0] * num_frames):
        window, frame = i // num_frames, i % num_frames
        address = metadata[indices[window]]["address"][frame]
        size = metadata[indices[window]]["size"][frame]
        decode_jpeg(
          storage[0][address : address + size],
          destination[window, frame],
          *(np.uint32(height), np.uint32(width), np.uint32(height), np.uint32(width)),
          *(np.uint32(0), np.uint32(0), np.uint32(1), np.uint32(1), False, False),
        )
      return destination

    decode.is_parallel = True  # type: ignore[attr-defined]
    return decode


class _Windows:
  """The windows of all episodes, in order, as FFCV's writer asks for them."""

  def __init__(self, work: Work) -> None:
    self._work = work
    self._episodes = works.make_episodes(work)
    self._next = 0
    self._episode: works.Episode = {}

  def __len__(self) -> int:
    return self._work.num_windows

  def __getitem__(self, index: int) -> tuple[tuple[np.ndarray, int], ...]:
    episode, start = divmod(index, self._work.windows_per_episode)
    while self._next <= episode:
      self._episode = next(self._episodes)
      self._next += 1
    return tuple((self._episode[name], start) for name in self._work.fields)


def write(work: Work) -> None:
  """Writes FFCV's file: one worker, so that an episode's windows stay together."""
  writer = DatasetWriter(
    work.beton_path, _fields(work), page_size=_PAGE_BYTES, num_workers=1
  )
  writer.from_indexed_dataset(_Windows(work), chunksize=work.num_windows)


def load(work: Work, epochs: int | None = None) -> Iterator[dict[str, Any]]:
  """Loads windows in a random order, with compiled copies on two threads.

  The file is in the page cache, outputs are buffers that FFCV reuses, and an epoch of
  its loader is several of ours, so that none of it is spent on starting.
  """
  repeats = 1 if epochs else 8
  loader = Loader(
    work.beton_path,
    batch_size=work.batch_size,
    num_workers=2,
    os_cache=True,
    order=OrderOption.RANDOM,
    seed=1,
    indices=np.tile(np.arange(work.num_windows, dtype=np.uint64), repeats),
    custom_fields=_fields(work),
    pipelines={
      name: [field.get_decoder_class()(), ToTensor()]
      for name, field in _fields(work).items()
    },
  )
  epoch = 0
  while epochs is None or epoch < epochs:
    for batch in loader:
      yield dict(zip(work.fields, batch, strict=True))
    epoch += 1


def _fields(work: Work) -> dict[str, Field]:
  if work.is_jpeg:
    return {"image": JpegField(work.num_frames, work.image_size)}
  return {
    name: RowsField(work.num_frames, tuple(spec.shape), spec.dtype.as_numpy_dtype)
    for name, spec in work.fields.items()
  }
