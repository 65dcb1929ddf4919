#!/bin/sh
# Installs what a builder or runtime image holds, for dnf and apt.
#
#     install.sh packages NAME...            system packages; `ppa:OWNER/NAME` is an archive of some
#     install.sh bazel FILE                  a Bazel binary, checked before it came here
#     install.sh environment WHEELS LOCK PYTHON   what rocwheel needs, by hash, in /opt/rocwheel
#     install.sh python3 PYTHON              `python3` for compiler wrappers, where the base's is too old
#     install.sh tool DIRECTORY              rocwheel itself, beside it
#     install.sh compilers VERSION           plain names for clang-VERSION, where it has none
#     install.sh python PYTHON               its environment /opt/venv, the user and the working folder
#     install.sh wheels DIRECTORY            wheels by hash into /opt/venv, without a network
#     install.sh clean                       what package managers leave behind
#
# Nothing is downloaded here but packages, which their repositories sign; everything else lies in
# the build context, where its SHA-256 was compared.
set -eu

manager() {
    if command -v apt-get > /dev/null; then
        echo apt
    elif command -v dnf > /dev/null; then
        echo dnf
    else
        echo "install.sh: this base has neither apt-get nor dnf" >&2
        exit 8
    fi
}

archive() {
    # what adds it, with its key, does not stay
    apt-get install --yes --no-install-recommends gpg-agent software-properties-common
    add-apt-repository --yes "$1"
    apt-get purge --yes --auto-remove gpg-agent software-properties-common
}

packages() {
    test $# -gt 0 || return 0
    found=$(manager)
    case "$found" in
        apt)
            export DEBIAN_FRONTEND=noninteractive
            apt-get update
            for name; do
                shift
                case "$name" in
                    ppa:*) archive "$name" ;;
                    *) set -- "$@" "$name" ;;
                esac
            done
            apt-get install --yes --no-install-recommends "$@"
            ;;
        dnf)
            dnf install --assumeyes --setopt=install_weak_deps=False --setopt=tsflags=nodocs "$@"
            ;;
    esac
}

bazel() {
    install -m 0755 "$1" /usr/local/bin/bazel
}

environment() {
    "$3" -m venv /opt/rocwheel/venv
    /opt/rocwheel/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-index \
        --require-hashes --find-links "$1" --requirement "$2"
}

python3() {
    # the compiler wrappers of XLA's ROCm rules start it; that of Enterprise Linux 8 is 3.6
    command python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2> /dev/null \
        || ln -sf "$1" /usr/local/bin/python3
}

tool() {
    cp -R "$1/." /opt/rocwheel/
    printf '#!/bin/sh\nexec /opt/rocwheel/venv/bin/python /opt/rocwheel/build/ci_build "$@"\n' \
        > /usr/local/bin/rocwheel
    chmod 0755 /usr/local/bin/rocwheel
    /opt/rocwheel/venv/bin/python -m compileall -q /opt/rocwheel/build
}

compilers() {
    for name in clang clang++; do
        test -e "/usr/bin/$name" || ln -s "/usr/bin/$name-$1" "/usr/bin/$name"
    done
}

python() {
    "$1" -m venv --without-pip /opt/venv
    echo "jax:x:10001:10001::/workspace:/bin/sh" >> /etc/passwd
    echo "jax:x:10001:" >> /etc/group
    install -d -m 1777 /workspace
}

wheels() {
    found=$(echo "$1"/pip-*.whl)
    PYTHONPATH="$found" /opt/venv/bin/python -m pip install --quiet --disable-pip-version-check \
        --ignore-installed --no-index --no-deps --no-cache-dir --no-compile --require-hashes \
        --requirement "$1/requirements.txt"
    # pip compiles with one CPU; as with pip, a file that is no Python of this version is left
    /opt/venv/bin/python -m compileall -qq -j 0 /opt/venv/lib || true
    /opt/venv/bin/python -m pip check --disable-pip-version-check
}

clean() {
    found=$(manager)
    case "$found" in
        apt) rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb /var/log/*.log /var/log/apt ;;
        dnf) dnf clean all && rm -rf /var/cache/dnf /var/log/dnf* ;;
    esac
}

step=$1
shift
"$step" "$@"
