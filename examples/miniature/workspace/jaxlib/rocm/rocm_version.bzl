"""The ROCm number in the names of packages: the major version; 0 when ROCm is not configured."""

load("@local_config_rocm//rocm:build_defs.bzl", "ROCM_VERSION_NUMBER")

ROCM_MAJOR_VERSION = ROCM_VERSION_NUMBER // 10000
