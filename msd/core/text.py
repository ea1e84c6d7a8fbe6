"""Text of things that were made by others, which may refuse to say what they are."""


def text_of(error: BaseException) -> str:
    """Return the message of an exception on one line: empty if it has none, or none that can be had or encoded.

    A user's exception may raise in its own `__str__`, or hold text that is not Unicode.
    """
    try:
        text = str(error)
    except Exception as second:
        text = f"its message cannot be had: {type(second).__name__}"
    return encodable(" ".join(text.split()))


def encodable(text: str) -> str:
    """Return text that can be sent and printed: surrogates, as of names of files that are not UTF-8, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
