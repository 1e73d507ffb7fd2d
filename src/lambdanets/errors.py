"""The one error that is the caller's, told in a sentence."""


class InputError(ValueError):
    """Something a person gave cannot be used: the message names it, what was expected and what came.

    The command line prints the message and ends with exit code 2; a program catches it as a ValueError.
    """
