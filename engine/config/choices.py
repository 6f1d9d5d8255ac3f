"""Fields whose values are the names in a registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, core_schema


@dataclass(frozen=True, slots=True)
class OneOf:
    """Of a text field: it is one of these names, which are asked for each time; refused as a Literal would be."""

    names: Callable[[], Iterable[str]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """The check, before that of the type."""
        return core_schema.no_info_before_validator_function(self.checked, handler(source))

    def checked(self, value: Any) -> Any:
        """The value if it is a name.

        Raises:
            PydanticCustomError: it is none; of the kind that a Literal raises.
        """
        known = tuple(self.names())
        if value not in known:
            quoted = [repr(name) for name in known]
            expected = " or ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]]))
            raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected})
        return value
