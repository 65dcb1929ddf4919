"""JSON records: values that are written as canonical JSON and parsed strictly, by msgspec.

A record is `class X(Value, frozen=True, kw_only=True)` (a type checker wants both words again); its
annotations are its format. Parsing refuses unknown and missing keys, other types (nothing is
coerced) and values outside an annotated pattern, and says where: `verdict.json: counts.passed:
Expected `int`, got `str``. The JSON Schemas in `rocwheel/records/schemas/` state the same formats
for other programs; tests compare the two.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_args, get_type_hints

import msgspec

from rocwheel.base.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing since 3.11; no dependency of ours


def matching(pattern: str, what: str, hint: str) -> msgspec.Meta:
    """Annotate a text that must match; errors in YAML files say that it is not `what`."""
    return msgspec.Meta(pattern=pattern, extra={"is": what, "hint": hint})


Sha256 = Annotated[str, matching(r"\A[0-9a-f]{64}\Z", "64 hexadecimal digits", "write all of them")]
Commit = Annotated[str, matching(r"\A[0-9a-f]{40}\Z", "40 hexadecimal digits", "write all of them")]
Sha256OrNone = Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
WheelFile = Annotated[str, msgspec.Meta(pattern=r"\A[^/]+\.whl\Z")]
MOST = 2**53 - 1  # that every reader of JSON takes for the same number, RFC 8259 section 6
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]

_T = TypeVar("_T")


class Plain(msgspec.Struct, frozen=True, kw_only=True):
    """A value of this process alone, with fields of any type.

    A class of these is made forty times as fast as a dataclass, for which Python compiles code.
    """


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record: an immutable value with one spelling as bytes."""

    # what to do with one of another schema
    schema_hint: ClassVar[str] = "use the rocwheel that wrote it, or make it again"

    def to_bytes(self) -> bytes:
        """Return canonical JSON, as it is stored.

        Raises ConfigError for a value that `from_bytes` would refuse: it is never written.
        """
        document = msgspec.to_builtins(self)
        decoder(type(self))
        try:
            msgspec.convert(document, type(self))
        except msgspec.ValidationError as exc:
            raise _refused(exc, type(self).__name__) from exc
        return canonical_json(document)

    @property
    def sha256(self) -> str:
        import hashlib  # milliseconds, which who only looks does not wait for

        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def from_bytes(cls, data: bytes, *, name: str) -> Self:
        """Parse what `to_bytes` wrote; `name` is what errors call it.

        Raises ConfigError when the bytes are not JSON, break the format, are of another schema, or
        are not exactly what `to_bytes` writes: an edited record would otherwise have two spellings,
        so two identities.
        """
        try:
            return cls._parsed(data, name)
        except ConfigError as exc:
            reads, there = get_args(get_type_hints(cls).get("schema")), _schema(data)
            if not reads or there in (0, *reads):
                raise
            valid = ", ".join(map(str, reads))
            raise ConfigError(
                f"{name}: schema: is {there}, and this rocwheel reads {valid}", hint=cls.schema_hint
            ) from exc

    @classmethod
    def _parsed(cls, data: bytes, name: str) -> Self:
        value = decoded(data, cls, name=name)
        try:
            written = value.to_bytes()
        except (TypeError, ValueError, RecursionError) as exc:  # such as floats
            raise ConfigError(
                f"{name}: not canonical JSON: {exc}", hint="use the file as rocwheel wrote it"
            ) from exc
        if written != data:
            problem = "not in canonical form, it was edited"
            if missing := _missing(json.loads(data), msgspec.to_builtins(value)):
                problem = f"{missing}: is missing"
            raise ConfigError(f"{name}: {problem}", hint="use the file as rocwheel wrote it")
        return value


def replace(value: _T, /, **changes: Any) -> _T:
    """Copy a Value, or a dataclass, with some fields changed."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **changes)
    return dataclasses.replace(value, **changes)  # type: ignore[type-var]


def decoded(data: bytes, kind: type[_T], *, name: str) -> _T:
    """Parse JSON as `kind`, strictly. Raises ConfigError that says where and what."""
    try:
        return decoder(kind).decode(data)
    except msgspec.ValidationError as exc:
        raise _refused(exc, name) from exc
    except ConfigError as exc:  # of a value's own check
        raise ConfigError(f"{name}: {exc}", hint=exc.hint) from exc
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ConfigError(f"{name}: not JSON: {exc}", hint="use the file as it was made") from exc


class _Schema(msgspec.Struct):
    schema: int = 1


def _schema(data: bytes) -> int:
    try:
        return decoder(_Schema).decode(data).schema
    except (msgspec.DecodeError, RecursionError):
        return 0


_decoders: dict[object, msgspec.json.Decoder[Any]] = {}
_making = threading.Lock()


def decoder(kind: type[_T]) -> msgspec.json.Decoder[_T]:
    """Return the decoder of a type, made by one thread.

    msgspec 0.22 crashes where two threads look at the annotations of one type for the first time.
    """
    with _making:
        if kind not in _decoders:
            _decoders[kind] = msgspec.json.Decoder(kind)
        return _decoders[kind]


def _refused(exc: msgspec.ValidationError, name: str) -> ConfigError:
    problem, _, path = str(exc).partition(" - at `$")
    where = path.rstrip("`").lstrip(".") or "document"
    return ConfigError(
        f"{name}: {where}: {problem}", hint="use the file as rocwheel of this version wrote it"
    )


def canonical_json(document: object) -> bytes:
    """Spell a document: sorted keys, UTF-8, two blanks of indent, one newline at the end.

    Raises TypeError on floats, ValueError for text that UTF-8 cannot spell (lone surrogates) and
    for numbers that other readers of JSON take for another one.
    """
    _refuse_numbers(document)
    text = json.dumps(document, sort_keys=True, ensure_ascii=False, indent=2)
    return (text + "\n").encode()


def _refuse_numbers(value: Any) -> None:
    if isinstance(value, float):
        raise TypeError(f"{value}: no floats in canonical JSON")
    if isinstance(value, int) and abs(value) > MOST:
        raise ValueError(f"a number of {value.bit_length()} bits, more than 53")
    if isinstance(value, dict):
        for item in value.values():
            _refuse_numbers(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_numbers(item)


def _missing(document: Any, whole: Any, path: str = "") -> str:
    if isinstance(whole, dict):
        for key, value in whole.items():
            where = f"{path}.{key}" if path else key
            if key not in document:
                return where
            if missing := _missing(document[key], value, where):
                return missing
    elif isinstance(whole, (list, tuple)):
        for number, value in enumerate(whole):
            if missing := _missing(document[number], value, f"{path}[{number}]"):
                return missing
    return ""
