"""What Docker and Podman print, and what is read out of it.

A row with a version was printed by that engine; one with SOURCES is worded as in its sources (or
those of the program that a build's step ran), because it cannot be provoked by the engines of CI.
"""

from __future__ import annotations

import pytest

from rocwheel.base.container.engine import Trouble, headline, meaning

DOCKER, PODMAN = "Docker 20.10.24", "Podman 4.3.1"
SOURCES = "sources"
RUNC = "runc create failed: unable to start container process"
SHIM = "docker: Error response from daemon: failed to create shim task: OCI runtime create failed"

TEXTS = [
    (DOCKER, Trouble.NO_DAEMON, ("Server:\nERROR: Cannot connect to the Docker daemon at "
     "unix:///nonexistent.sock. Is the docker daemon running?\nerrors pretty printing info")),
    (SOURCES, Trouble.NO_DAEMON, ("failed to connect to the docker API at unix:///x.sock; check if "
     "the path is correct and if the daemon is running")),
    (SOURCES, Trouble.NO_DAEMON, "error during connect: Post http://docker/build: EOF"),
    (SOURCES, Trouble.NO_DAEMON, "Cannot connect to Podman. Please verify your connection"),
    (DOCKER, Trouble.NO_DAEMON, "#5 [2/2] RUN sleep 7777\nunexpected EOF"),
    (DOCKER, Trouble.NO_DAEMON, "error reading from server: EOF"),
    (SOURCES, Trouble.NO_DAEMON, "rpc error: code = Unavailable desc = closing transport"),
    (SOURCES, Trouble.NO_PERMISSION, "Got permission denied while trying to connect to the socket"),
    (SOURCES, Trouble.CGROUP, "Error: crun: unknown cgroup version: cgroup: not supported"),
    (DOCKER, Trouble.NO_SPACE, "#9 ERROR: write /layer: no space left on device"),
    (DOCKER, Trouble.NO_IMAGE, ("docker: Error response from daemon: No such image: "
     "rocwheel-test/none:1.\nSee 'docker run --help'.")),
    (PODMAN, Trouble.NO_IMAGE, "Error: rocwheel-test/none:1: image not known"),
    (SOURCES, Trouble.NO_IMAGE, "Unable to find image 'x:1' locally"),
    (DOCKER, Trouble.NO_MOUNT, ("docker: Error response from daemon: invalid mount config for type "
     '"bind": bind source path does not exist: /nonexistent/x.\nSee \'docker run --help\'.')),
    (PODMAN, Trouble.NO_MOUNT, "Error: statfs /nonexistent/x: no such file or directory"),
    (SOURCES, Trouble.NO_MOUNT, "Error: open /run/x: no such file or directory: OCI not found"),
    (SOURCES, Trouble.OTHER_ARCHITECTURE, "exec /bin/sh: exec format error"),
    (DOCKER, Trouble.LIMIT, (f"{SHIM}: {RUNC}: error during container init: error setting rlimits "
     "for ready process: error setting rlimit type 7: operation not permitted: unknown.")),
    (PODMAN, Trouble.LIMIT, (f"Error: runc: {RUNC}: error during container init: error setting "
     "rlimits for ready process: error setting rlimit type 7: operation not permitted: OCI")),
    (DOCKER, Trouble.NAME_TAKEN, ('Error response from daemon: Conflict. The container name "/x" is '
     'already in use by container "44da". You have to remove (or rename) that container')),
    (PODMAN, Trouble.NAME_TAKEN, ('Error: creating container storage: the container name "x" is '
     "already in use by 4e43. You have to remove that container to be able to reuse that name")),
    (DOCKER, Trouble.NO_PROGRAM, ("OCI runtime exec failed: exec failed: unable to start container "
     'process: exec: "nosuch": executable file not found in $PATH: unknown')),
    (DOCKER, Trouble.NO_PROGRAM, ("OCI runtime exec failed: exec failed: unable to start container "
     'process: exec: "/no/such": stat /no/such: no such file or directory: unknown')),
    (PODMAN, Trouble.NO_PROGRAM, ("Error: runc: exec failed: unable to start container process: "
     'chdir to cwd ("/no/such") set in config.json failed: no such file or directory: OCI runtime')),
    (PODMAN, Trouble.NO_PROGRAM, "0: 1: exec: nosuchprogram: not found"),
    (DOCKER, Trouble.NOT_IN_REGISTRY, ("Error response from daemon: manifest for localhost:5000/x:1 "
     "not found: manifest unknown: manifest unknown")),
    (SOURCES, Trouble.NOT_LOGGED_IN, "pull access denied for x, repository does not exist"),
    (SOURCES, Trouble.NOT_LOGGED_IN, "unauthorized: authentication required"),
    (DOCKER, Trouble.NO_PACKAGE_MANAGER, "#7 12.3 install.sh: this base has neither apt-get nor dnf"),
    (DOCKER, Trouble.NO_NETWORK, ("executor failed running [/bin/sh -c apt-get update]: network "
     "bridge not found")),
    (SOURCES, Trouble.NO_NETWORK, "#7 0.3 Temporary failure resolving 'deb.debian.org'"),
    (SOURCES, Trouble.NO_NETWORK, "Err:1 http://x Could not resolve 'x'\nUnable to connect to x:"),
    (SOURCES, Trouble.NO_NETWORK, "Error: Failed to download metadata: Cannot download repomd.xml"),
    (PODMAN, Trouble.NO_SHELL, ('creating container for [/bin/sh -c true]: exec: "/bin/sh": stat '
     "/bin/sh: no such file or directory")),
    (SOURCES, Trouble.NO_SHELL, "runc run failed: exec /bin/sh failed: No such file or directory"),
    (SOURCES, Trouble.NO_SHELL, "/bin/sh: no such file or directory"),
    (PODMAN, Trouble.NO_PACKAGE, "E: Unable to locate package nosuchpackage\nError: building at"),
    (SOURCES, Trouble.NO_PACKAGE, "No match for argument: nosuchpackage"),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "trouble", "output"), TEXTS)
def test_what_an_engine_prints_is_read(engine, trouble, output):
    assert trouble.is_in(output), engine


@pytest.mark.parametrize(
    ("trouble", "words"), [(trouble, words) for trouble in Trouble for words in trouble.value]
)
def test_every_text_that_is_matched_is_one_of_the_table(trouble, words):
    assert any(trouble is known and words in output.lower() for _, known, output in TEXTS)


def test_no_two_troubles_are_one():
    assert len(Trouble) == len(Trouble.__members__)


@pytest.mark.parametrize("output", ["", "Error: a container is in the way", "exit status 1"])
def test_other_output_is_no_known_trouble(output):
    assert meaning(output, {None: None, **{item: item for item in Trouble}}) is None


def test_the_first_trouble_in_the_list_counts():
    both = "statfs /x: no space left on device"
    assert meaning(both, {None: 0, Trouble.NO_SPACE: 1, Trouble.NO_MOUNT: 2}) == 1
    assert meaning(both, {None: 0, Trouble.NO_MOUNT: 2, Trouble.NO_SPACE: 1}) == 2


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (
            "docker: Error response from daemon: network x not found.\nSee 'docker run --help'.",
            "docker: Error response from daemon: network x not found.",
        ),
        (
            'invalid argument "1x" for "--shm-size" flag\nSee \'docker run --help\'.\n',
            'invalid argument "1x" for "--shm-size" flag',
        ),
        (
            "docker: invalid reference format.\n\nRun 'docker run --help' for more information",
            "docker: invalid reference format.",
        ),
        (
            "Error: no such thing\nWARN[0000] the lock could not be removed\n",
            "Error: no such thing",
        ),
        ("one\ntwo\n", "two"),
        ("See 'docker run --help'.", "See 'docker run --help'."),
        (" \n", ""),
    ],
)
def test_the_line_that_states_the_error_is_found(output, line):
    assert headline(output) == line
