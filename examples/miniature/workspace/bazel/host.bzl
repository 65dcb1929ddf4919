"""Repository rules that find the host's compiler and CPythons, or say what is missing."""

def _run(repository_ctx, command):
    """Runs a program; returns (stdout, "") or ("", the first line of what went wrong)."""
    result = repository_ctx.execute(command, timeout = 60)
    if result.return_code == 0:
        return result.stdout.strip(), ""
    said = (result.stderr.strip() or result.stdout.strip()).split("\n")[0]
    return "", said or "exit status {}".format(result.return_code)

def _find(repository_ctx, program):
    """The absolute path of a program: a path as it is, a name looked up on PATH; else None."""
    return program if program.startswith("/") else repository_ctx.which(program)

# The host compiler ------------------------------------------------------------------------------

_DEFAULT_COMPILERS = ["cc", "gcc", "clang", "clang-19"]

def _host_compiler_impl(repository_ctx):
    asked = repository_ctx.os.environ.get("CC", "")
    repository_ctx.file("probe.cc", "#include <string>\nint probe() { return 0; }\n")
    problems = []
    for program in [asked] if asked else _DEFAULT_COMPILERS:
        compiler = _find(repository_ctx, program)
        if not compiler:
            problems.append("{}: not found on PATH".format(program))
            continue
        _, problem = _run(repository_ctx, [compiler, "-fsyntax-only", "probe.cc"])
        if problem:
            problems.append("{}: {}".format(compiler, problem))
            continue
        version, problem = _run(repository_ctx, [compiler, "--version"])
        if problem:
            problems.append("{}: {}".format(compiler, problem))
            continue
        repository_ctx.file("BUILD.bazel", "")
        repository_ctx.file("compiler.bzl", "COMPILER = {}\nCOMPILER_VERSION = {}\n".format(
            repr(str(compiler)),
            repr(version.split("\n")[0]),
        ))
        return
    fail("no C++ compiler ({}): name one with --repo_env=CC=<path>".format("; ".join(problems)))

host_compiler = repository_rule(
    doc = "The host C++ compiler: what CC names, else the first usual name that compiles C++.",
    implementation = _host_compiler_impl,
    environ = ["CC"],
    local = True,
)

# CPython ----------------------------------------------------------------------------------------

_PROBE = """
import json, os, sys, sysconfig
print(json.dumps({
    "executable": os.path.realpath(sys.executable),
    "full": sys.version.split()[0],
    "gil": not sysconfig.get_config_var("Py_GIL_DISABLED"),
    "implementation": sys.implementation.name,
    "include": sysconfig.get_path("include"),
    "version": "%d.%d" % sys.version_info[:2],
}))
"""

def _probe(repository_ctx, interpreter):
    """Asks an interpreter about itself; returns (answers, "") or (None, the problem)."""
    text, problem = _run(repository_ctx, [interpreter, "-I", "-c", _PROBE])
    return (None, problem) if problem else (json.decode(text), "")

def _of_pyenv(repository_ctx, version):
    """The newest interpreter of a version that pyenv has, selected or not; None without one."""
    environ = repository_ctx.os.environ
    root = environ.get("PYENV_ROOT") or environ.get("HOME", "") + "/.pyenv"
    folder = repository_ctx.path(root).get_child("versions") if root.startswith("/") else None
    names = [entry.basename for entry in folder.readdir()] if folder and folder.exists else []
    patches = [name[len(version) + 1:] for name in names if name.startswith(version + ".")]
    patches = sorted([int(patch) for patch in patches if patch.isdigit()])
    if not patches:
        return None
    own = folder.get_child("{}.{}".format(version, patches[-1])).get_child("bin")
    return str(own.get_child("python" + version))

def _accepted_versions(repository_ctx):
    """The CPythons this tree has a requirements lock file for, such as ["3.10", "3.11"]."""
    folder = repository_ctx.path(repository_ctx.attr.anchor).dirname.get_child("build")
    prefix, ending = "requirements_lock_3_", ".txt"
    minors = [
        int(name[len(prefix):-len(ending)])
        for name in [entry.basename for entry in folder.readdir()]
        if name.startswith(prefix) and name[len(prefix):-len(ending)].isdigit()
    ]
    return ["3.{}".format(minor) for minor in sorted(minors)]

def _host_python_impl(repository_ctx):
    environ = repository_ctx.os.environ
    version = environ.get("HERMETIC_PYTHON_VERSION", "")
    if not version:
        default = repository_ctx.which("python3")
        answers, _ = _probe(repository_ctx, default) if default else (None, "")
        version = answers["version"] if answers else "unset"
    accepted = _accepted_versions(repository_ctx)
    if version not in accepted:
        fail("HERMETIC_PYTHON_VERSION={}: this tree has lock files for {} (build/requirements_lock_*.txt)".format(
            version,
            ", ".join(accepted),
        ))

    variable = "MINIATURE_PYTHON_" + version.replace(".", "_")
    advice = "pass its interpreter with --repo_env={}=<path>".format(variable)
    asked = environ.get(variable) or environ.get("MINIATURE_PYTHON", "")
    interpreter = _find(repository_ctx, asked or "python" + version)
    if not asked and (not interpreter or _probe(repository_ctx, interpreter)[1]):
        interpreter = _of_pyenv(repository_ctx, version) or interpreter
    if not interpreter:
        fail("CPython {} is missing: no {} on PATH; install it, or {}".format(
            version,
            asked or "python" + version,
            advice,
        ))
    python, problem = _probe(repository_ctx, interpreter)
    if problem:
        fail("CPython {} is missing: {} does not run ({}); {}".format(version, interpreter, problem, advice))
    if python["version"] != version or python["implementation"] != "cpython" or not python["gil"]:
        fail("CPython {} is wanted, but {} is {} {}{}; {}".format(
            version,
            interpreter,
            python["implementation"],
            python["full"],
            "" if python["gil"] else " (free-threaded)",
            advice,
        ))
    include = repository_ctx.path(python["include"])
    if not include.get_child("Python.h").exists:
        fail("CPython {} has no headers: {}/Python.h is missing; install python{}-dev, or {}".format(
            version,
            include,
            version,
            advice,
        ))
    repository_ctx.symlink(include, "include")
    repository_ctx.file("python.bzl", "PYTHON_TAG = {}\n".format(repr("cp" + version.replace(".", ""))))
    repository_ctx.file("BUILD.bazel", """
filegroup(
    name = "headers",
    srcs = glob(["include/**/*.h"]),
    visibility = ["//visibility:public"],
)
""")

host_python = repository_rule(
    doc = "The CPython the wheels are for: HERMETIC_PYTHON_VERSION, one this tree has a lock file of.",
    implementation = _host_python_impl,
    attrs = {"anchor": attr.label(mandatory = True, doc = "A file in the workspace root.")},
    environ = ["HERMETIC_PYTHON_VERSION", "MINIATURE_PYTHON"] +
              ["MINIATURE_PYTHON_3_{}".format(minor) for minor in range(10, 15)],
    local = True,
)

def _tool_python_impl(repository_ctx):
    asked = repository_ctx.os.environ.get("MINIATURE_TOOL_PYTHON", "") or "python3"
    interpreter = _find(repository_ctx, asked)
    python, problem = _probe(repository_ctx, interpreter) if interpreter else (None, "not found")
    if problem:
        fail("{}: {}; name a Python 3 with --repo_env=MINIATURE_TOOL_PYTHON=<path>".format(asked, problem))
    repository_ctx.file("BUILD.bazel", "")
    repository_ctx.file("python.bzl", "TOOL_PYTHON = {}\nTOOL_PYTHON_VERSION = {}\n".format(
        repr(python["executable"]),
        repr(python["full"]),
    ))

tool_python = repository_rule(
    doc = "The interpreter that packs wheels: not the wheel's own, so that pjrt serves all CPythons.",
    implementation = _tool_python_impl,
    environ = ["MINIATURE_TOOL_PYTHON"],
    local = True,
)
