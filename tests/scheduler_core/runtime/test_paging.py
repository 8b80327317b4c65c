"""Pages of a bounded size."""

from __future__ import annotations

import pytest

from scheduler_core.runtime.paging import PageBytes, fill_page


@pytest.mark.parametrize(
    ("sizes", "taken", "more"),
    [
        pytest.param([], 0, False, id="nothing"),
        pytest.param([4, 4], 2, False, id="all"),
        pytest.param([4, 4, 1], 2, True, id="as many as there is room for"),
        pytest.param([99, 1], 1, True, id="one at least"),
        pytest.param([99], 1, False, id="a single large one"),
    ],
)
def test_fill(sizes: list[int], taken: int, more: bool) -> None:
    items = [(number, b"x" * size) for number, size in enumerate(sizes)]

    assert fill_page(iter(items), max_bytes=10) == (items[:taken], more)


def test_the_header_names_the_next_page() -> None:
    assert PageBytes(b"", 'gangs/team/a>; rel="x"').headers == {
        "Link": '<?continue=gangs%2Fteam%2Fa%3E%3B%20rel%3D%22x%22>; rel="next"'
    }
    assert PageBytes(b"").headers == {}
