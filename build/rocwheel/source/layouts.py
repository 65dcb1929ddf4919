"""Reads `ci/layouts.yaml`; every mistake is a ConfigError with file, line, key and a suggestion."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocwheel import located_yaml
from rocwheel.errors import ConfigError
from rocwheel.located_yaml import Field
from rocwheel.model import WheelKind, suggest
from rocwheel.source_layout import (
    CONDITIONS,
    PLACEHOLDER,
    VALUES,
    Assignment,
    ConditionalOptions,
    FileText,
    Layout,
    LockFiles,
    Marks,
    RocmNeeds,
    VersionClass,
    XlaPin,
)

SCHEMA: Final = 1
_KINDS: Final = {kind.value: kind for kind in WheelKind}
_REQUIRED: Final = (
    "description", "workspace", "markers", "version", "known", "xla", "command", "compilers",
    "targets", "rocm_needs", "recipe", "classes",
)  # fmt: skip
_OPTIONAL: Final = (
    "lock_files", "pythons", "left_behind", "personal", "editable", "arguments", "environment",
    "fixed_number", "refusal",
)  # fmt: skip
_COMPILERS: Final = ("hermetic", "clang", "gcc")
_LINKERS: Final = ("gold", "lld")


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """Every layout by name, in the order of the file."""

    by_name: Mapping[str, Layout]

    def __getitem__(self, name: str) -> Layout:
        try:
            return self.by_name[name]
        except KeyError:
            raise ConfigError(
                f"{name!r}: unknown layout", hint=suggest(name, tuple(self.by_name))
            ) from None


def load(path: Path) -> Layouts:
    """Read the layouts. Raises ConfigError."""
    return read(located_yaml.load(path))


def read(document: Field) -> Layouts:
    """Read the layouts from a parsed document. Raises ConfigError."""
    fields = document.record(required=("schema", "layouts"))
    fields["schema"].schema(SCHEMA)
    entries = fields["layouts"].mapping()
    return Layouts(by_name={name: _layout(name, entry) for name, entry in entries.items()})


def _layout(name: str, entry: Field) -> Layout:
    fields = entry.record(required=_REQUIRED, optional=_OPTIONAL)
    needs = {name: _needs(item) for name, item in fields["rocm_needs"].mapping().items()}
    classes = tuple(_class(item, needs) for item in fields["classes"].sequence())
    features = frozenset[str]().union(*(found.features for found in classes))
    values = frozenset(value for found in classes for value in found.values)

    def steps(key: str) -> tuple[ConditionalOptions, ...]:
        if key not in fields:
            return ()
        return tuple(
            _step(field, CONDITIONS | features, VALUES | values) for field in fields[key].sequence()
        )

    recipe, arguments, environment = steps("recipe"), steps("arguments"), steps("environment")
    used = frozenset[str]().union(*(step.when for step in (*recipe, *arguments, *environment)))
    for unread in sorted(features - used):
        fields["classes"].fail(f"no step asks for the feature {unread!r}", hint="remove it")
    version = fields["version"].record(required=("file", "variable"))
    return Layout(
        name=name,
        description=fields["description"].string(),
        workspace=fields["workspace"].string(),
        markers=fields["markers"].strings(),
        version=Assignment(file=version["file"].string(), variable=version["variable"].string()),
        known=fields["known"].specifiers(),
        fixed_number=_file_text(fields["fixed_number"]) if "fixed_number" in fields else None,
        refusal=_file_text(fields["refusal"]) if "refusal" in fields else None,
        xla=_xla(fields["xla"]),
        lock_files=_lock_files(fields["lock_files"]) if "lock_files" in fields else None,
        pythons=fields["pythons"].cpythons() if "pythons" in fields else (),
        left_behind=_strings(fields, "left_behind"),
        personal=_strings(fields, "personal"),
        command=fields["command"].choice(("build", "run")),
        compilers=tuple(item.choice(_COMPILERS) for item in fields["compilers"].sequence()),
        targets=_labels(fields["targets"]),
        editable=_labels(fields["editable"]) if "editable" in fields else {},
        recipe=recipe,
        arguments=arguments,
        environment=environment,
        classes=classes,
    )


def _class(field: Field, needs: Mapping[str, RocmNeeds]) -> VersionClass:
    fields = field.record(
        required=("versions", "rocm", "marks", "needs", "linker"),
        optional=("own_clang", "startup_files", "features", "values"),
    )
    values = fields["values"].mapping() if "values" in fields else {}
    return VersionClass(
        versions=fields["versions"].specifiers(),
        rocm=fields["rocm"].specifiers(),
        marks=_marks(fields["marks"]),
        needs=needs[fields["needs"].choice(needs)],
        linker=fields["linker"].choice(_LINKERS),
        own_clang=fields["own_clang"].string() if "own_clang" in fields else "",
        startup_files=_strings(fields, "startup_files"),
        features=frozenset(_strings(fields, "features")),
        values={name: value.strings() for name, value in values.items()},
    )


def _marks(field: Field) -> Marks:
    fields = field.record(required=(), optional=("configs", "without", "contains"))
    contains = fields["contains"].mapping() if "contains" in fields else {}
    return Marks(
        configs=_strings(fields, "configs"),
        without=_strings(fields, "without"),
        contains={name: text.string() for name, text in contains.items()},
    )


def _needs(field: Field) -> RocmNeeds:
    fields = field.record(
        required=("files",),
        optional=("macros", "executables", "bitcode", "libraries", "programs"),
    )
    macros = fields["macros"].mapping() if "macros" in fields else {}
    bitcode = fields["bitcode"].record(required=("folders", "files")) if "bitcode" in fields else {}
    return RocmNeeds(
        files=fields["files"].strings(),
        macros={header: name.string() for header, name in macros.items()},
        executables=_strings(fields, "executables"),
        bitcode_folders=_strings(bitcode, "folders"),
        bitcode=_strings(bitcode, "files"),
        libraries=_strings(fields, "libraries"),
        programs=_strings(fields, "programs"),
    )


def _file_text(field: Field) -> FileText:
    fields = field.record(required=("file", "pattern"))
    text = fields["pattern"].string()
    try:
        return FileText(file=fields["file"].string(), pattern=re.compile(text))
    except re.error as exc:
        fields["pattern"].fail(f"{text!r}: {exc}", hint="write a regular expression")


def _step(field: Field, conditions: frozenset[str], values: frozenset[str]) -> ConditionalOptions:
    fields = field.record(required=(), optional=("when", "options", "set"))
    when = frozenset(
        item.choice(sorted(conditions))
        for item in (fields["when"].sequence() if "when" in fields else ())
    )
    options = fields["options"].sequence() if "options" in fields else ()
    variables = fields["set"].mapping() if "set" in fields else {}
    if bool(options) == bool(variables):
        field.fail("a step has either `options` or `set`", hint="write one of the two")
    for template in (*options, *variables.values()):
        for name in PLACEHOLDER.findall(template.string()):
            if name not in values:
                template.fail(f"unknown value {{{name}}}", hint=suggest(name, values))
    return ConditionalOptions(
        when=when,
        options=tuple(option.string() for option in options),
        env={name: value.string() for name, value in variables.items()},
    )


def _xla(field: Field) -> XlaPin:
    fields = field.record(required=("repository", "folder", "files", "variable"))
    return XlaPin(
        repository=fields["repository"].string(),
        folder=fields["folder"].string(),
        files=fields["files"].strings(),
        variable=fields["variable"].string(),
    )


def _lock_files(field: Field) -> LockFiles:
    fields = field.record(required=("folder", "prefix", "suffix"))
    return LockFiles(**{name: value.string() for name, value in fields.items()})


def _labels(field: Field) -> dict[WheelKind, str]:
    fields = field.record(required=(), optional=_KINDS)
    return {_KINDS[name]: label.string() for name, label in fields.items()}


def _strings(fields: Mapping[str, Field], key: str) -> tuple[str, ...]:
    return fields[key].strings() if key in fields else ()
