"""Which episodes are read: splits and lists, by every generator; and conversions."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import convert, data, errors, preprocessors, records, specs, store
from t2r_seq.cli.main import main
from t2r_seq.convert.conversion import verify_conversion
from t2r_seq.episodes.splits import choose_episodes
from t2r_seq.formats.lerobot_folder import LeRobotFolder

Spec = specs.ExtendedTensorSpec
FLAT = {"number": Spec((), tf.int64, "number", is_sequence=True)}
WINDOW = {"number": Spec((2,), tf.int64, "number", time_offsets=(0, 1))}
PLAIN = {"number": Spec((), tf.int64, "number")}
NUM = 8
TRAIN, EVAL = [0, 1, 2, 4, 7], [3, 5, 6]


class Model:
  """What an input generator asks of a model."""

  padding = "drop"

  def __init__(self, features):
    struct = specs.TensorSpecStruct
    self.preprocessor = preprocessors.NoOpPreprocessor(
      lambda mode: struct(features), lambda mode: struct()
    )


def episode(number):
  return {"number": np.full(3 + number % 2, number)}


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory):
  """A store, episodes in files of two splits, and plain records, indexed or not."""
  folder = tmp_path_factory.mktemp("splits")
  with store.EpisodeStore.create(folder / "store", FLAT) as writer:
    for number in range(NUM):
      writer.append_episode(episode(number))
  store.EpisodeStore.write_splits(folder / "store", {"train": TRAIN, "eval": EVAL})
  for kind, spec in (("plain", PLAIN), ("many", FLAT)):
    for place, numbers in enumerate(np.split(np.arange(NUM), [5])):
      split = ["train", "eval"][place]
      values = [{"number": n} if kind == "plain" else episode(n) for n in numbers]
      for end in ("", ".indexed"):
        name = f"{folder}/{kind}{end}-{place}-{split}.tfrecord-00000-of-00001"
        records.write_records(name, spec, values)
  records.write_index(f"{folder}/*.indexed*")
  (folder / "keep.txt").write_text("6 # a good one\n\n1\n7\n")
  return folder


def seen(generator, mode, features=WINDOW):
  """Returns the episodes of an epoch, or of the first few batches."""
  generator.set_specification_from_model(Model(features), mode)
  found = generator.create_dataset(mode).take(25)
  return sorted({int(n) for batch, _ in found for n in np.ravel(batch["number"])})


def records_of(kind, folder, **options):
  return data.DefaultRecordInputGenerator(
    f"{folder}/{kind}-*.tfrecord-00000-of-00001", batch_size=2, seed=0, **options
  )


GENERATORS = {
  "store": lambda f, **o: data.StoreInputGenerator(f / "store", 2, seed=0, **o),
  "pools": lambda f, **o: data.StoreInputGenerator(
    f / "store", 2, seed=0, order="quasi_random", **o
  ),
  "records": lambda f, **o: records_of("many", f, **o),
  "indexed": lambda f, **o: records_of("many.indexed", f, index="require", **o),
  "mixture": lambda f, split=None, episodes=None: data.MixtureInputGenerator(
    {"a": data.StoreInputGenerator(f / "store", 2)},
    batch_size=2,
    split=split,
    episodes=None if episodes is None else {"a": episodes},
  ),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_generator_reads_the_episodes_that_are_chosen(folder, name):
  is_split = [5, 6, 7] if name in ("records", "indexed") else EVAL
  for options, mode, want in (
    ({"episodes": str(folder / "keep.txt")}, "train", [1, 6, 7]),
    ({"split": "eval"}, "eval", is_split),
    ({"split": "eval", "episodes": [1, 6]}, "eval", [6]),
  ):
    generator = GENERATORS[name](folder, **options)
    assert seen(generator, mode) == want, options
    lengths = np.array([len(episode(number)["number"]) for number in want])
    assert generator.count_examples() == (lengths - 1).sum()
    if name == "store":
      assert f" windows of {len(want)} episodes" in generator.describe()


def test_plain_records_are_chosen_by_their_numbers(folder):
  for kind, index in (("plain", None), ("plain.indexed", "require")):
    generator = records_of(kind, folder, index=index, episodes=[0, 1, 4, 6])
    assert seen(generator, "train", PLAIN) == [0, 1, 4, 6]
    assert generator.count_examples() == 4


ERRORS = {
  "another split": (
    "store",
    {"split": "evel"},
    r"split: expected one of those of the dataset, \[eval, train\], got 'evel'. Did",
  ),
  "files of another": (
    "records",
    {"split": "tran"},
    r"one of \[eval, train\], splits in names of files .* got 'tran'. Did",
  ),
  "no such episode": ("indexed", {"episodes": [8]}, "numbers from 0 to 7, got 8"),
  "none left": ("store", {"episodes": [0], "split": "eval"}, "some that are in split"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_unknown_splits_are_named(folder, case):
  name, options, message = ERRORS[case]
  with pytest.raises(errors.SpecError, match=message):
    seen(GENERATORS[name](folder, **options), "eval")


def test_sources_of_a_mixture_keep_their_own_choices(folder):
  def source(**options):
    return data.StoreInputGenerator(folder / "store", 2, **options)

  def mix(sources, **options):
    return data.MixtureInputGenerator(sources, batch_size=2, seed=0, **options)

  both = {"split": source(split="train"), "listed": source(episodes=[0, 6])}
  assert seen(mix(both, episodes={"listed": [3]}), "eval") == sorted([*TRAIN, 3])
  assert seen(mix(both, episodes={"split": [1]}), "eval") == [1, 3]
  listed = {"listed": source(episodes=[0, 6])}
  assert seen(mix(listed, split="eval"), "eval") == [6]
  assert seen(mix({"inner": mix(listed)}, split="train"), "eval") == [0]


def test_sources_without_episode_numbers_reject_splits(folder):
  with pytest.raises(errors.SpecError, match="expected 'raise' where episodes are"):
    records_of("many", folder, episodes=[1], on_bad_record="skip")
  made_up = data.DefaultRandomInputGenerator(batch_size=2)
  with pytest.raises(errors.SpecError, match="episodes change, or are generated"):
    made_up.set_episodes(split="train")
  with pytest.raises(errors.SpecError, match="episodes: b: expected the name of a so"):
    data.MixtureInputGenerator({"a": made_up}, episodes={"b": [1]})


def test_conversions_keep_splits_deal_them_and_read_one(folder, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  source = folder / "store"
  for name in ("x.zarr", "x.hdf5"):
    convert.convert(source, name)
    convert.convert(name, f"{name}.store", format="store")
    assert store.EpisodeStore(f"{name}.store").splits == {"train": TRAIN, "eval": EVAL}
  some = dict(filter="train", split="a=0.6,b=0.4", seed=1)
  convert.convert(source, "some", **some, format="store")
  opened = store.EpisodeStore("some")
  assert [int(opened.episode(n).number[0]) for n in range(5)] == TRAIN
  assert {name: len(found) for name, found in opened.splits.items()} == {"a": 3, "b": 2}
  assert sorted(opened.splits["a"] + opened.splits["b"]) == list(range(5))
  verify_conversion(source, "some")
  # Of the files of a split alone, whose number nobody has counted.
  files = str(folder / "many-*")
  shares = dict(filter="train", split="all=1")
  convert.convert(files, "files", FLAT, **shares)
  assert store.EpisodeStore("files").splits == {"all": [0, 1, 2, 3, 4]}
  # LeRobot's ranges, and what is none.
  store.EpisodeStore.write_splits("some", {"late": [3, 4], "odd": [0, 2]})
  convert.convert("some", "x.lerobot", fps=10)
  with open("x.lerobot/meta/info.json") as file:
    assert json.load(file)["splits"] == {"late": "3:5"}
  assert {n: list(f) for n, f in LeRobotFolder("x.lerobot").splits.items()} == {
    "late": [3, 4],
    "odd": [0, 2],
  }
  for given, message in (
    ("train=0.9,eval=0.2", "sum of 1 at most, got 1.1"),
    ("train=many", "names and shares, such as"),
    ("train=0.99,eval=0.01", "eval: expected a share that gives it an episode of 8"),
  ):
    with pytest.raises(errors.SpecError, match=message):
      convert.convert(source, "y.zarr", split=given)


def test_commands_name_splits_and_read_one(folder, capsys):
  path = str(folder / "store")
  assert main(["inspect", path]) == 0
  assert "splits: train 5, eval 3" in capsys.readouterr().out
  assert main(["inspect", path, "--split", "eval"]) == 0
  assert "3 episodes, 11 steps" in capsys.readouterr().out
  assert main(["doctor", path, "--split", "eval"]) == 0
  assert "No problems in 3 episodes" in capsys.readouterr().out
  assert main(["stats", path, "--split", "eval"]) == 0
  with open(folder / "store" / "eval.statistics.json") as file:
    assert json.load(file)["num_items"] == 3
  assert "No problems in 8 episodes" in _doctor(path, capsys)
  assert main(["inspect", path, "--split", "evel"]) == 1
  assert "Did you mean 'eval'" in capsys.readouterr().err
  assert main(["stats", f"{folder}/plain-*", "--split", "eval"]) == 0
  assert os.path.exists(folder / "eval.statistics.json")


def _doctor(path, capsys):
  assert main(["doctor", path]) == 0
  return capsys.readouterr().out


def test_damaged_splits_are_named(tmp_path):
  with store.EpisodeStore.create(tmp_path / "s", FLAT) as writer:
    writer.append_episode(episode(1))
  with pytest.raises(errors.SpecError, match="split 'a': expected numbers from 0 to 0"):
    store.EpisodeStore.write_splits(tmp_path / "s", {"a": [1]})
  place = tmp_path / "s" / "splits.json"
  for text, message in DAMAGED.items():
    place.write_text(text)
    with pytest.raises(errors.StoreError, match=rf"splits.json: .*{message}"):
      _ = store.EpisodeStore(tmp_path / "s").splits
    assert main(["doctor", str(tmp_path / "s")]) == 1


LISTED = {"a word": "1\nseven", "a range": "1\n2-5", "too long": "1\n" + "9" * 5000}


@pytest.mark.parametrize("name", LISTED)
def test_line_that_is_no_number_is_named(name, tmp_path):
  (tmp_path / "keep.txt").write_text(LISTED[name])
  with pytest.raises(errors.SpecError, match=r"line 2: expected the number of an epis"):
    choose_episodes("read", 9, tmp_path / "keep.txt")


def _splits(text):
  return f'{{"format": "t2r_seq.splits", "version": 1, "splits": {{"a": {text}}}}}'


DAMAGED = {
  "{}": "expected splits",
  _splits("[0.5]"): "0.5 is not a count",
  _splits("[true]"): "True is not a count",
  _splits('"0"'): "'0' is not a count",
  _splits("[1]"): "split 'a': expected numbers from 0 to 0, got 1",
  _splits('[0], "b": [0]')[:-1] + ', "segments": [["gone", 1]]}': "written for, .gone.",
}


def test_splits_stay_with_their_episodes(tmp_path):
  """Whichever segments grow, come and are merged: numbers are counted through all."""
  path, told = tmp_path / "s", {}

  def check():
    opened = store.EpisodeStore(path)
    found = {
      name: [int(opened.episode(n)["number"][0]) for n in numbers]
      for name, numbers in opened.splits.items()
    }
    assert found == told

  def append(segment, numbers):
    make = store.EpisodeStore.append if path.exists() else store.EpisodeStore.create
    arguments = {} if path.exists() else {"spec": FLAT}
    with make(path, segment=segment, **arguments) as writer:
      for number in numbers:
        writer.append_episode(episode(number))

  append("m", [1, 2])
  append("q", [3])
  store.EpisodeStore.write_splits(path, {"train": [0, 2], "eval": [1]})
  told = {"train": [1, 3], "eval": [2]}
  append("m", [4])
  check()
  append("a", [5, 6])
  check()
  store.EpisodeStore.merge(path)
  check()
  append("0", [7])
  check()
