"""Which items are drawn: of the marked rows, uniformly or as selectors choose."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping

import numpy as np

from t2r_seq.replay import options
from t2r_seq.replay.memory.lanes import Lanes
from t2r_seq.replay.memory.ring import allocate
from t2r_seq.replay.selectors import Selector, make_selector

_MAX_PENDING = 4096
# With fewer items among the rows than one in so many, they are listed to draw from.
_MAX_MISSES = 32


class Items(abc.ABC):
  """The items of a buffer, by the rows of their anchors; calls need its lock.

  Attributes:
    times_sampled: of each row's item, int32; None until somebody wants to know.
  """

  def __init__(self, lanes: Lanes) -> None:
    """Creates items of marked rows."""
    self._lanes = lanes
    self.times_sampled: np.ndarray | None = None

  def count_samples(self) -> None:
    """Counts how often items are sampled, from now on."""
    if self.times_sampled is None:
      self.times_sampled = allocate(self._lanes.marks.shape, np.int32)

  def insert(self, rows: np.ndarray, priorities: float | np.ndarray) -> None:
    """Takes items in that were just marked; rows int64 [n]."""
    if self.times_sampled is not None:
      self.times_sampled[rows] = 0
    self._insert(rows, priorities)

  def arrays(self) -> dict[str, np.ndarray]:
    """Returns what `load` needs to make items that are drawn just as these are."""
    return {} if self.times_sampled is None else {"times_sampled": self.times_sampled}

  def load(self, arrays: Mapping[str, np.ndarray]) -> None:
    """Takes in the marked rows, of a buffer that was saved, into items without any.

    Args:
      arrays: as `arrays` gave them there; the items may have been of another kind.
    """
    if "times_sampled" in arrays:
      self.count_samples()
    if self.times_sampled is not None:
      self.times_sampled[:] = arrays.get("times_sampled", 0)

  @property
  def wants_rows(self) -> bool:
    """Whether it matters here which items come and go, and not only their marks."""
    return self.times_sampled is not None

  @property
  @abc.abstractmethod
  def row_bytes(self) -> float:
    """Memory that a row takes here."""

  @abc.abstractmethod
  def remove(self, rows: list[int]) -> None:
    """Lets go of items whose marks are gone."""

  @abc.abstractmethod
  def draw(
    self, count: int, rng: np.random.Generator
  ) -> tuple[np.ndarray, float | np.ndarray]:
    """Draws items, of which there are some.

    Returns:
      Rows, int64 [B], and with which probability each was drawn, float64 [B]; or one
      for all.
    """

  @abc.abstractmethod
  def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Sets the priorities of items; of a row that is there twice, the last counts."""

  @abc.abstractmethod
  def priorities(self, rows: np.ndarray) -> np.ndarray:
    """Returns the priorities of items, float64 [B]."""

  @abc.abstractmethod
  def _insert(self, rows: np.ndarray, priorities: float | np.ndarray) -> None:
    pass


class UniformItems(Items):
  """Draws any marked row, in O(1) and without memory: rows are tried until one is."""

  row_bytes = 0.0

  def remove(self, rows: list[int]) -> None:
    """Does nothing: their marks are gone."""

  def draw(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Draws items, with replacement."""
    lanes = self._lanes
    counts = lanes.counts
    newest = counts.item(0) if len(counts) == 1 else int(counts.max())
    slots = min(newest, lanes.num_slots)
    num_rows, num_items = slots * lanes.num_writers, lanes.num_items
    probability = 1.0 / num_items
    if num_items * _MAX_MISSES < num_rows:
      listed = lanes.marks[:num_rows].nonzero()[0]
      return listed[rng.integers(0, num_items, count)], probability
    tries = int(count * num_rows / num_items * 1.05) + 8
    rows = np.zeros(0, np.int64)
    while len(rows) < count:
      # Never num_rows itself; half as long as `integers`.
      tried = (rng.random(tries) * num_rows).astype(np.int64)
      hits = tried[lanes.marks.take(tried) != 0]
      rows = np.concatenate([rows, hits]) if len(rows) else hits
    return rows[:count], probability

  def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Does nothing: priorities do not matter."""

  def priorities(self, rows: np.ndarray) -> np.ndarray:
    """Returns ones: priorities do not matter."""
    return np.ones(len(rows))

  def _insert(self, rows: np.ndarray, priorities: float | np.ndarray) -> None:
    pass


class SelectedItems(Items):
  """Leaves the choice to selectors.

  They are told of inserts and removals before the next draw, of many at once: for one
  by one they would take most of the time of an append.
  """

  def __init__(
    self,
    lanes: Lanes,
    sampler: options.SelectorOption,
    remover: options.SelectorOption | None,
  ) -> None:
    """Creates the selectors.

    Args:
      lanes: whose marked rows are items.
      sampler: chooses what is sampled.
      remover: chooses what goes where there are too many; None: there never are.
    """
    super().__init__(lanes)
    num_rows = len(lanes.marks)
    self._sampler = make_selector(sampler, num_rows)
    self._selectors: list[Selector] = [self._sampler]
    if remover is not None:
      self._selectors.append(make_selector(remover, num_rows))
    # Where they only weigh, half the memory is as good.
    is_exact = any(selector.compares for selector in self._selectors)
    self._priorities = allocate((num_rows,), np.float64 if is_exact else np.float32)
    self._new: dict[int, None] = {}
    self._gone: list[int] = []

  @property
  def wants_rows(self) -> bool:
    """True: selectors are told what comes and goes."""
    return True

  @property
  def row_bytes(self) -> float:
    """Memory that a row takes here: its priority, and what selectors know of it."""
    known = sum(selector.num_bytes for selector in self._selectors)
    return self._priorities.itemsize + known / len(self._priorities)

  def arrays(self) -> dict[str, np.ndarray]:
    """Returns what `load` needs; see `Items.arrays`."""
    self.flush()
    orders = {name: selector.rows() for name, selector in self._named()}
    return {**super().arrays(), "priorities": self._priorities, **orders}

  def load(self, arrays: Mapping[str, np.ndarray]) -> None:
    """Takes in the marked rows; see `Items.load`."""
    super().load(arrays)
    marked = self._lanes.marks.nonzero()[0]
    self._priorities[:] = arrays.get("priorities", 1.0)
    by_age = marked[
      np.argsort(self._lanes.steps_of(marked, self._lanes.counts)[0], kind="stable")
    ]
    for name, selector in self._named():
      rows = arrays.get(name, by_age)
      selector.insert(rows, self._priorities[rows])

  def _named(self) -> Iterator[tuple[str, Selector]]:
    """Yields the selectors, and names for the order of their items."""
    # The order of one kind of selector says nothing to another.
    for use, selector in zip(("sampler", "remover"), self._selectors, strict=False):
      yield f"{use}_{type(selector).__name__}", selector

  def remove(self, rows: list[int]) -> None:
    """Lets go of items whose marks are gone."""
    if not self._new.keys().isdisjoint(rows):
      self.flush()
    self._gone += rows

  def flush(self) -> None:
    """Tells the selectors what has come and gone."""
    if not self._gone and not self._new:
      return
    gone = np.fromiter(self._gone, np.int64, len(self._gone))
    new = np.fromiter(self._new, np.int64, len(self._new))
    self._gone.clear()
    self._new.clear()
    for selector in self._selectors:
      if len(gone):
        selector.remove(gone)
      if len(new):
        selector.insert(new, self._priorities[new])

  def draw(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws items; see `Items.draw`."""
    self.flush()
    return self._sampler.sample(count, rng)

  def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Sets the priorities of items."""
    self.flush()
    self._priorities[rows] = priorities
    for selector in self._selectors:
      selector.update(rows, priorities)

  def priorities(self, rows: np.ndarray) -> np.ndarray:
    """Returns the priorities of items, float64 [B]."""
    return self._priorities.take(rows).astype(np.float64)

  def choose_surplus(self, rng: np.random.Generator) -> int:
    """Returns the row of the item that the remover lets go."""
    self.flush()
    rows, _ = self._selectors[-1].sample(1, rng)
    return int(rows[0])

  def _insert(self, rows: np.ndarray, priorities: float | np.ndarray) -> None:
    self._priorities[rows] = priorities
    self._new.update(dict.fromkeys(rows.tolist()))
    if len(self._new) + len(self._gone) >= _MAX_PENDING:
      self.flush()


def make_items(
  lanes: Lanes,
  sampler: options.SelectorOption,
  remover: options.SelectorOption,
  max_size: int | None,
  max_times_sampled: int,
) -> Items:
  """Makes items that are sampled and removed as told; see `ReplayBuffer`."""
  items: Items
  if isinstance(sampler, options.Uniform) and max_size is None:
    items = UniformItems(lanes)
  else:
    items = SelectedItems(lanes, sampler, None if max_size is None else remover)
  if max_times_sampled:
    items.count_samples()
  return items


def items_bytes(
  sampler: options.SelectorOption,
  remover: options.SelectorOption,
  max_size: int | None,
  num_rows: int,
) -> int:
  """Returns the memory that `make_items`' take with an item in each of so many rows."""
  counts = 4 * num_rows  # From when somebody first asks for them.
  if isinstance(sampler, options.Uniform) and max_size is None:
    return counts
  chosen = [sampler] if max_size is None else [sampler, remover]
  selectors = [make_selector(option, 1) for option in chosen]
  size = 8 if any(selector.compares for selector in selectors) else 4
  known = sum(selector.bytes_for(num_rows) for selector in selectors)
  return counts + size * num_rows + known
