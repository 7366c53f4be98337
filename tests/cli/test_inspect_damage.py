"""`t2r_seq inspect` of damaged files: what is before the damage, then where it is."""

from __future__ import annotations

import gzip
import pathlib
import re

import pytest
import tensorflow as tf

from t2r_seq import records, specs

_SPEC = {"x": specs.ExtendedTensorSpec((2,), tf.float32, "x")}
_WRONG = {"x": specs.ExtendedTensorSpec((3,), tf.float32, "x")}
_RECORD = records.encode_example(_SPEC, {"x": [0.0, 1.0]})
_FRAME = len(_RECORD) + 16
_LAST = 2 * _FRAME
SPEC_OF = {"fits": _SPEC, "misfits": _WRONG}


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
  """A good file of three records in the current folder."""
  monkeypatch.chdir(tmp_path)
  records.write_records("good.tfrecord", _SPEC, [{"x": [i, 1.0]} for i in range(3)])
  for name, spec in SPEC_OF.items():
    pathlib.Path(f"{name}.json").write_text(specs.TensorSpecStruct(spec).to_json())


def cut(name, size):
  """Writes the first bytes of the good file to another."""
  pathlib.Path(name).write_bytes(pathlib.Path("good.tfrecord").read_bytes()[:size])


def damage(name, got="", index=2):
  return (
    rf"t2r_seq inspect: record {index} of {name} \(byte {index * _FRAME}\): frame: "
    rf"expected [^\n]*{got}[^\n]* The records before it are good\. Copy what is good: "
    rf"t2r_seq doctor {name} --salvage OUT\n"
  )


CUTS = {
  "in the data": (3 * _FRAME - 5, "then the end: the file is truncated"),
  "in the checksum": (3 * _FRAME - 1, "then the end: the file is truncated"),
  "in the header": (_LAST + 7, "got 7, then the end: the file is truncated"),
}


@pytest.mark.parametrize("name", CUTS)
def test_inspect_shows_records_before_the_damage(run_main, name):
  size, got = CUTS[name]
  cut("cut.tfrecord", size)
  status, out, err = run_main("inspect", "cut.tfrecord")
  assert status == run_main("doctor", "cut.tfrecord")[0] == 1
  assert out.startswith("cut.tfrecord: 2 whole records, tf.train.Example\n")
  assert re.search(r"\nx +context +float +2 +- +100 % +float32\n", out)
  assert "A spec that parses them:" in out
  assert re.fullmatch(damage("cut.tfrecord", got), err)
  # The remedy is one.
  run_main("doctor", "cut.tfrecord", "--salvage", "saved")
  assert run_main("inspect", "saved/cut.tfrecord")[0::2] == (0, "")


def test_flipped_bits(run_main):
  content = bytearray(pathlib.Path("good.tfrecord").read_bytes())
  content[_FRAME + 14] ^= 4
  pathlib.Path("bad.tfrecord").write_bytes(content)
  status, out, err = run_main("inspect", "bad.tfrecord")
  assert status == 1
  assert out.startswith("bad.tfrecord: 1 whole record, tf.train.Example\n")
  assert re.fullmatch(damage("bad.tfrecord", "flipped bits in its", 1), err)


def test_compressed_data_that_is_damaged_after_its_first_bytes(run_main):
  content = bytearray(gzip.compress(pathlib.Path("good.tfrecord").read_bytes(), 0))
  content[_FRAME + 40] ^= 4  # Stored as it is: zlib tells at the end only.
  pathlib.Path("bad.tfrecord.gz").write_bytes(content)
  status, _, err = run_main("inspect", "bad.tfrecord.gz")
  assert status == 1
  want = f"record 1 of bad.tfrecord.gz (byte {_FRAME}): frame: expected data with a fit"
  assert want in err and "t2r_seq doctor" in err
  assert "file type" not in err


def test_several_files(run_main):
  cut("a.tfrecord", _LAST + 9)
  cut("c.tfrecord", _LAST + 20)
  status, out, err = run_main("inspect", "*.tfrecord")
  assert status == 1
  assert out.startswith("3 files: 7 whole records, tf.train.Example\n")
  assert re.fullmatch(damage(r"\./a\.tfrecord") + damage(r"\./c\.tfrecord"), err)


def test_spec_alone(run_main):
  cut("cut.tfrecord", _LAST + 20)
  status, out, err = run_main("inspect", "cut.tfrecord", "--format", "json")
  assert (status, list(specs.TensorSpecStruct.from_json(out))) == (1, ["x"])
  assert re.fullmatch(damage("cut.tfrecord"), err)
  status, _, err = run_main("inspect", "cut.tfrecord", "--output", "spec.json")
  assert status == 1 and re.fullmatch(damage("cut.tfrecord"), err)
  assert list(specs.TensorSpecStruct.from_json(pathlib.Path("spec.json").read_text()))


SPECS = {
  "fits": "",
  "misfits": r"t2r_seq inspect: record 0 of cut.tfrecord \(byte 0\): x [^\n]* 3 v.*\n",
}


@pytest.mark.parametrize("name", SPECS)
def test_check_against_specs(run_main, name):
  cut("cut.tfrecord", _LAST + 20)
  status, out, err = run_main("inspect", "cut.tfrecord", "--spec", f"{name}.json")
  assert status == 1
  assert out.startswith("cut.tfrecord: 2 whole records") and "All records" not in out
  assert re.fullmatch(SPECS[name] + damage("cut.tfrecord"), err)


@pytest.mark.parametrize("size", [20, _FRAME - 1])
def test_no_whole_record_is_a_plain_error(run_main, size):
  cut("cut.tfrecord", size)
  status, out, err = run_main("inspect", "cut.tfrecord")
  assert (status, out) == (1, "")
  want = (
    r"t2r_seq inspect: record 0 of cut.tfrecord \(byte 0\): frame: .* is truncated\."
  )
  assert re.fullmatch(want, err.strip())


def test_inspect_reports_odd_values_and_does_not_propose_them(run_main):
  short = records.encode_example(
    {"x": specs.ExtendedTensorSpec((1,), tf.float32, "x")}, {"x": [0.0]}
  )
  with tf.io.TFRecordWriter("odd.tfrecord") as writer:
    for number in range(40):
      writer.write(short if number == 7 else _RECORD)
  message = (
    "'x': 1 of 40 records has 1 x float, not 2 x float: record 7 of odd.tfrecord ("
  )
  hint = "t2r_seq doctor odd.tfrecord --spec spec.json"
  status, out, err = run_main("inspect", "odd.tfrecord", "--output", "spec.json")
  assert (status, err) == (0, "")
  assert message in " ".join(out.split()) and f"without these: {hint}\n" in out
  status, out, err = run_main("inspect", "odd.tfrecord", "--format", "json")
  assert out == pathlib.Path("spec.json").read_text()
  assert message in err and hint in err
  # The remedy is one.
  saved = ("--spec", "spec.json", "--salvage", "saved")
  status, out, _ = run_main("doctor", "odd.tfrecord", *saved)
  assert status == 1 and "odd.tfrecord: 40 records, 1 bad" in out
  assert "Salvaged 39 of 40 records" in out
