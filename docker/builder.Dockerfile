# Builder image: CPythons, compilers, Bazel, patchelf and rocwheel itself, on any base.
# `ci_build image build` makes the context and gives every argument; ci/images.yaml has the values.
ARG BASE
FROM ${BASE}

ARG PACKAGES=""
ARG CLANG=""
ARG TOOL_PYTHON="python3"
ARG INPUTS

# hadolint ignore=SC2086
RUN --mount=type=bind,target=/context \
    sh /context/install.sh packages ${PACKAGES} \
    && if test -f /context/bazel; then sh /context/install.sh bazel /context/bazel; fi \
    && if test -n "${CLANG}"; then sh /context/install.sh compilers "${CLANG}"; fi \
    && sh /context/install.sh clean

RUN --mount=type=bind,target=/context \
    sh /context/install.sh tool /context "${TOOL_PYTHON}" \
    && echo "${INPUTS}" > /opt/rocwheel/inputs

COPY rocm/ /opt/rocm/

ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
WORKDIR /
CMD ["/bin/sh"]
