# Runtime image: a base, ROCm, a CPython, wheels, each a layer of its own, in this order.
# `ci_build runtime_images` makes the context and gives every argument; ci/images.yaml has the
# values. The stage `rocm` is built once per base and ROCm and given as ROCM to what stands on it.
ARG BASE
ARG ROCM=rocm

FROM ${BASE} AS base
ARG PACKAGES=""
# hadolint ignore=SC2086
RUN --mount=type=bind,source=install.sh,target=/install.sh \
    sh /install.sh packages ${PACKAGES} && sh /install.sh clean

FROM base AS rocm
ADD rocm.tar /

# hadolint ignore=DL3006
FROM ${ROCM} AS runtime
ARG PYTHON_PACKAGES=""
ARG PYTHON
# hadolint ignore=SC2086
RUN --mount=type=bind,source=install.sh,target=/install.sh \
    sh /install.sh packages ${PYTHON_PACKAGES} && sh /install.sh python "${PYTHON}" \
    && sh /install.sh clean
RUN --mount=type=bind,source=install.sh,target=/install.sh \
    --mount=type=bind,source=wheels,target=/wheels \
    sh /install.sh wheels /wheels

ENV PATH=/opt/venv/bin:/opt/rocm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    ROCM_PATH=/opt/rocm
USER 10001:10001
WORKDIR /workspace
CMD ["python3"]
