"""The module extension behind MODULE.bazel; Bazel 4 knows none, so it has a file of its own."""

load(":repositories.bzl", "miniature_repositories")

def _miniature_impl(_module_ctx):
    miniature_repositories()

miniature = module_extension(implementation = _miniature_impl)
