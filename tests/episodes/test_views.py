"""Views of data sets: what each changes, and what stays."""

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs, store
from t2r_seq.episodes import make_splits, open_episodes

Spec = specs.ExtendedTensorSpec
LENGTHS = (3, 5, 1)
SPEC = {
  "arm/position": Spec((2,), tf.float64, is_sequence=True),
  "arm/stamp": Spec((), tf.float64, is_sequence=True),
  "task": Spec((), tf.string),
}


def values(number, offset=0):
  rows = offset + 10 * number + np.arange(LENGTHS[number], dtype=np.float64)
  return {
    "arm/position": np.stack([rows, -rows], 1),
    "arm/stamp": rows / 8,
    "task": np.array(f"task {number}".encode(), object),
  }


def make(path="own", offset=0, spec=SPEC):
  with store.EpisodeStore.create(path, spec, {"fps": 10, "path": path}) as writer:
    for number in range(len(LENGTHS)):
      given = values(number, offset)
      writer.append_episode({name: given[name] for name in spec})
  store.EpisodeStore.write_splits(path, {"train": [0, 1], "eval": [2]})
  return open_episodes(path)


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)


def scale(read):
  return {**read, "arm/position": 2 * read["arm/position"]}


# From the data set to a view of it, and what an episode of the view has.
VIEWS = {
  "select": (lambda e: e.select([1]), lambda v: v, [1]),
  "select a split": (lambda e: e.select(split="eval"), lambda v: v, [2]),
  "select both": (lambda e: e.select([1, 2], "train"), lambda v: v, [1]),
  "filter": (
    lambda e: e.filter(["arm/stamp"]),
    lambda v: {"arm/stamp": v["arm/stamp"]},
    [0, 1, 2],
  ),
  "drop all below": (
    lambda e: e.drop(["arm"]),
    lambda v: {"task": v["task"]},
    [0, 1, 2],
  ),
  "rename a path": (
    lambda e: e.rename({"task": "text"}),
    lambda v: {"text" if p == "task" else p: x for p, x in v.items()},
    [0, 1, 2],
  ),
  "rename all below": (
    lambda e: e.rename({"arm": "robot/arm"}),
    lambda v: {p.replace("arm/", "robot/arm/"): x for p, x in v.items()},
    [0, 1, 2],
  ),
  "cast a path": (
    lambda e: e.cast({"arm/position": "float32"}),
    lambda v: {**v, "arm/position": v["arm/position"].astype(np.float32)},
    [0, 1, 2],
  ),
  "cast a dtype": (
    lambda e: e.cast({"float64": tf.float32}),
    lambda v: {
      p: x.astype(np.float32) if x.dtype == np.float64 else x for p, x in v.items()
    },
    [0, 1, 2],
  ),
  "map": (lambda e: e.map(scale, e.spec), scale, [0, 1, 2]),
  "several": (
    lambda e: (
      e.select([0, 2]).rename({"arm": "a"}).cast({"a/stamp": "float32"}).drop(["task"])
    ),
    lambda v: {
      "a/position": v["arm/position"],
      "a/stamp": v["arm/stamp"].astype(np.float32),
    },
    [0, 2],
  ),
}


def assert_same(got, want):
  assert {*got} == {*want}
  for path, array in want.items():
    assert got[path].dtype == array.dtype
    np.testing.assert_array_equal(got[path], array)


@pytest.mark.parametrize("name", VIEWS)
def test_views(name):
  view, change, numbers = VIEWS[name]
  episodes = make()
  viewed = view(episodes)
  assert viewed.num_episodes == len(numbers)
  assert viewed.lengths.tolist() == [LENGTHS[number] for number in numbers]
  for place, (one, number) in enumerate(zip(viewed, numbers, strict=True)):
    want = change(values(number))
    assert {*viewed.spec} == {*want}
    assert_same(one.values, want)
    assert_same(viewed.read(place), want)
    some = viewed.read(place, None, 1, 3)
    for path, array in want.items():
      rows = array[1:3] if viewed.spec[path].is_sequence else array
      np.testing.assert_array_equal(some[path], rows)
    assert f"episode {number} of own" in one.place
  # The data set itself stays as it was.
  assert episodes.num_episodes == 3
  assert {*episodes.spec} == {*SPEC}


def test_join_has_the_episodes_and_splits_of_all():
  joined = make().join(make("more", 100))
  assert joined.lengths.tolist() == [*LENGTHS, *LENGTHS]
  assert joined.metadata == {"fps": 10}
  assert joined.splits == {"train": [0, 1, 3, 4], "eval": [2, 5]}
  for number, one in enumerate(joined.iterate(2), 2):
    want = values(number % 3, 100 * (number // 3))
    assert_same(one.values, want)
    assert_same(joined.read(number), want)
  assert "of more" in joined.place(4)
  selected = joined.select(split="eval")
  assert [one.place.split()[-1] for one in selected] == ["own", "more"]


FAILURES = {
  "select a number": (lambda e: e.select([3]), "expected numbers from 0 to 2, got 3"),
  "select a split": (lambda e: e.select(split="trian"), "'trian'.*'train'"),
  "filter": (lambda e: e.filter(["tsak"]), "tsak: expected a path of.*'task'"),
  "drop": (lambda e: e.drop(["ram"]), "ram: expected one of the paths"),
  "rename": (lambda e: e.rename({"ram": "x"}), "ram: expected one of the paths .*arm"),
  "rename to another": (
    lambda e: e.rename({"task": "arm/stamp"}),
    "arm/stamp: expected one path of that name, got .*arm/stamp, task.* renamed to it",
  ),
  "cast text": (lambda e: e.cast({"task": "int8"}), "task: expected numbers to cast"),
  "cast that loses": (
    lambda e: list(e.cast({"arm/stamp": "int8"})),
    r"arm/stamp: expected numbers that fit int8, got 0\.125 of float64",
  ),
  "map to another shape": (
    lambda e: list(e.map(lambda v: {**v, "arm/stamp": v["arm/stamp"][:1]}, e.spec)),
    r"map: episode 0 of own: arm/stamp: expected \(3,\) float64, got \(1,\) float64",
  ),
  "map without a path": (
    lambda e: list(e.map(lambda v: {"task": v["task"]}, e.spec)),
    "arm/position: expected .* got nothing",
  ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures(name):
  act, message = FAILURES[name]
  with pytest.raises(errors.SpecError, match=f"(?s){message}"):
    act(make())


def test_join_names_every_path_that_differs():
  other = {**SPEC, "arm/position": Spec((2,), tf.float32, is_sequence=True)}
  del other["task"]
  with store.EpisodeStore.create("more", other) as writer:
    found = values(0)
    found["arm/position"] = found["arm/position"].astype(np.float32)
    writer.append_episode({name: found[name] for name in other})
  with pytest.raises(errors.SpecError) as failure:
    make().join(open_episodes("more"))
  assert "task: expected" in str(failure.value)
  assert "float32 in more. Make them alike first: rename, cast or drop." in str(
    failure.value
  )


@pytest.mark.parametrize("shares", [{"a": 0.8, "b": 0.5}, {"a": 1.5, "b": -0.5}])
def test_splits_reject_negative_shares_and_sums_above_one(shares):
  with pytest.raises(errors.SpecError, match=r"split: expected shares >= 0 with a sum"):
    make_splits(shares, num_episodes=10)
