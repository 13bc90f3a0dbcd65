"""Why a request fails, as a `Status` object says it."""

from typing import Any

from .resources import Object


class Failure(Exception):
    """Ends a request with a `Status`."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    @property
    def status(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def not_found(plural: str, name: str) -> Failure:
    return Failure(404, "NotFound", f'{plural} "{name}" not found', name=name, kind=plural)


def exists(plural: str, name: str) -> Failure:
    return Failure(409, "AlreadyExists", f'{plural} "{name}" already exists', name=name)


def conflict(plural: str, name: str) -> Failure:
    return Failure(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {plural} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again",
        name=name,
        kind=plural,
    )


def bad(message: str) -> Failure:
    return Failure(400, "BadRequest", message)


def invalid(kind: str, name: str, causes: list[tuple[str, str]]) -> Failure:
    """`causes`: field and what is wrong with it."""
    text = ", ".join(f"{field}: Invalid value: {what}" for field, what in causes)
    return Failure(
        422,
        "Invalid",
        f'{kind} "{name}" is invalid: {text}',
        name=name,
        kind=kind,
        causes=[
            {"reason": "FieldValueInvalid", "message": what, "field": field}
            for field, what in causes
        ],
    )


def expired(asked: int, oldest: int) -> Failure:
    return Failure(410, "Expired", f"too old resource version: {asked} ({oldest})")


def from_the_future(asked: int, current: int) -> Failure:
    return Failure(
        504,
        "Timeout",
        f"Too large resource version: {asked}, current: {current}",
        causes=[{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        retryAfterSeconds=1,
    )
