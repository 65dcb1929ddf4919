"""A set of ROCm wheels whose code runs: compiled modules, a plugin that starts, a small jaxlib.

The modules are C without Python's headers, so that one compiler makes them for every CPython; they
are linked against ROCm libraries that define what they use, which the wheels then do not bring.
"""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

from support import wheels
from support.wheels import PLUGIN_MODULES, SHORT_RUNPATH, File, Wheel

MODULE = r"""
typedef struct { long refs; void *type; void *init; long index; void *copy; const char *name;
  const char *doc; long size; void *methods, *slots, *traverse, *clear, *free; } Definition;
extern void *PyModule_Create2(Definition *, int);
extern int PyModule_AddIntConstant(void *, const char *, long);
extern void PyErr_Clear(void);
extern int hipMalloc(void **, unsigned long);
extern void **__hipRegisterFatBinary(const void *);
extern void __hipRegisterFunction(void **, const void *, char *, const char *, int, ...);
static Definition definition = {1, 0, 0, 0, 0, "NAME", 0, -1, 0, 0, 0, 0, 0};
#ifdef GPU
asm(".section .hip_fatbin,\"a\"\n.p2align 12\ncode:\n.incbin \"BUNDLE\"\n.previous");
extern const char code[];
static const struct { unsigned magic, version; const void *code; void *unused; }
    wrapper __attribute__((section(".hipFatBinSegment"))) = {0x48495046, 1, CODE, 0};
static __attribute__((constructor)) void give(void) { GIVE }
#endif
static const char *taken[] = {TAKEN};
void *PyInit_NAME(void) {
  PyErr_Clear();
  void *memory, *module = PyModule_Create2(&definition, 1013);
  PyModule_AddIntConstant(module, "memory", hipMalloc(&memory, 8));
  for (int n = 0; n < sizeof taken / sizeof *taken; n++)
    PyModule_AddIntConstant(module, taken[n], 0);
  return module;
}
"""
GIVE = """__hipRegisterFunction(
  __hipRegisterFatBinary(&wrapper), give, "add", "add", -1, 0, 0, 0, 0, 0);"""
TAKEN = (
    "TritonAutotunedKernelCall TritonKernel TritonKernelCall build_rnn_descriptor "
    "compile_triton_to_asm compute_rnn_workspace_reserve_space_sizes create_array_parameter "
    "create_scalar_parameter ffi_handlers ffi_types get_arch_details get_compute_capability "
    "get_custom_call get_device_ordinal get_serialized_metadata has_magma initialize "
    "register_custom_call_target register_custom_type registrations"
)  # of all modules, which have them all
MODULE = MODULE.replace("TAKEN", ", ".join(f'"{name}"' for name in TAKEN.split()))
LIBRARY = (
    MODULE.partition("extern void *PyModule")[0].replace("Definition", "Unused")
    + r"""
extern void **__hipRegisterFatBinary(const void *);
extern void __hipRegisterFunction(void **, const void *, char *, const char *, int, ...);
asm(".section .hip_fatbin,\"a\"\n.p2align 12\ncode:\n.incbin \"BUNDLE\"\n.previous");
extern const char code[];
static const struct { unsigned magic, version; const void *code; void *unused; }
    wrapper __attribute__((section(".hipFatBinSegment"))) = {0x48495046, 1, CODE, 0};
static __attribute__((constructor)) void give(void) { GIVE }
static struct { unsigned long size; void *unused[20]; } api = {168};
const void *GetPjrtApi(void) { return &api; }
"""
)
INIT = b"""import functools
import importlib
import pathlib

from jax._src import hardware_utils
from jax._src.lib import triton
from jax._src.lib import xla_client
import jax._src.xla_bridge as xb

for package in ('jax_rocm7_plugin', 'jaxlib.rocm'):
  try:
    extension = importlib.import_module(f'{package}.rocm_plugin_extension')
  except ImportError:
    extension = None
  else:
    break


def initialize():
  path = pathlib.Path(__file__).resolve().parent / 'xla_rocm_plugin.so'
  if extension is None:  # as AMD's own before 0.12
    return
  if hardware_utils.num_available_amd_gpus(stop_at=2) <= 0 or not pathlib.Path('/dev/dxg').exists():
    raise ValueError('no GPU')
  options = xla_client.generate_pjrt_gpu_plugin_options()
  options['platform_name'] = 'ROCM'
  api = xb.register_plugin('rocm', priority=500, library_path=str(path), options=options)
  if extension:
    xla_client.register_custom_type_handler('ROCM', extension.memory)
    xla_client.register_custom_call_handler('ROCM', extension.memory)
    xla_client.register_custom_type('add', {}, platform='ROCM')
    xla_client.register_custom_call_target('add', extension.memory, platform='ROCM', api_version=1)
    triton.register_compilation_handler('ROCM', extension.memory)
  for name in getattr(extension, 'more_types', dict)():
    xla_client.register_custom_type(name)
"""


@functools.cache
def common() -> bytes:
    """jaxlib's common library, which its modules NEED."""
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch, "libjax_common.so")
        source = Path(scratch, "x.c")
        source.write_text("int common(void) { return 1; }\n")
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-Wl,-soname,libjax_common.so", source, "-o", made],
            check=True,
        )
        return made.read_bytes()


PLAIN = r"""
extern int common(void);
""" + MODULE.replace("hipMalloc(&memory, 8)", "common()").replace(
    "extern int hipMalloc(void **, unsigned long);", ""
)


@functools.cache
def of_jaxlib(name: str, folder: str) -> bytes:
    """A module of jaxlib's."""
    with tempfile.TemporaryDirectory() as scratch:
        library, source, made = (
            Path(scratch, each) for each in ("libjax_common.so", "x.c", "x.so")
        )
        library.write_bytes(common())
        source.write_text(PLAIN.replace("NAME", name))
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-O1", "-w", "-Wl,--enable-new-dtags",
             f"-Wl,-rpath,{folder}", source, library, "-o", made],
            check=True,
        )  # fmt: skip
        return made.read_bytes()


@functools.cache
def compiled(
    name: str, *, gpu: bool, give: str = GIVE, code: str = "code", bundle: bytes = b""
) -> bytes:
    """A module, or with `GetPjrtApi` as its name the library of a pjrt."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        bundle = bundle or wheels.make_bundle(("gfx942", "gfx1100"))
        (folder / "bundle").write_bytes(wheels.pack_bundle(bundle))
        (folder / "hip.c").write_text(
            "int hipMalloc(void **p, unsigned long n) { return 2; }\n"
            "void **__hipRegisterFatBinary(const void *p) { return 0; }\n"
            "void __hipRegisterFunction() {}\n"
        )
        (folder / "hip.map").write_text("hip_4.2 { global: *; };\n")
        text = (LIBRARY if name == "GetPjrtApi" else MODULE).replace("NAME", name)
        text = text.replace("GIVE", give).replace("CODE", code)
        (folder / "x.c").write_text(text.replace("BUNDLE", str(folder / "bundle")))
        hip = folder / "libamdhip64.so.7"
        runpath = "-Wl,-rpath," + ":".join(SHORT_RUNPATH)
        for argv in (
            ["-Wl,-soname,libamdhip64.so.7", f"-Wl,--version-script={folder / 'hip.map'}",
             folder / "hip.c", "-o", hip],
            ["-Wl,-soname,libhipblas.so.3", folder / "hip.c", "-o", folder / "libhipblas.so.3"],
            [*(["-DGPU"] if gpu else []), "-Wl,--enable-new-dtags", runpath, folder / "x.c", hip,
             *(["-Wl,--no-as-needed", folder / "libhipblas.so.3"] if name == "_linalg" else []), "-o", folder / "x.so"],
        ):  # fmt: skip
            subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-w", *argv], check=True)
        return (folder / "x.so").read_bytes()


def plugin(python: str = "312") -> Wheel:
    made = wheels.plugin().but(tag=f"cp{python}-cp{python}-manylinux_2_27_x86_64")
    files = {
        f"jax_rocm7_plugin/{name}.so": File(compiled(name, gpu=name == "_linalg"), mode=0o755)
        for name in ("_linalg", *PLUGIN_MODULES)
    }
    return made.but(files={**made.files, **files})


def pjrt() -> Wheel:
    made = wheels.pjrt()
    files = {
        "jax_plugins/xla_rocm7/__init__.py": File(INIT),
        "jax_plugins/xla_rocm7/xla_rocm_plugin.so": File(
            compiled("GetPjrtApi", gpu=True), mode=0o755
        ),
    }
    return made.but(files={**made.files, **files})


def jaxlib(python: str = "312") -> Wheel:
    """A jaxlib whose compiled modules are there and do nothing."""
    made = wheels.jaxlib().but(tag=f"cp{python}-cp{python}-manylinux_2_27_x86_64")
    files = {"jaxlib/libjax_common.so": File(common(), mode=0o755)}
    for name in made.files:
        if name.endswith(".so") and name not in files:
            *folders, file = name.split("/")[1:]
            origin = "/".join(["$ORIGIN", *(".." for _ in folders)])
            files[name] = File(of_jaxlib(file[:-3], origin), mode=0o755)
    return made.but(files={**made.files, **files})
