"""Zarr groups as diffusion_policy writes them, and what is refused."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import shutil
import sys
import types
import zipfile

import numcodecs
import numpy as np
import pytest
import zarr

from t2r_seq import convert, errors, specs, store
from t2r_seq.cli.main import main
from t2r_seq.episodes import open_episodes
from t2r_seq.formats.zarr import ZarrRows

IS_V3 = int(zarr.__version__.split(".")[0]) >= 3
ENDS = [3, 4, 9]


def open_group(path, version=2):
  options = {"zarr_format": version} if IS_V3 else {}
  return zarr.open_group(str(path), mode="a", **options)


def put(group, name, value, **options):
  if IS_V3:
    array = group.create_array(name, shape=value.shape, dtype=value.dtype, **options)
  else:
    array = group.create_dataset(name, shape=value.shape, dtype=value.dtype, **options)
  array[...] = value


def arrays():
  rng = np.random.default_rng(0)
  return {
    "img": rng.integers(0, 255, (9, 4, 5, 3)).astype(np.uint8),
    "state": rng.normal(size=(9, 2)).astype(np.float32),
    "action": rng.normal(size=(9, 2)),
    "done": np.arange(9) % 2 == 0,
    "big": np.arange(9).astype(">i4"),
  }


def make_group(path="x.zarr", version=2, ends=ENDS, changes=None):
  """Makes a group like those of diffusion_policy's ReplayBuffer."""
  group = open_group(path, version)
  data, meta = group.create_group("data"), group.create_group("meta")
  for name, value in {**arrays(), **(changes or {})}.items():
    if name == "big" and version == 3:
      value = value.astype("<i4")  # Not every release has dtypes of this byte order.
    if value is not None:
      put(data, name, value, chunks=(4, *value.shape[1:]))
  put(meta, "episode_ends", np.asarray(ends, np.int64), chunks=(len(ends),))
  put(meta, "goal", np.arange(6, dtype=np.float32).reshape(3, 2), chunks=(3, 2))
  group.attrs["fps"] = 10
  return group


def want_episodes():
  found = []
  for index, end in enumerate(ENDS):
    start = ENDS[index - 1] if index else 0
    episode = {name: value[start:end] for name, value in arrays().items()}
    episode["big"] = episode["big"].astype("<i4")
    episode["goal"] = np.arange(6, dtype=np.float32).reshape(3, 2)[index]
    found.append(episode)
  return found


@pytest.mark.parametrize("version", [2, 3] if IS_V3 else [2])
def test_into_a_store(version, data):
  make_group(version=version)
  report = convert.convert("x.zarr", "back")
  assert (report.num_episodes, report.num_steps) == (3, 9)
  data.assert_episodes("back", want_episodes())
  assert store.EpisodeStore("back").metadata == {"zarr": {"fps": 10}}


def test_zip_file(data):
  make_group("folder.zarr")
  with zipfile.ZipFile("x.zarr.zip", "w") as archive:
    for path in sorted(pathlib.Path("folder.zarr").rglob("*")):
      if path.is_file():
        archive.write(path, path.relative_to("folder.zarr"))
  convert.convert("x.zarr.zip", "back")
  data.assert_episodes("back", want_episodes())


def test_compressed_by_any_codec(data):
  group = make_group(changes={"img": None})
  codec = numcodecs.Blosc("lz4", shuffle=2)
  options = {"compressors": codec} if IS_V3 else {"compressor": codec}
  put(group["data"], "img", arrays()["img"], chunks=(2, 4, 5, 3), **options)
  convert.convert("x.zarr", "back")
  data.assert_episodes("back", want_episodes())


def test_out_and_back(data):
  """What zarr itself reads is the flat data; a round trip is exact, specs too."""
  data.make_store("source", 70, data.NUMBERS, {"robot": "arm"})
  convert.convert("source", "x.zarr")
  group = zarr.open_group("x.zarr", mode="r")
  opened = store.EpisodeStore("source")
  names = sorted(name for name, _ in group["data"].arrays())
  assert names == ["actions", "dones", "obs_image", "obs_pose"]
  for name, path in zip(
    names, ["actions", "dones", "obs/image", "obs/pose"], strict=True
  ):
    want = np.asarray(opened.column(path))
    got = group["data"][name][...]
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
  ends = group["meta/episode_ends"][...]
  assert ends.dtype == np.int64 and ends.tolist() == opened.episode_ends.tolist()
  np.testing.assert_array_equal(group["meta/goal"][...], opened.column("goal"))
  assert json.loads(pathlib.Path("x.zarr/.zgroup").read_text()) == {"zarr_format": 2}
  convert.convert("x.zarr", "back")
  want = [data.only(data.make_episode(index), data.NUMBERS) for index in range(70)]
  data.assert_episodes("back", want)
  back = store.EpisodeStore("back")
  assert back.metadata == {"robot": "arm"} and dict(back.spec) == dict(opened.spec)


def test_chunks_of_many_episodes(data, monkeypatch):
  """Chunks that end within episodes, and episodes of many chunks."""
  from t2r_seq.formats import zarr as zarr_group

  monkeypatch.setattr(zarr_group, "_MAX_CHUNK_STEPS", 4)
  data.make_store("source", 9, data.NUMBERS, num_steps=11)
  convert.convert("source", "x.zarr")
  convert.convert("x.zarr", "back")
  want = [data.only(data.make_episode(i, 11), data.NUMBERS) for i in range(9)]
  data.assert_episodes("back", want)


def break_metadata(name, **changes):
  path = pathlib.Path(f"x.zarr/data/{name}/.zarray")
  path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_pickled_arrays_are_not_read():
  make_group()
  codec = [{"id": "pickle", "protocol": 5}]
  break_metadata("img", dtype="|O", filters=codec, fill_value=None)
  break_metadata("state", filters=codec)
  with pytest.raises(ValueError, match="--drop img") as caught:
    convert.convert("x.zarr", "back")
  for name in ("img", "state"):
    caught.match(f"{name}: expected an array of numbers, got pickled objects.")
  assert not pathlib.Path("back").exists()


def test_unknown_compressor_names_the_package_to_install():
  make_group()
  break_metadata("img", compressor={"id": "jpeg2k"})
  with pytest.raises(ValueError, match=r"img: .*jpeg2k(?s:.*)Install the package of"):
    convert.convert("x.zarr", "back")


def test_codecs_of_imagecodecs_are_registered_or_named(monkeypatch, data):
  group, codec = make_group(changes={"img": None}), numcodecs.Zstd(level=1)
  options = {"compressors": codec} if IS_V3 else {"compressor": codec}
  put(group["data"], "img", arrays()["img"], chunks=(2, 4, 5, 3), **options)
  break_metadata("img", compressor={"id": "imagecodecs_none", "level": 1})
  monkeypatch.setitem(sys.modules, "imagecodecs.numcodecs", None)
  with pytest.raises(ValueError, match=r"img: .*pip install imagecodecs, which has"):
    convert.convert("x.zarr", "back")

  class Codec(numcodecs.Zstd):
    codec_id = "imagecodecs_none"

  register = types.SimpleNamespace(
    register_codecs=lambda verbose: numcodecs.register_codec(Codec)
  )
  monkeypatch.setitem(sys.modules, "imagecodecs", types.SimpleNamespace())
  monkeypatch.setitem(sys.modules, "imagecodecs.numcodecs", register)
  convert.convert("x.zarr", "back")
  data.assert_episodes("back", want_episodes())


LAYOUTS = {
  "rows": (
    {"changes": {"state": np.zeros((8, 2), np.float32), "done": np.zeros(7, bool)}},
    ["state: expected 9 rows, as meta/episode_ends says, got", "done: expected 9 rows"],
  ),
  "ends": ({"ends": [3, 2, 9]}, ["meta/episode_ends: expected integers that rise"]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_broken_layouts(name):
  options, wants = LAYOUTS[name]
  make_group(**options)
  with pytest.raises(ValueError) as caught:
    convert.convert("x.zarr", "back")
  for want in wants:
    assert want in str(caught.value)


def test_no_episode_ends():
  open_group("x.zarr").create_group("data")
  with pytest.raises(ValueError, match="expected an array meta/episode_ends"):
    convert.convert("x.zarr", "back")


def test_images_and_strings_cannot_be_written_as_arrays(data):
  data.make_store("source", 2)
  want = r"frame: expected numbers, got encoded images \(jpeg\). Store pixels:"
  with pytest.raises(ValueError, match=want) as caught:
    convert.convert("source", "x.zarr")
  caught.match("words: expected numbers, got byte strings. Leave it out: --drop words.")
  options = dict(decode_images=True, drop=("words", "task"))
  with pytest.raises(ValueError, match="force: expected a path that every episode has"):
    convert.convert("source", "x.zarr", **options)
  convert.convert(
    "source", "x.zarr", decode_images=True, drop=("words", "task", "force", "rating")
  )
  group = zarr.open_group("x.zarr", mode="r")
  assert group["data/frame"].shape == (3, 8, 6, 3)


def test_names_that_clash(data):
  spec = {"a/b": data.NUMBERS["dones"], "a_b": data.NUMBERS["dones"]}
  with store.EpisodeStore.create("source", spec) as writer:
    writer.append_episode({"a/b": [True], "a_b": [False]})
  with pytest.raises(ValueError, match=r"a_b: expected another name .*as a/b has"):
    convert.convert("source", "x.zarr")


DAMAGED_METADATA = {
  "no JSON": ("data/state/.zarray", b"{"),
  "a list": ("data/state/.zarray", b"[]"),
  "nothing": ("meta/episode_ends/.zarray", b"null"),
  "deep": ("data/state/.zarray", b"[" * 100_000),
  "no text": ("meta/goal/.zarray", b"\xff\xfe"),
  "a shape of words": ("data/state/.zarray", b'{"shape": ["x"], "zarr_format": 2}'),
  "attributes": (".zattrs", b"[1]"),
  "splits": (".zattrs", b'{"t2r_seq_metadata": {"splits": [1]}}'),
}


@pytest.mark.parametrize("name", DAMAGED_METADATA)
def test_damaged_metadata_is_named(name, tmp_path):
  make_group(tmp_path / "x.zarr")
  place, content = DAMAGED_METADATA[name]
  (tmp_path / "x.zarr" / place).write_bytes(content)
  match = r"open_episodes: \S*x\.zarr.*: expected "
  with pytest.raises(errors.ConversionError, match=match):
    convert.convert(str(tmp_path / "x.zarr"), str(tmp_path / "store"))


def test_damaged_chunk():
  make_group()
  (chunk,) = pathlib.Path("x.zarr/data/state").glob("1.0")
  chunk.write_bytes(b"damaged" + chunk.read_bytes()[7:])
  with pytest.raises(ValueError, match=r"episode \d of x.zarr: state: expected chunks"):
    convert.convert("x.zarr", "back")


@pytest.mark.parametrize("place", ["data/state/0.0", "data/state", "meta/more"])
def test_links_are_not_followed(place, tmp_path):
  make_group()
  there, elsewhere = pathlib.Path("x.zarr") / place, tmp_path / "elsewhere"
  if there.exists():
    there.rename(elsewhere)
  there.symlink_to(elsewhere)
  want = rf"{there}: expected a file or folder of the zarr group, got a link to .*where"
  with pytest.raises(ValueError, match=want):
    convert.convert("x.zarr", "back")
  assert not pathlib.Path("back").exists()


def test_pipe_is_no_chunk():
  make_group()
  chunk = pathlib.Path("x.zarr/data/state/0.0")
  chunk.unlink()
  os.mkfifo(chunk)
  with pytest.raises(
    ValueError, match=r"state/0.0: expected a file .* got another kind"
  ):
    convert.convert("x.zarr", "back")


def test_group_itself_may_be_reached_by_a_link(data):
  make_group("real.zarr")
  pathlib.Path("x.zarr").symlink_to("real.zarr")
  assert convert.convert("x.zarr", "back").num_episodes == 3


def lose(*names):
  return lambda: [os.remove(name) for name in names]


# What happens to the group, its zarr formats; what is reported of which array, and
# whether `doctor` takes it for damage.
MISSING = {
  "nothing": (lambda: None, "", False),
  "images": (
    lose("x.zarr/data/img/1.0.0.0"),
    "img: 1 of 3 chunks were never written, and are read as 0, first data/img/1.0.0.0, "
    "from row 4. They are lost, unless",
    True,
  ),
  "numbers": (
    lose("x.zarr/data/state/0.0", "x.zarr/data/state/2.0"),
    "state: 2 of 3 chunks were never written, and are read as 0.0, first "
    "data/state/0.0, from row 0.",
    False,
  ),
  "of an episode": (lose("x.zarr/meta/goal/0.0"), "goal: 1 of 1 chunks", False),
  "black images alone": (
    lose(*(f"x.zarr/data/img/{i}.0.0.0" for i in range(3))),
    "img: 3 of 3 chunks were never written",
    False,
  ),
}


@pytest.mark.parametrize("kind", ["folder", "zip"])
@pytest.mark.parametrize("name", MISSING)
def test_missing_chunks(name, kind, capsys):
  change, match, is_damage = MISSING[name]
  make_group()
  change()
  path = "x.zarr"
  if kind == "zip":
    path = shutil.make_archive("x.zarr", "zip", "x.zarr")
  report = convert.convert(path, "back")
  assert [note for note in report.notes if match in note] == list(report.notes)
  assert bool(report.notes) == bool(match)
  assert main(["doctor", path]) == int(is_damage)
  assert match in " ".join(capsys.readouterr().out.split())


def test_missing_ends():
  make_group()
  os.remove("x.zarr/meta/episode_ends/0")
  with pytest.raises(
    errors.ConversionError, match="episode_ends: expected its chunk 0"
  ):
    open_episodes("x.zarr")


@pytest.mark.skipif(not IS_V3, reason="zarr format 3")
def test_missing_chunks_of_format_3():
  make_group(version=3)
  os.remove("x.zarr/data/img/c/1/0/0/0")
  notes = convert.convert("x.zarr", "back").notes
  assert notes[0].startswith("img: 1 of 3 chunks were never written")
  assert "first data/img/c/1/0/0/0, from row 4" in notes[0]


def test_black_images_are_written():
  spec = {"img": specs.ExtendedTensorSpec((4, 5, 3), np.uint8, is_sequence=True)}
  with store.EpisodeStore.create("s", spec) as target:
    target.append_episode({"img": np.zeros((9, 4, 5, 3), np.uint8)})
  convert.convert("s", "x.zarr")
  assert convert.convert("x.zarr", "back").notes == ()


class CountingArray:
  """Counts how often the chunk of each row is read."""

  def __init__(self, num_rows, chunk):
    self.values = np.arange(2 * num_rows).reshape(num_rows, 2)
    self.shape, self.chunks = self.values.shape, (chunk, 2)
    self.reads = np.zeros(num_rows, int)

  def __getitem__(self, rows):
    assert rows.start % self.chunks[0] == 0
    self.reads[rows] += 1
    return self.values[rows]


# name: (rows, rows of a chunk, the bounds of what is read)
ROWS = {
  "one chunk for all": (20, 100, [0, 3, 4, 11, 20]),
  "chunks within episodes": (20, 3, [0, 7, 8, 20]),
  "episodes within chunks": (20, 7, [0, 1, 2, 3, 9, 14, 20]),
  "the same bounds": (12, 4, [0, 4, 8, 12]),
  "from the middle": (20, 4, [9, 11, 17]),
  "no rows at the end": (12, 4, [0, 12, 12]),
}


@pytest.mark.parametrize("name", ROWS)
def test_each_chunk_is_read_once(name):
  num_rows, chunk, bounds = ROWS[name]
  array = CountingArray(num_rows, chunk)
  rows = ZarrRows(array)
  for start, end in itertools.pairwise(bounds):
    np.testing.assert_array_equal(rows.read(start, end), array.values[start:end])
  assert set(array.reads[bounds[0] : bounds[-1]]) == {1} and array.reads.max() == 1
