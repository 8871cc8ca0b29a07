"""Text that may come from a stranger's file, made safe for a terminal."""


def plain(text: object) -> str:
    r"""`text` on one line, with control characters written out.

    A plan file says how it was made in words of its maker's, which could move the cursor.

    >>> plain("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(text)
    )
