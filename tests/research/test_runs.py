"""What the studies share."""

from __future__ import annotations

import pytest

from research import runs


@pytest.mark.parametrize("is_folder", [True, False])
def test_partial_output_of_a_stopped_run_is_ignored(is_folder, tmp_path):
  path = tmp_path / "data"

  def write(text):
    with runs.whole(path) as place:
      if is_folder:
        place.mkdir()
      file = place / "steps" if is_folder else place
      assert not file.exists()
      file.write_text(text)
      if text == "half":
        raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    write("half")
  assert not path.exists()
  write("all")
  assert (path / "steps" if is_folder else path).read_text() == "all"
  assert list(tmp_path.iterdir()) == [path]
