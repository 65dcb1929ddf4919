"""Every rule that `verify` knows is broken by a wheel made for it, and only that rule."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from support import wheels
from support.wheels import (
    POLICY,
    SHORT_RUNPATH,
    File,
    make_bundle,
    make_code,
    make_elf,
    pack_bundle,
)

from rocwheel.base.errors import WheelError
from rocwheel.base.values import replace
from rocwheel.wheel import SOME_CODE, repair
from rocwheel.wheel.inspect import inspect
from rocwheel.wheel.verify import verify, verify_set, verify_wheelhouse
from rocwheel.wheel.verify.libraries import Expectation
from rocwheel.wheel.verify.rules import RULES, Severity, finding

MODULE = "jax_rocm7_plugin/_linalg.so"
LIBRARY = "jax_plugins/xla_rocm7/xla_rocm_plugin.so"
BUNDLE = make_bundle(("gfx942", "gfx1100"))
CUT = pack_bundle(BUNDLE)[:40] + bytes(len(pack_bundle(BUNDLE)))  # zeros where code was


def code(**changes) -> bytes:
    """A bundle in which each code object has something changed; its digest is right."""
    return make_bundle(("gfx942", "gfx1100"), code=lambda target: make_code(target, **changes))


def damaged(at: int, content: bytes) -> bytes:
    """A compressed bundle that unpacks to other bytes than its compiler compressed."""
    packed = pack_bundle(BUNDLE[:at] + content + BUNDLE[at + len(content) :])
    return packed[:24] + pack_bundle(BUNDLE)[24:32] + packed[32:]


STACK = (0x6474E551).to_bytes(4, "little")  # PT_GNU_STACK
CODE_AT = BUNDLE.index(b"\x7fELF")
# title -> (a bundle whose header and table are right, part of the message)
CODE = {
    "of which half is zeroed": (damaged(len(BUNDLE) // 2, bytes(len(BUNDLE) // 2)), "has MD5"),
    "with 16 other bytes": (damaged(CODE_AT + 900, b"x" * 16), "has MD5"),
    "of a GPU that is zeroed": (
        BUNDLE[:CODE_AT] + bytes(4096) + BUNDLE[CODE_AT + 4096 :], "gfx942: is empty",
    ),
    "that is a text": (make_bundle(("gfx942", "gfx1100"), code=b"text" * 40), "is not an ELF file"),
    "under another GPU's name": (
        make_bundle(("gfx942", "gfx1100"), code=make_code("gfx90a")), "gfx942: is for gfx90a",
    ),
    "marked for the CPU": (code(machine=62), "is for machine 62"),
    "of an unknown GPU": (code(mach=0xEE), "is for no known GPU"),
    "without kernel names": (code(kernel="xxx"), "has no kernel add"),
    "without descriptors": (code(descriptor="xxx.kd"), "has no kernel descriptor add.kd"),
    "without instructions": (code(body=bytes(64)), "has no instructions in kernel add"),
    "with metadata that is none": (code(kernels=7), "has metadata that cannot be read"),
    "with kernels that are none": (code(kernels=[{"x": 1}]), "has metadata that cannot be read"),
    "with a descriptor of another size": (
        code(kernels=[{".name": "add", ".symbol": "add.kd", ".kernarg_segment_size": 8}]),
        "has a descriptor of kernel add that says 0 where the metadata says 8",
    ),
    "with fewer registers than it uses": (
        code(kernels=[{".name": "add", ".symbol": "add.kd", ".vgpr_count": 9}]),
        "has a descriptor of kernel add that gives it 8 registers, the metadata says 9",
    ),
    "with another feature than it says": (
        make_bundle(("gfx942", "gfx1100"), code=lambda target: make_code(f"{target}:xnack+")),
        "gfx942: has another xnack than none",
    ),
}  # fmt: skip


def module(**changes) -> bytes:
    """A plugin's module that breaks no rule but what `changes` break."""
    return make_elf(
        **{
            "needed": ("libamdhip64.so.7", "libc.so.6"),
            "runpath": ":".join(SHORT_RUNPATH),
            "versions": {"libc.so.6": ("GLIBC_2.17",)},
            "exports": ("PyInit__linalg",),
            "bundles": (BUNDLE,),
            **changes,
        }
    )


def entry(name: str, **changes) -> bytes:
    """A module of jaxlib's."""
    return make_elf(exports=(f"PyInit_{name}",), **changes)


def library(**changes) -> bytes:
    return module(exports=("GetPjrtApi",), **changes)


def with_file(
    made: wheels.Wheel, name: str, content: bytes = b"", mode: int = 0o644
) -> wheels.Wheel:
    return made.but(files={**made.files, name: File(content, mode=mode)})


def without(made: wheels.Wheel, name: str) -> wheels.Wheel:
    return made.but(files={key: file for key, file in made.files.items() if key != name})


def with_module(**changes) -> wheels.Wheel:
    return with_file(wheels.plugin(), MODULE, module(**changes), 0o755)


PLUGIN = wheels.plugin()
PJRT = wheels.pjrt()
JAXLIB = wheels.jaxlib()
GENERAL = wheels.Wheel(tag="py3-none-any", files={"demo/__init__.py": File()})
METADATA = PLUGIN.members()[f"{PLUGIN.dist_info}/METADATA"].content
WHEEL = PLUGIN.members()[f"{PLUGIN.dist_info}/WHEEL"].content
ROCM = frozenset({"libamdhip64.so.7", "libhipblas.so.3"})
LEAK = "$ORIGIN/../_solib_x86_64/_Ulocal"


# title -> (the wheel, what was expected of it, the one rule that it breaks, part of the message)
BROKEN = {
    "another project in METADATA": (
        PLUGIN.but(metadata=METADATA.replace(b"Name: jax-rocm7-plugin", b"Name: jax-rocm8-plugin")),
        None, "name.agree", "jax-rocm8-plugin",
    ),
    "another version in METADATA": (
        PLUGIN.but(metadata=METADATA.replace(b"Version: 0.9.1", b"Version: 0.9.2")),
        None, "name.agree", "0.9.2",
    ),
    "a file that was renamed by hand": (
        GENERAL.but(filename="demo-1.0.post1-py3-none-any.whl"), None, "name.agree", "1.0",
    ),
    "a version that is not in normal form": (
        wheels.plugin(version="0.9.1.post01"), None, "name.canonical", "0.9.1.post1",
    ),
    "another project than asked for": (
        PLUGIN, Expectation(project="jax-rocm60-plugin"), "name.expected", "jax-rocm60-plugin",
    ),
    "another version than asked for": (
        PLUGIN, Expectation(version="0.9.1+rocm7.10.0"), "name.expected", "0.9.1+rocm7.10.0",
    ),
    "METADATA without a version of its own": (
        PLUGIN.but(metadata=METADATA.replace(b"Metadata-Version: 2.4\n", b"")),
        None, "metadata.field", "Metadata-Version stands 0 times",
    ),
    **{
        f"METADATA with {text!r}": (
            PLUGIN.but(metadata=METADATA.replace(b"\nName:", b"\n" + text + b"\nName:")),
            None, "metadata.field", message,
        )
        for text, message in {
            b"Author: \0": "a character that is not for texts",
            b"Dynamic: version": "not allowed as a dynamic field",
            b"Requires-Dist: rocm; extra == 'all'": "no Provides-Extra for all",
            b"License: MIT\nLicense-Expression: MIT": "License beside License-Expression",
        }.items()
    },
    "METADATA older than its fields": (
        PLUGIN.but(metadata=METADATA.replace(
            b"Metadata-Version: 2.4\n", b"Metadata-Version: 2.1\nLicense-Expression: MIT\n"
        )),
        None, "metadata.field", "introduced in metadata version 2.4",
    ),
    "METADATA of the future": (
        PLUGIN.but(metadata=METADATA.replace(b"Metadata-Version: 2.4", b"Metadata-Version: 3.0")),
        None, "metadata.field", "3.0",
    ),
    "a WHEEL of the future": (
        PLUGIN.but(wheel=WHEEL.replace(b"Wheel-Version: 1.0", b"Wheel-Version: 2.0")),
        None, "metadata.field", "2.0",
    ),
    "a requirement that is none": (
        PLUGIN.but(requires=("jax-rocm7-pjrt==0.9.1", "numpy>>2")),
        None, "metadata.field", "numpy>>2",
    ),
    "Requires-Python that is none": (
        PLUGIN.but(requires_python="three"), None, "metadata.field", "Requires-Python",
    ),
    "other tags in WHEEL": (
        PLUGIN.but(tags=("cp312-cp312-linux_x86_64",)), None, "tag.agree", "linux_x86_64",
    ),
    "a build number in WHEEL only": (
        PLUGIN.but(wheel=WHEEL + b"Build: 2\n"), None, "tag.agree", "Build is 2",
    ),
    "a build number in the file name only": (
        PLUGIN.but(filename=PLUGIN.name.replace("0.9.1-", "0.9.1-2-")),
        None, "tag.agree", "Build is absent",
    ),
    "another CPython than asked for": (
        PLUGIN, Expectation(python="cp313"), "tag.expected", "cp313",
    ),
    "another ABI than asked for": (PLUGIN, Expectation(abi="cp314t"), "tag.expected", "cp314t"),
    "two platform tags": (
        PLUGIN.but(tag="cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64"),
        None, "tag.single", "manylinux_2_28_x86_64",
    ),
    "a tag that promises too much": (
        with_module(versions={"libc.so.6": ("GLIBC_2.28",)}),
        None, "tag.manylinux", "GLIBC_2.28",
    ),
    "no manylinux tag": (
        PLUGIN.but(tag="cp312-cp312-linux_x86_64"), None, "tag.manylinux", "linux_x86_64",
    ),
    "a manylinux tag nobody knows": (
        PLUGIN.but(tag="cp312-cp312-manylinux_2_99_x86_64"), None, "tag.manylinux", "2_99",
    ),
    "bytecode": (
        with_file(PLUGIN, "jax_rocm7_plugin/__pycache__/x.cpython-312.pyc"),
        None, "layout.stray", "left over",
    ),
    "an object file": (
        with_file(PLUGIN, "jax_rocm7_plugin/x.o"), None, "layout.stray", "left over",
    ),
    "a top-level folder of another project": (
        with_file(PLUGIN, "tests/__init__.py"), None, "layout.stray", "not below",
    ),
    "a file that only its owner reads": (
        with_file(PLUGIN, "jax_rocm7_plugin/x.py", mode=0o600), None, "layout.mode", "0600",
    ),
    "a Python that its own tag excludes": (
        PLUGIN.but(requires_python=">=3.13"), None, "metadata.python", "CPython 3.12",
    ),
    "a WHEEL that says neither true nor false": (
        PLUGIN.but(wheel=WHEEL.replace(b"Purelib: false", b"Purelib: no")),
        None, "metadata.field", "Root-Is-Purelib",
    ),
    "a module of another project in .data": (
        with_file(PLUGIN, f"{PLUGIN.stem}.data/purelib/jax/_src/evil.py"),
        None, "layout.stray", "not below jax_rocm7_plugin",
    ),
    "another egg": (
        with_file(GENERAL, "pip.egg-info/PKG-INFO"), None, "layout.stray", "another distribution",
    ),
    "keys of WHEEL in another case": (
        PLUGIN.but(wheel=WHEEL.replace(b"Wheel-Version", b"wheel-version")),
        None, "metadata.field", "Wheel-Version stands 0 times",
    ),
    "a marker of lock files": (
        PLUGIN.but(requires=("jax-rocm7-pjrt==0.9.1", 'x; "a" in extras')),
        None, "metadata.field", "is not PEP 508",
    ),
    "a pin to all versions of a series": (
        PLUGIN.but(requires=("jax-rocm7-pjrt==0.9.*",)), None, "pin.sibling", "pins no version",
    ),
    "a name of two lines": (
        PLUGIN.but(metadata=METADATA.replace(b"Name: ", b"Name:\n ")),
        None, "name.agree", "METADATA: Name is",
    ),
    "a Requires-Python that only the first release of 3.12 satisfies": (
        PLUGIN.but(requires_python="==3.12"), None, "metadata.python", "CPython 3.12",
    ),
    "a program that an entry point makes": (
        PLUGIN.but(entry_points="[console_scripts]\npip = jax_rocm7_plugin:main\n"), None,
        "layout.entry-point", "JAX needs none",
    ),
    "a set-user-id file": (
        with_file(PLUGIN, "jax_rocm7_plugin/x.py", mode=0o4755), None, "layout.mode", "4755",
    ),
    "an entry point into nothing": (
        PJRT.but(entry_points="[jax_plugins]\nxla_rocm7 = jax_plugins.rocm\n"),
        None, "layout.entry-point", "JAX needs [jax_plugins]",
    ),
    "a pjrt wheel JAX does not find": (
        PJRT.but(entry_points=""), None, "layout.entry-point", "jax_plugins",
    ),
    "a module for another machine": (
        with_module(machine=183), None, "elf.machine", "aarch64",
    ),
    "a plugin that is not for one CPython": (
        PLUGIN.but(tag="cp312-cp311-manylinux_2_27_x86_64"), None, "tag.kind", "cp312-cp311",
    ),
    "a plugin for every Python": (
        PLUGIN.but(tag="py3-none-manylinux_2_27_x86_64"), None, "tag.kind", "py3-none",
    ),
    **{
        f"a plugin for {tag}": (
            PLUGIN.but(tag=f"{tag}-manylinux_2_27_x86_64"), None, "tag.kind", tag,
        )
        for tag in ("cp312-abi3", "cp312-cp312t")
    },
    "a pjrt for one CPython": (
        PJRT.but(tag="cp312-cp312-manylinux_2_28_x86_64"), None, "tag.kind", "is py3-none",
    ),
    "a version module of another release": (
        with_file(PLUGIN, "jax_rocm7_plugin/version.py", wheels.version_module("0.9.0")),
        None, "version.module", "'0.9.0'",
    ),
    "a version module of the final release in a pre-release": (
        with_file(
            wheels.plugin(version="0.9.1b1"), "jax_rocm7_plugin/version.py",
            wheels.version_module("0.9.1"),
        ),
        None, "version.module", "is of '0.9.1', the wheel of 0.9.1b1",
    ),
    "a version module of another post-release": (
        with_file(PLUGIN, "jax_rocm7_plugin/version.py", wheels.version_module("0.9.1.post2")),
        None, "version.module", "not 0.9.1",
    ),
    "a version module that says None": (
        with_file(PJRT, "jax_plugins/xla_rocm7/version.py", b"_release_version: str | None = None\n"),
        None, "version.module", "0.9.1.dev<today>",
    ),
    "a version module of a release that JAX cannot take apart": (
        with_file(PLUGIN, "jax_rocm7_plugin/version.py", wheels.version_module("v0.9.1")),
        None, "version.module", "is of 'v0.9.1'",
    ),
    "a version module that says nothing": (
        with_file(PLUGIN, "jax_rocm7_plugin/version.py", b"x = 1\n"),
        None, "version.module", "sets no _release_version",
    ),
    "a plugin without a module of JAX's": (
        without(PLUGIN, "jax_rocm7_plugin/_hybrid.so"), None, "layout.required", "_hybrid.so",
    ),
    "a plugin without a version": (
        without(PLUGIN, "jax_rocm7_plugin/version.py"), None, "layout.required", "version.py",
    ),
    "a module that is a text": (
        with_file(PLUGIN, "jax_rocm7_plugin/_hybrid.so", b"text"),
        None, "layout.required", "not a shared object",
    ),
    "a pjrt without a package": (
        without(PJRT, "jax_plugins/xla_rocm7/__init__.py"), None, "layout.required", "__init__",
    ),
    "a jaxlib without its library": (
        without(JAXLIB, "jaxlib/cpu/_lapack.so"), None, "layout.required", "_lapack.so",
    ),
    "a group that importlib.metadata does not find": (
        PJRT.but(entry_points="[ jax_plugins ]\nxla_rocm7 = jax_plugins.xla_rocm7\n"),
        None, "layout.entry-point", "reads [ jax_plugins ]",
    ),
    **{
        f"entry points in lines that {title} ends": (
            PJRT.but(entry_points=f"[jax_plugins]{end}xla_rocm7 = jax_plugins.xla_rocm7\n"),
            None, "layout.entry-point", "ends a line to Python, not to uv",
        )
        for title, end in {"VT": "\v", "FS": "\x1c", "NEL": "\x85", "LS": "\u2028"}.items()
    },
    "an unknown requirement": (
        PLUGIN.but(requires=("jax-rocm7-pjrt==0.9.1", "left-pad")),
        None, "pin.allowed", "does not know",
    ),
    "a numpy that is too old": (
        JAXLIB.but(requires=("numpy<2", "scipy>=1.14", "ml_dtypes>=0.5.0")),
        None, "pin.allowed", "must admit 2.3.0",
    ),
    "a URL in jaxlib": (
        JAXLIB.but(requires=("numpy @ https://example.org/numpy-2.0.0.tar.gz",)),
        None, "pin.allowed", "a URL",
    ),
    "AMD's package without an extra": (
        PLUGIN.but(requires=("jax-rocm7-pjrt==0.9.1", "amd_hipblas_instinct")),
        None, "pin.allowed", "does not know",
    ),
    "a RUNPATH with an empty entry": (
        with_module(runpath=":".join((*SHORT_RUNPATH, ""))), None, "elf.runpath", "has besides ",
    ),
    "a current directory in jaxlib": (
        with_file(JAXLIB, "jaxlib/utils.so", entry("utils", runpath="$ORIGIN:"), 0o755),
        None, "elf.runpath-leak", "an empty entry",
    ),
    "a library inside that RUNPATH does not find": (
        with_file(
            JAXLIB, "jaxlib/_jax.so",
            entry("_jax", needed=("libjax_common.so",), runpath="$ORIGIN/lib"), 0o755,
        ),
        None, "elf.needed", "RUNPATH does not lead",
    ),
    "a library of another name at the right path": (
        with_file(JAXLIB, "jaxlib/libjax_common.so", make_elf(soname="libother.so"), 0o755),
        None, "elf.needed", "needs libjax_common.so, which calls itself libother.so",
    ),
    "a text at the path of a library": (
        with_file(
            with_file(JAXLIB, "jaxlib/x.so", entry("x", needed=("liby.so",), runpath="$ORIGIN")),
            "jaxlib/liby.so", b"text",
        ),
        None, "elf.needed", "needs liby.so",
    ),
    "RPATH": (
        with_module(rpath=":".join(SHORT_RUNPATH)), None, "elf.rpath", "RPATH",
    ),
    "no RUNPATH": (with_module(runpath=""), None, "elf.runpath", "lacks $ORIGIN"),
    "a RUNPATH in another order": (
        with_module(runpath=":".join(reversed(SHORT_RUNPATH))),
        None, "elf.runpath", "another order",
    ),
    "a RUNPATH into Bazel's output": (
        with_module(runpath=":".join((*SHORT_RUNPATH, LEAK))),
        None, "elf.runpath-leak", "_solib_",
    ),
    "a library nobody expects": (
        with_module(needed=("libX11.so.6",)), None, "elf.needed", "libX11.so.6",
    ),
    "a ROCm library of another ABI": (
        with_module(needed=("libamdhip64.so.9",)), None, "elf.needed", "libamdhip64.so.9",
    ),
    "a ROCm library that this ROCm lacks": (
        with_module(needed=("librocblas.so.5",)),
        Expectation(rocm_sonames=ROCM), "elf.needed-rocm", "librocblas.so.5",
    ),
    "ROCm in jaxlib": (
        with_file(JAXLIB, "jaxlib/x.so", entry("x", needed=("libamdhip64.so.7",))),
        None, "elf.needed", "libamdhip64.so.7",
    ),
    "libpython": (
        with_module(needed=("libpython3.12.so.1.0",)), None, "elf.python", "libpython3.12",
    ),
    "a module that cannot be imported": (
        with_module(exports=("PyInit_linalg",)), None, "elf.python", "PyInit__linalg",
    ),
    "a pjrt wheel with it twice": (
        with_file(PJRT, "jax_plugins/xla_rocm7/other.so", library(), 0o755),
        None, "elf.pjrt", "2 libraries",
    ),
    "a pjrt wheel with a second library": (
        with_file(PJRT, "jax_plugins/xla_rocm7/other.so", module(), 0o755),
        None, "elf.pjrt", "2 libraries, 1 of them",
    ),
    "a module of jaxlib's that cannot be imported": (
        with_file(JAXLIB, "jaxlib/utils.so", entry("util"), 0o755),
        None, "elf.python", "PyInit_utils",
    ),
    "a module with an executable stack": (
        with_file(
            PLUGIN, MODULE, module().replace(STACK + b"\6\0\0\0", STACK + b"\7\0\0\0"), 0o755
        ),
        None, "elf.stack", "executable stack",
    ),
    "a symbol that this ROCm lacks": (
        with_module(imports=("hipMalloc",)),
        Expectation(rocm_symbols={"libamdhip64.so.7": {"__hipRegisterFatBinary": ""}}),
        "elf.needed-rocm", "needs hipMalloc of libamdhip64.so.7, which this ROCm lacks",
    ),
    "a module that poses as the C library": (
        with_module(soname="libc.so.6"), None, "elf.soname", "calls itself libc.so.6",
    ),
    "a version of glibc that never was": (
        with_module(versions={"libc.so.6": ("GLIBC_2.3.99",)}), None, "tag.manylinux", "2.3.99",
    ),
    "a version of another library": (
        with_module(versions={"libc.so.6": ("XLIB_1.0",)}), None, "tag.manylinux", "XLIB_1.0",
    ),
    "a bundle that is cut off": (
        with_module(bundles=(BUNDLE, make_bundle(("gfx942", "gfx1100"), code=b"x" * 9000)[:4096])),
        None, "gfx.targets", "is cut off or does not unpack",
    ),
    "a bundle that does not unpack": (
        with_module(bundles=(BUNDLE, CUT)), None, "gfx.targets", "is cut off or does not unpack",
    ),
    "a file that an installer writes": (
        with_file(PLUGIN, f"{PLUGIN.dist_info}/direct_url.json", b"{}"),
        None, "layout.stray", "only a client",
    ),
    "a requirement for all under the cover of an extra": (
        PLUGIN.but(requires=("jax-rocm7-pjrt==0.9.1", "amd-x-instinct; extra == 'x' or python_version > '3'")),
        None, "pin.allowed", "does not know",
    ),
    "a marker on what cannot be known": (
        PLUGIN.but(requires=("jax-rocm7-pjrt==0.9.1", "amd-x-instinct; extra == 'x' or platform_release > '0'")),
        None, "pin.allowed", "can be judged",
    ),
    "another project's wheel that no Python may install": (
        GENERAL.but(requires_python="<3"), None, "metadata.python", "no CPython 3",
    ),
    "a pjrt for an old Python alone": (
        PJRT.but(requires_python="==3.9.*"), None, "metadata.python", "3.11",
    ),
    "a library of the ROCm before": (
        with_file(
            PLUGIN, "jax_rocm7_plugin/_prng.so",
            entry("_prng", needed=("libamdhip64.so.6",), runpath=":".join(SHORT_RUNPATH)), 0o755,
        ),
        None, "elf.needed", "needs libamdhip64.so.6",
    ),
    "a library whose GPU code was left out": (
        with_file(
            PLUGIN, "jax_rocm7_plugin/_prng.so",
            entry("_prng", imports=("__hipRegisterFatBinary",), runpath=":".join(SHORT_RUNPATH)),
            0o755,
        ),
        None, "gfx.none", "registers GPU code and has none",
    ),
    "a version of METADATA in another spelling": (
        PLUGIN.but(metadata=METADATA.replace(b"\nVersion: ", b"\nVersion: v")),
        None, "name.canonical", "v0.9.1, in normal form 0.9.1",
    ),
    "code for fewer GPUs than asked for": (
        PLUGIN, Expectation(gfx_targets=frozenset({"gfx942", "gfx1100", "gfx90a"})),
        "gfx.targets", "lacks gfx90a",
    ),
    "code for more GPUs than asked for": (
        PLUGIN, Expectation(gfx_targets=frozenset({"gfx942"})),
        "gfx.targets", "has besides gfx1100",
    ),
    "bundles that differ": (
        with_module(bundles=(BUNDLE, make_bundle(("gfx942",)))),
        None, "gfx.targets", "lacks gfx1100",
    ),
    **{
        f"GPU code {title}": (with_module(bundles=(BUNDLE, bundle)), None, "gfx.code", text)
        for title, (bundle, text) in CODE.items()
    },
    "GPU code that is never registered": (
        with_module(registers=False), None, "gfx.code", "never registers it",
    ),
    "a bundle that HIP does not get": (
        with_file(PLUGIN, MODULE, module().replace(wheels.WRAPPER, bytes(8)), 0o755),
        None, "gfx.code", "hands 0 of 1 bundle to HIP",
    ),
    "more GPU code than is read": (
        PLUGIN, Expectation(code=1), "gfx.unread", "1 of 1 bundle (",
    ),
    "GPU code of another ROCm's compiler": (
        PLUGIN, Expectation(compilers=frozenset({"AMD clang version 23"})),
        "gfx.compiler", "made by AMD clang version 22",
    ),
    "no GPU code": (with_module(bundles=()), None, "gfx.none", "no GPU code"),
    "a pin that its own set breaks": (
        PLUGIN.but(requires=("jax-rocm7-pjrt==0.9.0+rocm7.2.0",)),
        None, "pin.sibling", "0.9.0+rocm7.2.0",
    ),
    "a pin that the given set breaks": (
        PLUGIN, Expectation(siblings={"jax-rocm7-pjrt": "0.9.2"}), "pin.sibling", "0.9.2",
    ),
    "a pin that holds for an extra only": (
        PLUGIN.but(requires=("jax-rocm7-pjrt==0.9.1; extra == 'x'",)),
        None, "pin.sibling", "requires no jax-rocm7-pjrt",
    ),
    "a pin for another Python": (
        PLUGIN.but(requires=("jax-rocm7-pjrt==0.9.1; python_version < '3.12'",)),
        None, "pin.sibling", "requires no jax-rocm7-pjrt",
    ),
    "a wrong pin behind a marker": (
        PLUGIN.but(requires=("jax-rocm7-pjrt==0.9.1", "jax-rocm7-pjrt==9.9; extra == 'later'")),
        None, "pin.sibling", "and this wheel is 0.9.1",
    ),
    "a pin that was removed": (
        PLUGIN.but(requires=()), None, "pin.sibling", "requires no jax-rocm7-pjrt",
    ),
    "a pin that became a URL": (
        wheels.Wheel(
            tag="py3-none-any", files={"demo/__init__.py": File()},
            requires=("jaxlib @ https://example.org/x.whl",),
        ),
        Expectation(siblings={"jaxlib": "0.9.1"}), "pin.sibling", "a URL",
    ),
    "a pin on a wheel that is not there": (
        PLUGIN, Expectation(siblings={"jaxlib": "0.9.1"}), "pin.sibling", "not in the set",
    ),
    "a graft nobody allowed": (
        with_file(
            PLUGIN,
            "jax_rocm7_plugin.libs/libfoo-0123abcd.so.1",
            make_elf(soname="libfoo-0123abcd.so.1"),
            0o755,
        ),
        None, "graft.allowed", "libfoo.so.1",
    ),
}  # fmt: skip


def test_the_wheels_that_tests_start_from_break_no_rule(tmp_path: Path) -> None:
    for made in (PLUGIN, PJRT, JAXLIB):
        assert verify(made.write(tmp_path), policy=POLICY) == ()


# What a wheel may ship with.
WARNED = {
    "two platform tags", "a file that only its owner reads", "a set-user-id file", "a version module of another post-release",
    "a version module that says None", "GPU code of another ROCm's compiler",
}  # fmt: skip
UNSEEN = {"more GPU code than is read"}


@pytest.mark.parametrize("title", BROKEN)
def test_one_broken_rule_is_found_with_its_remedy(title: str, tmp_path: Path) -> None:
    made, expected, rule, text = BROKEN[title]
    findings = verify(made.write(tmp_path), policy=POLICY, expected=expected)
    assert {item.rule for item in findings} == {rule}
    assert any(text in item.message for item in findings)
    assert all(item.remedy == RULES[rule] for item in findings)
    usual = Severity.UNSEEN if title in UNSEEN else Severity.ERROR
    severity = Severity.WARNING if title in WARNED else usual
    assert {item.severity for item in findings} == {severity}


@pytest.mark.parametrize(
    ("version", "sonames", "ships"),
    [
        ("0.8.0", None, False),
        ("0.8.0+rocm6.4.0", None, False),
        ("0.8.0+rocm7.10.0", None, True),
        ("0.8.0", frozenset({"libamdhip64.so.7", "libhipblas.so.3"}), True),
    ],
)
def test_a_plugin_is_of_the_rocm_it_was_built_with(version, sonames, ships, tmp_path):
    """JAX 0.8 calls its plugin rocm60 whatever that is; ours needs libraries of ROCm 7."""
    made = wheels.plugin(number="60", version=version).write(tmp_path)
    findings = verify(made, policy=POLICY, expected=Expectation(rocm_sonames=sonames))
    assert ("elf.needed" not in {item.rule for item in findings}) is ships


@pytest.mark.parametrize(("soname", "ships"), [("libgomp.so.1", True), ("", True), (None, False)])
def test_another_projects_library_is_found_by_its_path_as_glibc_does(soname, ships, tmp_path):
    """PyTorch 2.2.0 renamed a library that it packs, and not what that calls itself."""
    files = {"demo/_c.so": File(make_elf(needed=("libgomp-1.so",), runpath="$ORIGIN"), mode=0o755)}
    if soname is not None:
        files["demo/libgomp-1.so"] = File(make_elf(soname=soname), mode=0o755)
    path = wheels.Wheel(files=files).write(tmp_path)
    assert [item.rule for item in verify(path, policy=POLICY)] == ["elf.needed"] * (not ships)
    if ships:
        repair.plan_repair(path, policy=POLICY)
        return
    with pytest.raises(WheelError, match=r"needs libgomp-1\.so"):
        repair.plan_repair(path, policy=POLICY)


# gfx942 and gfx1100 are what the wheel has code for
@pytest.mark.parametrize(
    ("families", "targets", "severity", "text"),
    [
        ({"x": ("gfx942",), "y": ("gfx1100",)}, ("gfx942", "gfx1100"), None, ""),
        ({"x": ("gfx942",), "y": ("gfx1100", "gfx1101")}, None, Severity.ERROR, "lacks gfx1101 of y"),
        # also where the list of targets forgot it
        ({"x": ("gfx942", "gfx950")}, ("gfx942",), Severity.ERROR, "lacks gfx950 of x"),
        # an asked target of no family
        ({"x": ("gfx942",)}, ("gfx942", "gfx90a"), Severity.ERROR, "lacks gfx90a; has besides gfx1100"),
        # what is beyond is listed
        ({"x": ("gfx942",)}, ("gfx942",), Severity.WARNING, "has besides gfx1100"),
    ],
)  # fmt: skip
def test_each_familys_targets_are_there_and_what_is_beyond_is_listed(
    families, targets, severity, text, tmp_path: Path
) -> None:
    meant = Expectation(families=families, gfx_targets=frozenset(targets) if targets else None)
    for made in (PLUGIN, PJRT):
        findings = verify(made.write(tmp_path), policy=POLICY, expected=meant)
        assert [item.rule for item in findings] == (["gfx.targets"] if severity else [])
        assert all(item.severity is severity and text in item.message for item in findings)


def test_a_budget_grows_with_the_gfx_targets_that_were_asked_for(tmp_path: Path) -> None:
    path = PLUGIN.write(tmp_path)
    size = path.stat().st_size
    small = {"size": size - 100, "targets": 2, "per_target": 50}
    kinds = {kind: replace(rules, **small) for kind, rules in POLICY.kinds.items()}
    policy = replace(POLICY, kinds=kinds)
    (finding,) = verify(path, policy=policy)
    message = f"{size} bytes, the budget for 2 gfx targets is {size - 100}"
    assert (finding.rule, finding.message) == ("size.budget", message)
    families = {"x": ("gfx942", "gfx1100"), "y": ("gfx90a", "gfx950")}
    wider = Expectation(families=families, gfx_targets=frozenset(sum(families.values(), ())))
    assert {item.rule for item in verify(path, policy=policy, expected=wider)} == {"gfx.targets"}


@pytest.mark.parametrize(
    ("record", "rule"),
    [
        (lambda text: text.replace("sha256=", "sha256=A", 1), "record.hash"),
        (lambda text: text.replace(",0\n", ",1\n", 1), "record.hash"),
        (lambda text: text.partition("\n")[2], "record.row"),
        (lambda text: text + "ghost.py,sha256=abc,1\n", "record.row"),
    ],
)
def test_a_record_that_lies_is_found(record, rule: str, tmp_path: Path) -> None:
    text = PLUGIN.members()[f"{PLUGIN.dist_info}/RECORD"].content.decode()
    path = PLUGIN.but(record=record(text).encode()).write(tmp_path)
    assert [item.rule for item in verify(path, policy=POLICY)] == [rule]


def test_stronger_digests_are_compared_too(tmp_path: Path) -> None:
    import base64

    text = PLUGIN.members()[f"{PLUGIN.dist_info}/RECORD"].content.decode()
    empty = base64.urlsafe_b64encode(hashlib.sha512(b"").digest()).rstrip(b"=").decode()
    first = text.splitlines()[0]
    assert first.endswith(",0")
    strong = text.replace(first, f"jax_rocm7_plugin/__init__.py,sha512={empty},0")
    good = PLUGIN.but(record=strong.encode()).write(tmp_path)
    assert verify(good, policy=POLICY) == ()
    bad = PLUGIN.but(record=strong.replace(empty, empty[::-1]).encode()).write(tmp_path)
    assert [item.rule for item in verify(bad, policy=POLICY)] == ["record.hash"]


def test_a_record_without_sizes_holds(tmp_path: Path) -> None:
    """PEP 376 allows it, and pip and uv install such a wheel."""
    text = PLUGIN.members()[f"{PLUGIN.dist_info}/RECORD"].content
    made = PLUGIN.but(record=re.sub(rb",[0-9]+\n", b",\n", text))
    assert verify(made.write(tmp_path), policy=POLICY) == ()


def test_a_report_that_was_not_checked_is_made_again(tmp_path: Path) -> None:
    text = PLUGIN.members()[f"{PLUGIN.dist_info}/RECORD"].content
    path = PLUGIN.but(record=text.replace(b"sha256=", b"sha256=A", 1)).write(tmp_path)
    shallow, deep = inspect(path), inspect(path, hashes=True, code=SOME_CODE)
    assert (shallow.rows, shallow.digests) == ((), ())
    assert len(deep.digests) == 1
    assert verify(shallow, policy=POLICY) == verify(deep, policy=POLICY) != ()


def test_a_wheel_of_another_project_is_judged_by_what_holds_for_all(tmp_path: Path) -> None:
    made = wheels.Wheel(tag="py3-none-any", files={"demo/__init__.py": File()})
    assert verify(made.write(tmp_path), policy=POLICY) == ()


def test_what_only_an_extra_brings_may_be_another_version(tmp_path: Path) -> None:
    """As jax requires an older jaxlib with its extra `minimum-jaxlib`."""
    pins = ("jaxlib>=0.9.1,<=0.10", 'jaxlib==0.9.1; extra == "minimum-jaxlib"', "numpy>=2")
    paths = [
        wheels.Wheel(project="jax", version="0.10", tag="py3-none-any", requires=pins),
        wheels.jaxlib(version="0.10"),
    ]
    found = verify_set([made.write(tmp_path) for made in paths], policy=POLICY)
    assert list(found.values()) == [(), ()]
    (item,) = verify(
        tmp_path / "jax-0.10-py3-none-any.whl",
        policy=POLICY,
        expected=Expectation(siblings={"jaxlib": "0.11"}),
    )
    assert item.message == "requires jaxlib>=0.9.1,<=0.10; the set has jaxlib 0.11"


def test_a_pin_on_the_release_that_was_posted_again_holds(tmp_path: Path) -> None:
    """As of jax-rocm7-plugin 0.9.2.post1, which works with pjrt 0.9.2."""
    made = wheels.plugin(version="0.9.1.post1", requires=("jax-rocm7-pjrt==0.9.1",))
    assert verify(made.write(tmp_path), policy=POLICY) == ()


def test_no_finding_speaks_of_a_set_that_was_not_given(tmp_path: Path) -> None:
    path = PLUGIN.but(requires=("jax-rocm7-pjrt==0.9.0",)).write(tmp_path)
    for found in (
        verify(path, policy=POLICY),
        verify_set([path], policy=POLICY)[path],
    ):
        assert [item.message for item in found] == [
            "requires jax-rocm7-pjrt==0.9.0, and this wheel is 0.9.1"
        ]


def test_old_names_of_a_manylinux_level_are_no_second_tag(tmp_path: Path) -> None:
    tag = "cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64"
    assert verify(PLUGIN.but(tag=tag).write(tmp_path), policy=POLICY) == ()


def test_a_code_object_in_a_file_of_its_own_is_no_library(tmp_path: Path) -> None:
    made = with_file(PLUGIN, "jax_rocm7_plugin/kernels.hsaco", make_elf(machine=224))
    assert verify(made.write(tmp_path), policy=POLICY) == ()


@pytest.mark.parametrize(
    ("rpath", "rules"), [("$ORIGIN/../demo.libs", set()), ("/opt/x/lib", {"elf.rpath"})]
)
def test_what_auditwheel_does_is_no_fault_of_another_project(
    rpath: str, rules: set[str], tmp_path: Path
) -> None:
    """As in numpy, Pillow, pyzmq; JAX's own wheels have one tag and no RPATH (the cases above)."""
    library = File(make_elf(rpath=rpath), mode=0o755)
    tag = "py3-none-manylinux_2_27_x86_64.manylinux_2_28_x86_64"
    path = GENERAL.but(tag=tag, files={**GENERAL.files, "demo/x.so": library}).write(tmp_path)
    assert {item.rule for item in verify(path, policy=POLICY)} == rules


def test_errors_stand_before_warnings(tmp_path: Path) -> None:
    made = with_module(versions={"libc.so.6": ("GLIBC_2.28",)}).but(
        tag="cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64"
    )
    findings = verify(made.write(tmp_path), policy=POLICY)
    assert [item.severity for item in findings] == [Severity.ERROR, Severity.WARNING]


def test_three_tags_of_one_wheel_are_named(tmp_path: Path) -> None:
    paths = [
        PLUGIN.but(tag=f"cp312-cp312-manylinux_2_{level}_x86_64").write(tmp_path)
        for level in (27, 28, 31)
    ]
    paths.append(PJRT.write(tmp_path))
    found = verify_set(paths, policy=POLICY)
    assert [[item.rule for item in found[path]] for path in paths] == [
        ["set.double"], ["set.double"], ["set.double"], [],
    ]  # fmt: skip


def test_a_folder_without_a_pinned_wheel_is_incomplete(tmp_path: Path) -> None:
    path = PLUGIN.write(tmp_path)
    assert verify_set([path], policy=POLICY)[path] == ()
    (item,) = verify_set([path], policy=POLICY, whole=True)[path]
    assert (item.rule, "not in the set" in item.message) == ("pin.sibling", True)


def test_a_set_is_compared_by_the_version_that_is_its_own(tmp_path: Path) -> None:
    paths = [
        made.write(tmp_path)
        for made in (wheels.pjrt(version="0.9.2"), PJRT, PLUGIN, wheels.plugin(version="0.9.2"))
    ]
    assert all(not findings for findings in verify_set(paths, policy=POLICY).values())


def test_a_wheelhouse_agrees_with_its_manifest_or_says_where_not(tmp_path: Path) -> None:
    plugin, pjrt = PLUGIN.write(tmp_path), PJRT.write(tmp_path)
    made = wheels.manifest(plugin, pjrt)
    assert verify_wheelhouse(tmp_path, made, policy=POLICY) == {plugin: (), pjrt: ()}

    stray = wheels.plugin(version="0.9.2").write(tmp_path)
    found = verify_wheelhouse(tmp_path, made, policy=POLICY)
    assert [item.rule for item in found[stray]] == ["set.manifest"]
    stray.unlink()

    wider = replace(made, gfx_targets=("gfx1100", "gfx942", "gfx90a"))
    found = verify_wheelhouse(tmp_path, wider, policy=POLICY)
    assert {item.rule for items in found.values() for item in items} == {"gfx.targets"}

    of_two = replace(made, families=("gfx110X-all", "gfx94X-dcgpu"))
    found = verify_wheelhouse(tmp_path, of_two, policy=POLICY)
    lacks = "lacks gfx1101, gfx1102, gfx1103 of gfx110X-all"
    assert [[item.message.partition("; ")[0][-len(lacks):] for item in items]
            for items in found.values()] == [[lacks], [lacks]]  # fmt: skip

    with_file(PLUGIN, "jax_rocm7_plugin/more.py").write(tmp_path)
    found = verify_wheelhouse(tmp_path, made, policy=POLICY)
    assert [item.rule for item in found[plugin]] == ["set.manifest"] * 2  # SHA-256 and size

    plugin.unlink()
    found = verify_wheelhouse(tmp_path, made, policy=POLICY)
    assert [item.rule for item in found[plugin]] == ["archive"]


def test_every_rule_is_broken_by_some_test_and_explained_in_the_guide() -> None:
    here = Path(__file__)
    files = (here, here.with_name("test_installs.py"), here.with_name("test_runs.py"))
    tested = "".join(each.read_text(encoding="utf-8") for each in files)
    guide = (here.parents[2] / "docs" / "how-to" / "inspect-verify-wheels.md").read_text("utf-8")
    for rule in RULES:
        assert f'"{rule}"' in tested, rule
        assert f"| `{rule}` | {finding(rule, '').severity.value} | " in guide, rule


def test_a_manifest_that_lists_a_wheel_twice_or_as_it_is_not_is_found_out(tmp_path: Path) -> None:
    plugin, pjrt = PLUGIN.write(tmp_path), PJRT.write(tmp_path)
    made = wheels.manifest(plugin, pjrt)
    twice = replace(made, wheels=(*made.wheels, made.wheels[0]))
    found = verify_wheelhouse(tmp_path, twice, policy=POLICY)
    assert [item.message for item in found[plugin]] == ["listed more than once in the manifest"]
    wrong = replace(made.wheels[0], size=1, requires_python=">=3.99")
    found = verify_wheelhouse(
        tmp_path, replace(made, wheels=(wrong, made.wheels[1])), policy=POLICY
    )
    assert [item.message.partition(":")[0] for item in found[plugin]] == ["size", "Requires-Python"]


def test_what_was_read_once_is_judged_and_listed_without_the_file(tmp_path: Path) -> None:
    """`dist_wheels` makes verdict and manifest entry from one reading, and from one set of hashes."""
    path = PLUGIN.write(tmp_path)
    report = inspect(path, hashes=True, code=SOME_CODE)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.unlink()
    assert verify(report, policy=POLICY) == ()
    assert report.sha256 == digest


@pytest.mark.parametrize("text", [">=3.12.2", "==3.12.*", ">=3.11,<3.13", "!=3.12.1", "~=3.12.0"])
def test_a_requires_python_that_admits_later_releases_holds(text: str, tmp_path: Path) -> None:
    assert verify(PLUGIN.but(requires_python=text).write(tmp_path), policy=POLICY) == ()
