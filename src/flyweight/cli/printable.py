"""Words of users and of files made fit for a terminal.

Invariant: nothing that passes here moves a cursor, rings a bell or sets a title.  What is printed
as markup is another matter: no console of ours reads any.
"""


def printable(text: str) -> str:
    """Every character that cannot be printed (ESC, BEL, half a surrogate) as its escape."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def one_line(message: str) -> str:
    """A message on one line, whatever a file's own words in it hold."""
    return printable(" ".join(message.split()))
