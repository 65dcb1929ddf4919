# Builder image: CPythons, compilers, Bazel, patchelf and rocwheel itself, on any base.
# `rocwheel image build` makes the context and gives every argument; ci/images.yaml has the values.
ARG BASE
FROM ${BASE}

ARG PACKAGES=""
ARG CLANG=""
ARG TOOL_PYTHON="python3"
ARG INPUTS

# Each step sees what it reads and nothing else: a change of the tool installs no package again.
# hadolint ignore=SC2086
RUN --mount=type=bind,source=install.sh,target=/install.sh \
    sh /install.sh packages ${PACKAGES} \
    && if test -n "${CLANG}"; then sh /install.sh compilers "${CLANG}"; fi \
    && sh /install.sh clean

RUN --mount=type=bind,source=install.sh,target=/install.sh \
    --mount=type=bind,source=bazel,target=/bazel \
    if test -f /bazel/bazel; then sh /install.sh bazel /bazel/bazel; fi

RUN --mount=type=bind,source=install.sh,target=/install.sh \
    --mount=type=bind,source=wheels,target=/wheels \
    --mount=type=bind,source=requirements.lock,target=/requirements.lock \
    sh /install.sh environment /wheels /requirements.lock "${TOOL_PYTHON}" \
    && sh /install.sh python3 "${TOOL_PYTHON}"

RUN --mount=type=bind,source=install.sh,target=/install.sh \
    --mount=type=bind,source=tool,target=/tool \
    sh /install.sh tool /tool && echo "${INPUTS}" > /opt/rocwheel/inputs

# PATH stays the base's: manylinux has the gcc-toolset there that its Pythons were built with.
WORKDIR /
CMD ["/bin/sh"]
