"""The errors that a user is meant to read."""


class SubzeroError(ValueError):
    """One line: where, what, what is allowed, what to do next. The command line prints it without a traceback."""


def near_miss(value: object, allowed) -> str:
    """' Did you mean X?' for the closest allowed string, or nothing."""
    import difflib

    close = difflib.get_close_matches(str(value), [str(a) for a in allowed], n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
