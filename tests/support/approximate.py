"""``pytest.approx`` for places where the type checker expects a number."""

from typing import Any

import pytest

#: Equal to numbers within a millionth.
about: Any = pytest.approx
