"""A class that is built from a file of data runs the code of installed packages, and none that the file brings."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

from predictor.errors import SpecError


@contextlib.contextmanager
def no_code() -> Iterator[None]:
    """In this block nothing is unpickled, and transformers imports no code that a config names (auto_map)."""

    def refused(*_: Any, **__: Any) -> Any:
        raise SpecError("a config asked for code or weights of its own; expected one that installed classes can build")

    with contextlib.ExitStack() as stack:
        for module, name in (("transformers.dynamic_module_utils", "get_class_in_module"), ("torch", "load"),
                             ("torch.hub", "load"), ("torch.hub", "load_state_dict_from_url")):  # fmt: skip
            if module in sys.modules:
                stack.enter_context(mock.patch.object(sys.modules[module], name, refused))
        yield
