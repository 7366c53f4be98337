"""Plain English: turns of phrase that readers had to read twice stay out."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Each with what to write in its place.
TURNS = {
  r"whoever": "the process, the reader, the caller",
  r"anew": "again",
  r"for ever": "without end",
  r"hands? (it |them )?out": "returns",
  r"lets go of|let go of": "releases",
  r"goes on": "continues, resumes",
  r"is none( of)?": "is not a ..., or is missing",
  r"there is none": "it is missing",
  r"is told": "is given, or gets",
  r"said of|is said": "is described",
  r"from there on": "afterwards",
  r"but for the": "except",
}
# A docstring starts with a verb, or with the noun of what it describes.
STARTS = r'"""(?:What|Says|Tells|Lets|Looks|Goes|Of)\b.*'
# Words in a sentence of a page: 25 is the aim, and a list of numbers may take more.
MOST_WORDS = 30
GENERATED = {"t2r_pb2.py"}


def texts():
  for folder, patterns in {
    "t2r_seq": ("*.py", "*.md"),
    "docs": ("*.md",),
    "configs": ("*.gin",),
    ".": ("*.md",),
  }.items():
    for pattern in patterns:
      paths = (ROOT / folder).glob(pattern if folder == "." else f"**/{pattern}")
      yield from (path for path in paths if path.name not in GENERATED)


@pytest.mark.parametrize("turn", TURNS)
def test_texts_are_plain(turn):
  # A turn may stand at the end of one line and the start of the next.
  pattern = re.compile(rf"\b(?:{turn})\b".replace(" ", r"\s+(?:# )?"))
  found = [
    f"{path.relative_to(ROOT)}: '{match.group()}'; write: {TURNS[turn]}"
    for path in texts()
    for match in pattern.finditer(path.read_text(encoding="utf-8"))
  ]
  assert found == []


def test_docstrings_start_with_a_verb_or_a_noun():
  found = [
    f"{path.relative_to(ROOT)}: {match.group()}"
    for path in texts()
    if path.suffix == ".py"
    for match in re.finditer(STARTS, path.read_text(encoding="utf-8"))
  ]
  assert found == []


def sentences(text):
  """Yields the sentences of a page outside of code, tables and targets of links."""
  text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
  text = re.sub(r"^( {4,}|\|).*$", "", text, flags=re.MULTILINE)
  text = re.sub(r"\]\([^)]*\)", "]", text)
  for paragraph in re.split(r"\n\s*\n|\n(?=\s*- |#|\d\.)", text):
    yield from re.split(r"(?<=[.!?:;])\s+", " ".join(paragraph.split()))


def test_sentences_of_pages_are_short():
  found = [
    f"{page.name}: {sentence}"
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
    for sentence in sentences(page.read_text(encoding="utf-8"))
    if len(re.findall(r"\S*\w\S*", sentence)) > MOST_WORDS
  ]
  assert found == []
