"""The page about the package keeps up with it."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parents[2] / "docs" / "PYTHON.md"


def test_every_test_that_the_page_names_is_here():
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    here = {name for file in TESTS.glob("test_*.py") for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)}
    assert len(named) > 20 and named <= here
