"""Which pages lie wholly inside a piece of memory."""


def inner_pages(address: int, size: int, page_size: int) -> tuple[int, int]:
    """The start and the length of the whole pages inside `size` bytes at `address`; all in bytes.

    Only these may be given back: a page at either end can hold someone else's data. The length is 0 when no
    page lies wholly inside.

    Raises ValueError for a negative address or size, or a page size that is no power of two.
    """
    if address < 0 or size < 0:
        raise ValueError(f"address {address} and size {size} must not be negative")
    if page_size <= 0 or page_size & (page_size - 1):
        raise ValueError(f"the page size must be a power of two, not {page_size} bytes")
    start = (address + page_size - 1) & -page_size
    end = (address + size) & -page_size
    return start, max(0, end - start)
