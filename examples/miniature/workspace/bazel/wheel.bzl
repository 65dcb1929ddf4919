"""The wheel rule: packs built files with the plain Python tool //jaxlib/tools:build_wheel.py."""

load("@host_python//:python.bzl", "PYTHON_TAG")
load("@jax_wheel//:wheel.bzl", "WHEEL_VERSION")
load("@jax_wheel_version_suffix//:wheel_version_suffix.bzl", "WHEEL_VERSION_SUFFIX")
load("@tool_python//:python.bzl", "TOOL_PYTHON", "TOOL_PYTHON_VERSION")
load(":native.bzl", "require_rocm")

_PLATFORM_TAG = "manylinux_2_27_x86_64"

StringFlagInfo = provider(doc = "The value of a string flag.", fields = ["value"])

def _string_flag_impl(ctx):
    return [StringFlagInfo(value = ctx.build_setting_value)]

string_flag = rule(
    doc = "A string set on the command line, --//package:name=value.",
    implementation = _string_flag_impl,
    build_setting = config.string(flag = True),
)

def _jax_wheel_impl(ctx):
    if ctx.attr.needs_rocm:
        require_rocm(ctx.label)
    python_tag = "py3-none" if ctx.attr.no_abi else "{0}-{0}".format(PYTHON_TAG)
    tag = "{}-{}".format(python_tag, _PLATFORM_TAG)
    folder = ctx.attr._output_path[StringFlagInfo].value

    args = ctx.actions.args()
    args.add_all(["-I", "-S"])  # isolated: the tool needs the standard library only
    args.add(ctx.file._tool)
    args.add("--name", ctx.attr.wheel_name)
    args.add("--version", WHEEL_VERSION)
    args.add("--tag", tag)
    args.add("--summary", ctx.attr.summary)
    args.add("--top-level", ctx.attr.top_level)
    if ctx.attr.no_abi:
        args.add("--purelib")
    if ctx.attr.requires_python:
        args.add("--requires-python", ctx.attr.requires_python)
    args.add_all(ctx.attr.requires, before_each = "--requires")
    args.add_all(ctx.attr.entry_points, before_each = "--entry-point")
    if ctx.attr.version_module:
        args.add("--version-module", ctx.attr.version_module)
        git_hash = ctx.attr._git_hash[StringFlagInfo].value
        if git_hash:
            args.add("--git-hash", git_hash)
    for target, destination in ctx.attr.files.items():
        args.add(target.files.to_list()[0], format = destination + "=%s")

    output = ctx.actions.declare_file("{}/{}-{}{}-{}.whl".format(
        folder,
        ctx.attr.wheel_name,
        WHEEL_VERSION,
        WHEEL_VERSION_SUFFIX,
        tag,
    ))
    args.add("--output-dir", output.dirname)
    ctx.actions.run(
        executable = TOOL_PYTHON,
        arguments = [args],
        inputs = depset([ctx.file._tool], transitive = [target.files for target in ctx.attr.files]),
        outputs = [output],
        env = {
            "SOURCE_DATE_EPOCH": "0",
            "TOOL_PYTHON_VERSION": TOOL_PYTHON_VERSION,  # for the cache key, as the tool is no input
            "WHEEL_VERSION_SUFFIX": WHEEL_VERSION_SUFFIX,
        },
        mnemonic = "BuildJaxWheel",
        progress_message = "Packing {}".format(output.short_path),
    )
    return [DefaultInfo(files = depset([output]))]

jax_wheel = rule(
    doc = "A wheel below the folder --//jaxlib/tools:output_path.",
    implementation = _jax_wheel_impl,
    attrs = {
        "wheel_name": attr.string(mandatory = True, doc = "The project, with underscores."),
        "files": attr.label_keyed_string_dict(
            allow_files = True,
            doc = "Target with one file -> its path in the wheel.",
        ),
        "summary": attr.string(mandatory = True),
        "top_level": attr.string(mandatory = True),
        "requires": attr.string_list(doc = "Requires-Dist; {version} is the wheel's own version."),
        "requires_python": attr.string(),
        "entry_points": attr.string_list(doc = "group:name = module"),
        "version_module": attr.string(doc = "The path of the version.py that gets version and commit."),
        "no_abi": attr.bool(doc = "One wheel for every Python 3; marked pure, as JAX's pjrt wheels are."),
        "needs_rocm": attr.bool(),
        "_git_hash": attr.label(default = "//jaxlib/tools:jaxlib_git_hash"),
        "_output_path": attr.label(default = "//jaxlib/tools:output_path"),
        "_tool": attr.label(default = "//jaxlib/tools:build_wheel.py", allow_single_file = True),
    },
)
