"""The options of a build, in the groups that commands take: before the command and after it."""

from __future__ import annotations

from rocwheel.build_options import (
    BazelOptions,
    BuildCacheOptions,
    ContainerOptions,
    FamilyOptions,
    PythonOptions,
    RemoteOptions,
    RocmOptions,
    SourceOptions,
    VersionOptions,
    WheelhouseOptions,
)
from rocwheel.cli.command import options_of, together

fetch_options = options_of(RocmOptions, BuildCacheOptions)
# what is built, and where and with what
source_options = options_of(RocmOptions, FamilyOptions, SourceOptions)
place_options = options_of(BazelOptions, RemoteOptions, ContainerOptions, BuildCacheOptions)
version_options = options_of(PythonOptions, VersionOptions)
unpublished_options = together(source_options, version_options, place_options)
wheelhouse_options = options_of(WheelhouseOptions)
build_options = together(unpublished_options, wheelhouse_options)
