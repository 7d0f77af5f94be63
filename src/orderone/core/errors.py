"""The one family of errors: what was found, what was expected, what to do."""


class OrderoneError(Exception):
    """Something outside our control is not as it must be; its text is one line.

    A command prints the line and exits with 2; nothing a user typed ends in a traceback.
    """

    def __init__(self, found: str, *, expected: str, do: str) -> None:
        self.found = found
        self.expected = expected
        self.do = do
        super().__init__(f"{one_line(found)}; expected {one_line(expected)}; {one_line(do)}")


class ConfigError(OrderoneError):
    """A setting, an argument or a configuration file is impossible."""


class DataError(OrderoneError):
    """Data is missing or is not what its name says."""


class RunError(OrderoneError):
    """A run folder cannot be written or read."""


class ModelError(OrderoneError):
    """A model lacks what was asked of it."""


class MissingPackageError(OrderoneError):
    """An optional package is needed here and is not installed."""

    def __init__(self, package: str, *, needed_for: str, install: str | None = None) -> None:
        super().__init__(
            f"package '{package}' is not installed",
            expected=f"it for {needed_for}",
            do=f"run: pip install {install or package}",
        )


class TornRecordWarning(UserWarning):
    """The last line of a records file was cut short by a killed run, and was dropped."""


def one_line(text: str) -> str:
    """``text`` with every run of white space, line ends included, as one space."""
    return " ".join(text.split())
