"""The demo of the ready policies from end to end, on next to no data."""

from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("Box2D")
pytest.importorskip("pygame")
pytest.importorskip("matplotlib")
pytest.importorskip("ai_edge_litert")
pytest.importorskip("av")

from research.lander import artefacts, demo
from t2r_seq import policies


def test_demo_writes_table_and_picture(tmp_path, capsys):
  demo.run(tmp_path / "out", 3, 2, steps=2, names=("mlp",))
  rows = json.loads((tmp_path / "out" / "results.json").read_text())
  assert [row["policy"] for row in rows] == ["expert", "mlp", "mlp, LiteRT"]
  assert rows[0]["return"] > 200 > rows[1]["return"]
  assert rows[1]["return"] == pytest.approx(rows[2]["return"], rel=1e-2)
  assert "| expert | " in (tmp_path / "out" / "table.md").read_text()
  assert (tmp_path / "out" / "lander.png").read_bytes().startswith(b"\x89PNG")
  out = capsys.readouterr().out
  assert "$ t2r_seq evaluate " in out and ", identical" in out

  artefacts.write_artefacts(tmp_path / "out", tmp_path / "artefacts", ["mlp"])
  written = {path.name: path for path in (tmp_path / "artefacts").iterdir()}
  names = {"mlp.tar.gz", "mlp_lite.tar.gz", "mlp.html", "lander.png", "README.md"}
  assert written.keys() == names | {"SHA256SUMS"}
  assert "| mlp, LiteRT |" in written["README.md"].read_text()
  shutil.unpack_archive(written["mlp.tar.gz"], tmp_path)
  predictor = policies.ExportedSavedModelPredictor(str(tmp_path / "mlp"))
  assert predictor.restore()


def test_expert_lands(tmp_path):
  demo.record(tmp_path / "demos.lerobot", 2)
  assert (tmp_path / "demos.lerobot" / "meta" / "info.json").exists()
