"""The interface of algorithms: names of logged values."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.core.algorithm import metric_name


@pytest.mark.parametrize("name", ["loss", "a b/c-d.e:f_1", "größe"])
def test_names_of_metrics(name: str) -> None:
    assert metric_name(name) == name


@pytest.mark.parametrize("name", ["", "a\nb", "../x", "a//b", "/a", "a/", "a..b", 5, None, "x" * 101, "\x1b[2J", "a$b"])
def test_what_is_no_name_of_a_metric(name: Any) -> None:
    with pytest.raises(ValueError, match=r"^log: the name .* is invalid; allowed: at most 100 letters, "):
        metric_name(name)
