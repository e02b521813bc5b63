import pytest
from frontdoor_cpu_sleep.pages import inner_pages
from hypothesis import given
from hypothesis import strategies as st

PAGE = 4096


@pytest.mark.parametrize(
    ("address", "size", "expected"),
    [
        (0, 0, (0, 0)),
        (PAGE, PAGE, (PAGE, PAGE)),
        (PAGE, 3 * PAGE, (PAGE, 3 * PAGE)),
        (PAGE + 64, 2 * PAGE, (2 * PAGE, PAGE)),
        (PAGE + 64, PAGE, (2 * PAGE, 0)),
        (PAGE - 1, PAGE + 1, (PAGE, PAGE)),
        (PAGE + 1, 10, (2 * PAGE, 0)),
    ],
)
def test_only_whole_pages_count(address: int, size: int, expected: tuple[int, int]) -> None:
    assert inner_pages(address, size, PAGE) == expected


@given(
    address=st.integers(0, 2**47),
    size=st.integers(0, 2**40),
    page_size=st.sampled_from([4096, 16384, 65536]),
)
def test_pages_lie_inside_and_none_is_missed(address: int, size: int, page_size: int) -> None:
    start, length = inner_pages(address, size, page_size)
    assert start % page_size == 0
    assert length % page_size == 0
    assert start >= address
    if length:
        assert start + length <= address + size
        assert start - address < page_size
        assert (address + size) - (start + length) < page_size
    else:
        assert size < 2 * page_size


@pytest.mark.parametrize(
    ("address", "size", "page_size"), [(-1, 1, 4096), (0, -1, 4096), (0, 1, 0), (0, 1, 5000)]
)
def test_nonsense_is_refused(address: int, size: int, page_size: int) -> None:
    with pytest.raises(ValueError, match="must"):
        inner_pages(address, size, page_size)
