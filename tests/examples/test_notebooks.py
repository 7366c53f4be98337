"""The notebooks run, without a kernel, and equal their scripts (jupytext's pairs)."""

import json
import pathlib
import re
import sys
import types

import gin
import pytest

from tests.examples.test_examples import SMALL

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples/notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
NEEDS = {
  "act_from_lerobot": ["matplotlib", "pyarrow"],
  "dqn_from_pixels": ["matplotlib", "gymnasium"],
  "look_at_data": ["matplotlib", "PIL"],
}
# The number of steps in a test, and what must be printed.
STEPS = {"act_from_lerobot": 3, "dqn_from_pixels": 200}
PRINTED = {
  "act_from_lerobot": "2 episodes, 60 steps, identical",
  "dqn_from_pixels": "mean return of 20 episodes",
  "look_at_data": "episode 5: camera is frozen from step",
}


def notebook_cells(name: str) -> list[tuple[str, str]]:
  """Returns (kind, source) of each cell; outputs must not be stored."""
  cells = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
  assert not any(cell.get("outputs") for cell in cells)
  return [(cell["cell_type"], "".join(cell["source"])) for cell in cells]


def script_cells(name: str) -> list[tuple[str, str]]:
  """Returns (kind, source) of each cell of a script in jupytext's percent format."""
  text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
  cells = []
  for part in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:
    kind, _, source = part.partition("\n")
    if kind == " [markdown]":
      cells.append(("markdown", re.sub("^# ?", "", source.strip(), flags=re.MULTILINE)))
    else:
      cells.append(("code", source.strip()))
  return cells


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_equals_its_script(name):
  assert notebook_cells(name) == script_cells(name)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_runs(name, tmp_path, monkeypatch, capfd):
  for module in NEEDS[name]:
    pytest.importorskip(module)
  monkeypatch.setenv("MPLBACKEND", "Agg")
  monkeypatch.chdir(tmp_path)
  gin.clear_config()
  module = types.ModuleType(name)
  monkeypatch.setitem(sys.modules, name, module)
  for number, (kind, source) in enumerate(notebook_cells(name)):
    if kind == "code":
      source = re.sub(r"^STEPS = \d+", f"STEPS = {STEPS.get(name)}", source, flags=re.M)
      source = source.replace("bindings = [", f"bindings = [*{SMALL.get(name, ())}, ")
      exec(compile(source, f"{name}, cell {number}", "exec"), module.__dict__)
  assert PRINTED[name] in capfd.readouterr().out
