"""The entry: help, errors, and the exit status."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

import t2r_seq
from t2r_seq import __version__, records, specs, store
from t2r_seq.cli import main as main_function
from t2r_seq.cli import view
from tests.format_data import FORMATS

LIGHT = {
  "--help": ["--help"],
  "--version": ["--version"],
  "mistyped": ["trian"],
  "help of a command": ["train", "--help"],
  "inspect a store": ["inspect", "a_store"],
  "doctor of a store": ["doctor", "a_store"],
  "index": ["index", "some-*.tfrecord", "--num_parallel", "1"],
  "info": ["info", "--no_devices"],
  "check of an index": ["index", "some-*.tfrecord", "--check"],
}
_WITH_SPECS = (
  *("LeRobot v3", "LeRobot v2.1", "robomimic", "Minari", "Minari in Arrow", "ALOHA"),
  *("D4RL", "zarr", "MCAP"),
)
RUN_ALL = """
import json, sys
from t2r_seq.cli import main
for name, argv in json.loads(sys.argv[1]).items():
  print("RUN", name)
  try:
    status = main(argv)
  except SystemExit as end:
    status = end.code
  loaded = {"tensorflow", "keras"} & {*sys.modules}
  print("END", name, status, sorted(loaded))
"""


def test_commands_on_bytes_do_not_import_tensorflow(run_python, tmp_path, monkeypatch):
  commands = dict(LIGHT)
  for name in _WITH_SPECS:
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(folder)
    commands[name] = ["inspect", str(folder / FORMATS[name].make())]
    for key, file_name in FORMATS[name].options:
      commands[name] += [f"--{key}", str(folder / file_name)]
  spec = {
    "image": specs.ExtendedTensorSpec(
      (8, 8, 3), "uint8", data_format="jpeg", is_sequence=True
    ),
    "state": specs.ExtendedTensorSpec((2,), "bfloat16", is_sequence=True),
    "timestamp": specs.ExtendedTensorSpec((), "float64", is_sequence=True),
    "task": specs.ExtendedTensorSpec((), "string", is_optional=True),
  }
  with store.EpisodeStore.create(tmp_path / "a_store", spec) as writer:
    batch = specs.make_random_numpy(spec, batch_size=1, sequence_length=3)
    episode = {path: values[0] for path, values in batch.items()}
    writer.append_episode({**episode, "timestamp": np.array([0.0, 2.0, 1.0])})
  state = specs.ExtendedTensorSpec((2,), "float32", "state", is_sequence=True)
  numbers = {"state": np.zeros((3, 2), np.float32)}
  records.write_records(tmp_path / "some-0.tfrecord", {"state": state}, [numbers])
  shown = run_python("-c", RUN_ALL, json.dumps(commands), cwd=tmp_path)
  ends = re.findall(r"^END (.*) (\S+) (\[.*\])$", shown.stdout, re.MULTILINE)
  wants = {"mistyped": "2", "doctor of a store": "1"}
  assert ends == [(name, wants.get(name, "0"), "[]") for name in commands], shown.stderr
  for command in ("train", "collect", "inspect", "predict"):
    assert f"\n    {command} " in shown.stdout, shown.stdout
  assert "\nstate      bfloat16" in shown.stdout
  assert "got 1.0 at step 2" in shown.stdout
  assert "\n1 records; 3 steps of state.\n" in shown.stdout


@pytest.mark.parametrize("command", ["train", "collect", "inspect", "predict"])
def test_every_command_has_help(command, capsys):
  with pytest.raises(SystemExit, match="0"):
    main_function([command, "--help"])
  assert "t2r_seq " + command in capsys.readouterr().out


def test_version(capsys):
  with pytest.raises(SystemExit, match="0"):
    main_function(["--version"])
  assert capsys.readouterr().out == f"{__version__}\n"


MISTYPED = {
  "a command": (["trian"], "there is no command 'trian'. Did you mean 'train'?"),
  "nothing like a command": (["zzz"], "there is no command 'zzz'.\n"),
  "an option": (["inspect", "x", "--spce", "y"], "--spce y Did you mean '--spec'?"),
  "hyphens in an option": (["train", "--print-config"], "mean '--print_config'?"),
}


@pytest.mark.parametrize(
  "argv",
  [
    ["convert", "x", "y"],
    ["evaluate", "x", "--env", "E"],
    ["import", "--lerobot", "x", "y"],
    ["predict", "x", "--random"],
  ],
)
def test_negative_seed_is_an_error(argv, capsys):
  with pytest.raises(SystemExit, match="2"):
    main_function([*argv, "--seed", "-1"])
  want = "argument --seed: expected an integer of at least 0, got '-1'."
  assert want in capsys.readouterr().err


@pytest.mark.parametrize("name", MISTYPED)
def test_mistyped_arguments_get_the_nearest_name(name, capsys):
  argv, want = MISTYPED[name]
  with pytest.raises(SystemExit, match="2"):
    main_function(argv)
  assert want in capsys.readouterr().err


@pytest.mark.parametrize(
  ("line", "want"),
  [("t2r_seq ins", ["inspect "]), ("t2r_seq doctor --sal", ["--salvage "])],
)
def test_shells_complete_commands_and_options(line, want, tmp_path):
  pytest.importorskip("argcomplete", reason="the extra `completion`")
  out = tmp_path / "completions"
  completion = {
    "_ARGCOMPLETE": "1",
    "_ARGCOMPLETE_STDOUT_FILENAME": str(out),
    "COMP_LINE": line,
    "COMP_POINT": str(len(line)),
  }
  command = [sys.executable, "-m", "t2r_seq"]
  subprocess.run(command, env={**os.environ, **completion}, check=True)
  assert out.read_text().split("\v") == want


def test_gin_lists_all_configurables_without_an_import(run_python):
  package = pathlib.Path(t2r_seq.__file__).parent
  # Tests import what is for tests; the face only gives names.
  others = ("testing", "tensorspec_utils")
  mark = re.compile(r"^\s*@gin\.(configurable|register)\b", re.MULTILINE)
  marked = {
    ".".join(path.relative_to(package.parent).with_suffix("").parts)
    for path in package.rglob("*.py")
    if mark.search(path.read_text(encoding="utf-8"))
    and path.relative_to(package).with_suffix("").parts[0] not in others
  }
  code = (
    "import sys\n"
    "from t2r_seq.cli import console\n"
    "console.load_configurables()\n"
    "print(*sys.modules)\n"
  )
  shown = run_python("-c", code)
  assert shown.returncode == 0, shown.stderr
  assert len(marked) > 30
  assert marked - set(shown.stdout.split()) == set()


def test_gin_shows_names_parameters_and_defaults(capsys):
  assert main_function(["gin"]) == 0
  listed = capsys.readouterr().out
  assert "\nStoreInputGenerator  " in listed and "train_eval_model  " in listed
  assert max(map(len, listed.splitlines())) <= 100
  assert main_function(["gin", "create_adam_optimizer"]) == 0
  shown = capsys.readouterr().out
  assert shown.startswith(
    "create_adam_optimizer  (import t2r_seq.models)\n  Creates an"
  )
  assert ".learning_rate_fn = @create_constant_learning_rate\n" in shown
  # What a class passes on to its base can be bound, too.
  assert main_function(["gin", "RldsInputGenerator", "ReplayCheckpoint"]) == 0
  shown = capsys.readouterr().out
  assert "ReplayCheckpoint.replay: has to be given" in shown
  assert "RldsInputGenerator.file_patterns: has to be given" in shown
  assert "RldsInputGenerator.batch_size = " in shown
  # So can the fields of a cut that come as keywords.
  assert main_function(["gin", "ReplayBuffer"]) == 0
  shown = capsys.readouterr().out
  for field in ("padding", "n_step", "stride", "masks"):
    assert f"ReplayBuffer.{field} = " in shown


UNKNOWN_TO_GIN = {
  "a name": (["gin", "StoreInputGenrator"], "Did you mean 'StoreInputGenerator'?"),
  "a binding": (
    ["train", "--gin_bindings", "trian_eval_model.seed = 1"],
    "Did you mean 'train_eval_model'?",
  ),
  "a parameter": (
    ["train", "--gin_bindings", "train_eval_model.model_dri = 1"],
    "Did you mean 'model_dir'?",
  ),
  "a reference of a module": (
    ["train", "--gin_bindings", "train_eval_model.t2r_model = @models.MLPP()"],
    "Did you mean 'MLP'?",
  ),
  "a macro": (
    ["collect", "--gin_bindings", "MODEL = 1", "collect_episodes.env = %MODL"],
    "the gin macro %MODL is used and not defined. Did you mean 'MODEL'?",
  ),
  "a reference": (
    ["train", "--gin_bindings", "train_eval_model.t2r_model = @MLPP()"],
    "Did you mean 'MLP'?",
  ),
}


@pytest.mark.parametrize("name", UNKNOWN_TO_GIN)
def test_unknown_gin_names_get_the_nearest_name(name, capsys):
  argv, want = UNKNOWN_TO_GIN[name]
  assert main_function(argv) == 1
  assert want in capsys.readouterr().err


def test_no_command_is_a_usage_error(capsys):
  with pytest.raises(SystemExit, match="2"):
    main_function([])
  assert "COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(
  ("bad", "want"),
  [
    ("f.x 2", "expected ':' or '='"),
    ("f.x = [1, 2", "EOF in multi-line statement"),
    ("f.x = 'abc", "Unable to parse value"),
    ("f.x = foo bar", "Failed to parse token 'foo'"),
    ("f.x = 1 2", ""),
    ("f.x == 1", ""),
    ("@f.x = 1", "Unexpected token"),
  ],
)
@pytest.mark.parametrize("rest", [[], ["g = 1", "h = 'f'"]], ids=["alone", "last"])
def test_binding_that_is_no_gin_is_quoted(run_main, bad, want, rest):
  status, out, err = run_main("train", "--gin_bindings", *rest, bad)
  assert (status, out) == (1, "")
  assert err.startswith(f"t2r_seq train: --gin_bindings: {bad!r} is not gin: ")
  assert want in err
  assert err.count("\n") == 1


@pytest.mark.parametrize(
  ("text", "want"),
  [
    ("g = 1\nf.x 2\n", "expected ':' or '='"),
    ("g = [1,\n", "EOF in multi-line statement: a bracket or a string is not closed."),
  ],
)
def test_file_that_is_no_gin_is_named(run_main, tmp_path, text, want):
  path = tmp_path / "a.gin"
  path.write_text(text)
  status, _, err = run_main("train", "--gin_configs", str(path))
  assert status == 1
  assert "a.gin" in err
  assert want in err
  assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["train", "collect"])
@pytest.mark.parametrize(
  ("argv", "want"),
  [
    ([], "nothing is configured. Name a gin file with --gin_configs FILE"),
    (["--gin_configs", "no.gin"], "Unable to open file: no.gin"),
    (["--gin_bindings", "nothing.x = 1"], "No configurable matching 'nothing'"),
    (["--gin_bindings", "import no_such_module"], "No module named 'no_such_module'"),
  ],
  ids=["nothing", "file", "name", "module"],
)
def test_gin_errors_are_one_line(run_main, caplog, command, argv, want):
  status, out, err = run_main(command, *argv)
  assert (status, out, caplog.text) == (1, "", "")
  assert err.startswith(f"t2r_seq {command}: {want}")
  assert err.count("\n") == 1


def test_missing_binding_is_named(run_main):
  status, _, err = run_main(
    "collect", "--gin_bindings", "collect_episodes.num_episodes = 1"
  )
  assert status == 1
  assert err.startswith("t2r_seq collect: Required bindings for `collect_episodes`")
  assert "'policy'" in err
  assert err.count("\n") == 1


def test_debug_shows_the_traceback(run_main):
  with pytest.raises(ValueError, match="No configurable matching 'nothing'"):
    run_main("train", "--debug", "--gin_bindings", "nothing.x = 1")


@pytest.mark.parametrize(
  ("error", "status"), [(KeyboardInterrupt(), 130), (OSError("disk full"), 1)]
)
def test_status(run_main, monkeypatch, error, status):
  def fail(args):
    raise error

  monkeypatch.setattr(view, "run", fail)
  got, _, err = run_main("view", "s")
  assert got == status
  assert err.startswith("t2r_seq view: ")


_SECOND_SIGNAL = """
import os, signal, sys
from t2r_seq.cli import main, view

class Last:
  def __del__(self, kill=os.kill, process=os.getpid()):
    kill(process, number)  # When the interpreter has restored the default action.

def run(args):
  if number == signal.SIGTERM:
    signal.signal(number, lambda *_: None)
  os.kill(os.getpid(), number)
  return 0

last, number = Last(), int(sys.argv.pop())
signal.signal(signal.SIGINT, signal.default_int_handler)
view.run = run
sys.exit(main())
"""


@pytest.mark.parametrize(
  ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)]
)
def test_second_signal_while_the_process_ends_keeps_the_status(number, status):
  argv = ["view", "s", str(int(number))]
  done = subprocess.run(
    [sys.executable, "-c", _SECOND_SIGNAL, *argv], capture_output=True, text=True
  )
  assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr


def test_unexpected_error_is_raised(run_main, monkeypatch):
  def fail(args):
    raise KeyError("a bug")

  monkeypatch.setattr(view, "run", fail)
  with pytest.raises(KeyError, match="a bug"):
    run_main("view", "s")


def test_current_folder_can_be_imported_from(run_main, monkeypatch, tmp_path):
  (tmp_path / "cli_test_project.py").write_text("raise OSError('imported')\n")
  monkeypatch.chdir(tmp_path)
  status, _, err = run_main("train", "--gin_bindings", "import cli_test_project")
  assert status == 1
  assert "imported" in err
  assert sys.path[-1] == str(tmp_path)


def test_output_that_nobody_reads_on_ends_quietly():
  command = [sys.executable, "-m", "t2r_seq", "gin"]
  reading, writing = os.pipe()
  os.close(reading)
  with os.fdopen(writing, "w") as nobody:
    done = subprocess.run(
      command, stdout=nobody, stderr=subprocess.PIPE, text=True, check=False
    )
  assert (done.returncode, done.stderr) == (141, "")


def test_gin_runs_with_closed_stdout():
  command = f"exec {sys.executable} -m t2r_seq gin >&-"
  done = subprocess.run(
    ["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False
  )
  assert (done.returncode, done.stderr) == (0, "")


def test_info_lists_versions_and_extras(capsys):
  assert main_function(["info", "--no_devices"]) == 0
  rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
  assert rows["t2r_seq"] == __version__ and rows["numpy"] == np.__version__
  assert "hdf5" in rows["extras"].split(", ")
