"""The one error that commands end with."""


class CommandError(Exception):
    """A failure that the operator can act on; its text is one sentence, shown without a traceback."""
