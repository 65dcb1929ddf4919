"""Real Bazel on a small workspace: outputs, counts, failures, interruption, caches."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import ssl
import subprocess
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from packageurl import PackageURL
from support import bazel_bench, certificates, toy
from support.bazel_bench import SOURCES
from support.trust import make_record
from support.wheelset import make_set

from rocwheel import bazel
from rocwheel.base.errors import BazelError, CommandError, HostError
from rocwheel.base.store.file import FileStore
from rocwheel.base.values import replace
from rocwheel.base.versions import WheelKind
from rocwheel.bazel import BazelBinary
from rocwheel.bazel.remote import in_use
from rocwheel.dist.build_request import BOTH, STARTUP_OPTIONS
from rocwheel.release.index.serve import Site
from rocwheel.release.trust import statements
from rocwheel.tools.doctor import try_download

pytestmark = [pytest.mark.integration, pytest.mark.needs("bazel"), pytest.mark.xdist_group("bazel")]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One server for the module: starting one takes seconds."""
    folder = tmp_path_factory.mktemp("bazel")
    yield folder
    bazel_bench.stop(folder)


@pytest.fixture
def bench(folder, runner, console):
    return bazel_bench.make(folder, runner, console)


def test_plugin_and_pjrt_are_one_invocation_and_a_second_run_executes_nothing(bench, talk):
    bench.write("kernels.txt", f"kernels {time.time()}\n")
    first = bench.build()
    assert {kind: path.name for kind, path in first.outputs.items()} == {
        WheelKind.PLUGIN: "jax_rocm7_plugin-0.11.0+rocm7.10.0-cp312-cp312-linux_x86_64.whl",
        WheelKind.PJRT: "jax_rocm7_pjrt-0.11.0+rocm7.10.0-py3-none-linux_x86_64.whl",
    }
    kernels = (bench.workspace / SOURCES / "kernels.txt").read_text()
    assert toy.text_of(first.outputs[WheelKind.PLUGIN]) == kernels + "shared = 1\n"
    assert first.record.actions_executed >= 2
    second = bench.build()
    assert (second.record.actions_executed, second.record.cache_hits) == (0, 0)
    assert "nothing to rebuild" in second.summary


def test_one_changed_file_rebuilds_what_depends_on_it_and_no_more(bench):
    bench.build()
    bench.write("pjrt.txt", f"pjrt {time.time()}\n")
    assert bench.build().record.actions_executed == 2  # the object and its wheel


def test_further_cpythons_get_the_plugin_alone_and_jaxlib_is_apart(bench):
    planned = bazel.invocations(bench.spec)
    assert [(i.kinds, str(i.python)) for i in planned] == [
        ((WheelKind.PLUGIN, WheelKind.PJRT), "3.12"),
        ((WheelKind.PLUGIN,), "3.13"),
        ((WheelKind.JAXLIB,), "3.12"),
        ((WheelKind.JAXLIB,), "3.13"),
    ]
    assert bench.build(1).outputs[WheelKind.PLUGIN].name.endswith("-cp313-cp313-linux_x86_64.whl")
    assert toy.text_of(bench.build(3).outputs[WheelKind.JAXLIB]) == "host = 1\nshared = 1\n"


def test_nothing_is_written_below_the_workspace(bench):
    before = sorted(bench.workspace.rglob("*"))
    bench.build()
    assert sorted(bench.workspace.rglob("*")) == before


def test_outputs_of_a_wiped_output_root_come_from_the_disk_cache(bench):
    bench.build()
    bench.wipe()
    again = bench.build()
    assert again.record.actions_executed == 0
    assert again.record.cache_hits == 5
    assert all(path.is_file() for path in again.outputs.values())
    assert "5 from a cache (100 %)" in again.summary
    assert again.record.bytes_cached == again.record.bytes_made > 0


def test_what_bazel_fetched_is_in_the_provenance(bench, folder, talk, tmp_path):
    """A real fetch: rules say digests, events which mirror had the file; both stay known."""
    www, body = tmp_path / "www", b"fetched = 1\n"
    mirrored = www / "mirror/upstream.test"
    mirrored.mkdir(parents=True)
    (www / "kernels.txt").write_bytes(body)
    (mirrored / "pjrt.txt").write_bytes(body * 2)
    digests = [hashlib.sha256(body * number).digest() for number in (1, 2)]
    integrity = f"sha256-{base64.b64encode(digests[1]).decode()}"
    caches = replace(bench.spec.caches, disk=None, repository=folder / "repositories")
    manifest = make_set(tmp_path / "set", pythons=("3.12",))

    def build(**changes):
        """Build; return what the statement about it says that Bazel fetched."""
        done = bench.build(caches=caches, **changes)
        assert not [*(bench.folder / "logs").glob("*.rules")], "it holds the environment"
        plain = make_record(manifest)
        record = replace(plain, bazel=replace(plain.bazel, fetched=done.fetched))
        made = statements.provenance(manifest, record)
        parts = made.part("buildDefinition", "internalParameters", "bazel")
        own = [*statements.dependencies(manifest)]
        every = made.part("buildDefinition")["resolvedDependencies"]
        return parts["fetched"], [item for item in every if item not in own]

    assert build() == (statements.NOT_KNOWN, []), "nothing was fetched, and that is said"
    rules = bench.workspace / "jaxlib/tools/BUILD.bazel"
    files = [f'toy_object(name = "{name}", src = "@{name}//file")' for name in ("kernels", "pjrt")]
    rules.write_text("\n".join([rules.read_text().replace('"kernels", "pjrt", ', ""), *files, ""]))
    with Site(FileStore(www)).running() as site:
        url = site.url.rstrip("/")
        names = json.dumps([f"{url}/none/kernels.txt", f"{url}/kernels.txt"])
        (bench.workspace / "fetch.bzl").write_text(
            "def _fetch(ctx):\n"
            '    ctx.file("file/BUILD", "exports_files([\\"f\\"])\\nalias(name = \\"file\\", '
            'actual = \\"f\\", visibility = [\\"//visibility:public\\"])")\n'
            f'    ctx.download(["http://upstream.test/pjrt.txt"], "file/f", integrity = "{integrity}")\n'
            "fetch = repository_rule(_fetch)\n"
        )
        (bench.workspace / "downloader.cfg").write_text(
            f"rewrite upstream.test/(.*) {url.partition('://')[2]}/mirror/upstream.test/$1\n"
        )
        workspace = bench.workspace / "WORKSPACE"
        workspace.write_text(
            f'{workspace.read_text()}load("@bazel_tools//tools/build_defs/repo:http.bzl", '
            '"http_file")\nload("//:fetch.bzl", "fetch")\nfetch(name = "pjrt")\n'
            f'http_file(name = "kernels", urls = {names}, sha256 = "{digests[0].hex()}")\n'
        )
        bench.wipe()
        options = ("--experimental_downloader_config=downloader.cfg",)
        text, fetched = build(options=options)
    # the mirror that has no such file is no source of anything
    assert text == 2
    sources = ((f"{url}/kernels.txt", 0), (f"{url}/mirror/upstream.test/pjrt.txt", 1))
    assert [(item["uri"], item["digest"]["sha256"]) for item in fetched] == [
        (source, digests[number].hex()) for source, number in sources
    ]
    assert build(options=options) == (text, fetched), "what was unpacked earlier"
    bench.wipe()  # with an empty output base, and without the server: out of the cache
    asked = [(f"{url}/none/kernels.txt", 0), ("http://upstream.test/pjrt.txt", 1)]
    text, fetched = build(options=options)
    assert [(item["uri"], item["digest"]["sha256"]) for item in fetched] == [
        (source, digests[number].hex()) for source, number in asked
    ]


def test_what_bazel_does_not_tell_is_no_reason_to_lose_the_wheels(bench, monkeypatch, talk):
    """The list says so, the log the last of Bazel's own words."""

    def lost(*_):
        raise CommandError("bazel cquery: failed", detail="INFO: x\nERROR: no such command")

    monkeypatch.setitem(bazel.build_all.__globals__["build"].__globals__, "needed", lost)
    listed = bench.build().repositories
    assert {kind: [each.role for each in own] for kind, own in listed.items()} == {
        WheelKind.PLUGIN: ["not known"], WheelKind.PJRT: ["not known"],
    }  # fmt: skip
    said = "Bazel does not say which repositories the wheels depend on: ERROR: no such command"
    assert said in talk.getvalue()


def test_repositories_are_asked_again_only_after_a_change(bench, monkeypatch):
    scope = bazel.build_all.__globals__["build"].__globals__
    really, asked = scope["needed"], []

    def counted(*args):
        asked.append(args)
        return really(*args)

    monkeypatch.setitem(scope, "needed", counted)
    bench.write("kernels.txt", f"kernels {time.time()}\n")
    first = bench.build()
    assert bench.build().repositories == first.repositories
    assert len(asked) == 1
    workspace = bench.workspace / "WORKSPACE"
    workspace.write_text(workspace.read_text() + "# changed\n")
    assert bench.build().repositories == first.repositories
    assert len(asked) == 2


def test_a_development_version_is_refused_where_the_tree_names_a_release(bench):
    for _ in range(2):  # the answer is kept, and so is the refusal
        with pytest.raises(HostError, match="'development version', this tree wants a release"):
            bench.build(wants_release=True)


def test_a_bazel_without_its_installation_names_the_rc_file_of_its_package(bench):
    with pytest.raises(HostError) as caught:
        bench.build(wants_release=True, startup_options=(), tree_key="without its rc file")
    assert "--bazelrc=/etc/bazel/bazelrc" in caught.value.hint


@pytest.mark.needs("openssl")
def test_downloads_trust_the_ca_bundle_of_the_environment(bench, tmp_path):
    issued = certificates.make(tmp_path / "ca")
    (tmp_path / "f.txt").write_text("kernels = 2\n")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.server, issued.server_key)
    rules = bench.workspace / "jaxlib/tools/BUILD.bazel"
    own = 'toy_object(name = "kernels", src = "@kernels//file")\n'
    rules.write_text(rules.read_text().replace('"host", "kernels"', '"host"') + own)
    caches = replace(bench.spec.caches, disk=None)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"https://127.0.0.1:{server.server_port}/f.txt"
        workspace = bench.workspace / "WORKSPACE"
        workspace.write_text(
            f'{workspace.read_text()}load("@bazel_tools//tools/build_defs/repo:http.bzl", '
            f'"http_file")\nhttp_file(name = "kernels", urls = ["{url}"])\n'
        )
        with pytest.raises(BazelError) as refused:
            bench.build(caches=caches)
        assert "PKIX path building failed" in f"{refused.value} {refused.value.detail}"
        trusted = in_use({"SSL_CERT_FILE": str(issued.authority)})
        made = bench.build(caches=caches, certificates=trusted)
        server.shutdown()
    assert "kernels = 2" in toy.text_of(made.outputs[WheelKind.PLUGIN])


def test_what_was_fetched_builds_without_a_network_and_what_was_not_is_named(bench):
    def define(call):
        workspace = bench.workspace / "WORKSPACE"
        load = 'load("@bazel_tools//tools/build_defs/repo:http.bzl", "http_file")\n'
        workspace.write_text(f"{workspace.read_text()}{load}{call}")

    bazel_bench.check_offline(bench, define)


@pytest.mark.soak
@pytest.mark.needs("openssl")
def test_doctor_tries_a_download_as_a_build_would_make_it(bench, tmp_path):
    issued = certificates.make(tmp_path / "ca")
    (tmp_path / "f.txt").write_text("robots\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.server, issued.server_key)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    trusted = in_use({"SSL_CERT_FILE": str(issued.authority)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"https://127.0.0.1:{server.server_port}/f.txt"
        refused = try_download(bench.spec, bench.runner, url)
        row = try_download(replace(bench.spec, certificates=trusted), bench.runner, url)
        server.shutdown()
    assert (refused.state, row.state) == ("bad", "ok")
    assert "PKIX path building failed" in refused.found
    assert "SSL_CERT_FILE" in refused.remedy


REPOSITORIES = """
def _fetch(ctx):
    ctx.download(["{url}/computed.txt"], "f.bzl", sha256 = "{digest}")
    ctx.file("BUILD", "exports_files([\\"f.bzl\\"], visibility = [\\"//visibility:public\\"])")
    if ctx.os.environ.get("HERMETIC_PYTHON_VERSION") != "3.12":
        fail("asked with other options than the build's")
fetch = repository_rule(_fetch, environ = ["HERMETIC_PYTHON_VERSION"])
"""
WORKSPACE = """
load("@bazel_tools//tools/build_defs/repo:http.bzl", "http_file")
load("//:fetch.bzl", "fetch")
fetch(name = "computed")
load("@computed//:f.bzl", "VERSION")
http_file(name = "kernels", urls = ["{url}/kernels-%s.txt" % VERSION], sha256 = "{digest}")
http_file(name = "pjrt", urls = ["{url}/pjrt.txt", "http://x.test/"], sha256 = "{digest}")
http_file(name = "unused", urls = ["{url}/unused.txt"], sha256 = "{digest}")
http_file(name = "replaced", urls = ["{url}/replaced.txt"], sha256 = "{digest}")
new_local_repository(name = "here", path = "here", build_file = "here/BUILD.txt")
"""


def test_the_repositories_of_a_wheel_follow_from_the_sources_alone(bench, folder, talk, tmp_path):
    """With empty caches, with full ones and after a build: the same, and nothing is fetched."""
    www, body = tmp_path / "www", b'VERSION = "7"\n'
    www.mkdir()
    for name in ("kernels-7", "pjrt", "computed"):
        (www / f"{name}.txt").write_bytes(body)
    digest = hashlib.sha256(body).hexdigest()
    here = bench.workspace / "here"
    here.mkdir(exist_ok=True)
    (here / "BUILD.txt").write_text('exports_files(["f"], visibility = ["//visibility:public"])')
    (here / "BUILD").write_text('exports_files(["f"], visibility = ["//visibility:public"])')
    (here / "WORKSPACE").write_text("")
    (here / "f").write_bytes(b"here = 1\n")
    rules = bench.workspace / "jaxlib/tools/BUILD.bazel"
    more = {
        "kernels": "@kernels//file", "pjrt": "@pjrt//file", "local": "@here//:f",
        "computed": "@computed//:f.bzl", "replaced": "@replaced//:f",
    }  # fmt: skip
    files = [f'toy_object(name = "{name}", src = "{label}")' for name, label in more.items()]
    text = rules.read_text().replace('"kernels", "pjrt", ', "")
    text = text.replace('["kernels", "shared"]', '["kernels", "local", "computed", "replaced"]')
    rules.write_text("\n".join([text, *files, ""]))
    (bench.workspace / ".bazelrc").write_text(
        f"{toy.FILES['.bazelrc']}build --incompatible_disallow_empty_glob\ntest --test_env=X\n"
        f"build --override_repository=replaced={here}\n"
    )
    caches = replace(bench.spec.caches, disk=None, repository=folder / "of-sources")

    def build(repository: Path = folder / "of-sources"):
        return bench.build(caches=replace(caches, repository=repository)).repositories

    with Site(FileStore(www)).running() as site:
        url = site.url.rstrip("/")
        said = {"url": url, "digest": digest}
        (bench.workspace / "fetch.bzl").write_text(REPOSITORIES.format(**said))
        workspace = bench.workspace / "WORKSPACE"
        workspace.write_text(toy.FILES["WORKSPACE"] + WORKSPACE.format(**said))
        bench.wipe()
        first = build()
        bench.wipe()
        assert build(folder / "empty") == first
        right = workspace.read_text()
        for before, after, of in (
            (f"{url}/pjrt.txt", f"{url}/moved.txt", body),
            (
                f'pjrt.txt", "http://x.test/"], sha256 = "{digest}"',
                f'moved.txt"], sha256 = "{hashlib.sha256(body * 2).hexdigest()}"',
                body * 2,
            ),
        ):
            (www / "moved.txt").write_bytes(of)
            workspace.write_text(right.replace(before, after))
            changed = build()
            assert changed[WheelKind.PLUGIN] == first[WheelKind.PLUGIN]
            assert changed[WheelKind.PJRT] != first[WheelKind.PJRT]
        workspace.write_text(right)
    names = {kind: {(each.role, each.name) for each in made} for kind, made in first.items()}
    assert names[WheelKind.PLUGIN] >= {("fetched", "kernels"), ("configured", "computed")}
    assert not {"pjrt", "unused", "replaced", "here", "bazel_tools"} & {
        name for _, name in names[WheelKind.PLUGIN]
    }
    (pjrt,) = [each for each in first[WheelKind.PJRT] if each.role == "fetched"]
    said = PackageURL.from_string(pjrt.purl).qualifiers
    assert said == {"checksum": f"sha256:{digest}", "download_url": f"{url}/pjrt.txt"}
    assert str(PackageURL.from_string(pjrt.purl)) == pjrt.purl, "as a list gives it back"
    assert build(folder / "empty") == first, "after a build, without a server"
    bench.wipe()
    assert build() == first, "out of the cache"
    assert not [line for line in talk.getvalue().splitlines() if "does not say" in line]


def test_a_failed_action_is_explained_by_its_own_words_first(bench):
    bench.write("kernels.txt", "fine\nFAIL here\n")
    with pytest.raises(BazelError) as caught:
        bench.build()
    error = caught.value
    assert str(error) == "//jaxlib/tools:kernels: ToyCompile failed (exit status 3)"
    first, second, *rest = error.detail.splitlines()
    assert first == "2:FAIL here"
    assert second.endswith("kernels.txt: error: told to fail")
    assert "the command was: " in rest[0]
    assert ".log" in error.hint


def test_a_missing_target_is_reported_in_bazels_words(bench):
    build_file = bench.workspace / "jaxlib/tools/BUILD.bazel"
    build_file.write_text(build_file.read_text().replace("jax_rocm_pjrt_wheel", "elsewhere"))
    with pytest.raises(BazelError) as caught:
        bench.build()
    assert "no such target '//jaxlib/tools:jax_rocm_pjrt_wheel'" in caught.value.detail


def test_a_label_without_a_wheel_is_an_error(bench):
    build_file = bench.workspace / "jaxlib/tools/BUILD.bazel"
    old = "jaxlib-0.11.0%s-%s-%s-linux_x86_64.whl"
    text = build_file.read_text().replace(old, old.replace(".whl", ".zip"))
    build_file.write_text(text)
    with pytest.raises(BazelError, match="made 0 wheels, not one: none"):
        bench.build(2)


@pytest.mark.parametrize("options", [(), ("--keep_going",)])
def test_a_failure_is_seen_while_bazel_goes_on(bench, talk, options, tmp_path):
    """Where it is to go on, another action ends only once the failure was seen."""
    bench.write("kernels.txt", "FAIL\n")
    go, seen = tmp_path / "go", []
    bench.write("pjrt.txt", f"WAIT {go} {time.time()}\n" if options else "pjrt = 1\n")

    def watch() -> None:
        until = time.monotonic() + 240
        while "told to fail" not in talk.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
        seen.append("told to fail" in talk.getvalue())
        go.touch()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    with pytest.raises(BazelError):
        bench.build(options=options)
    watcher.join()
    assert seen == [True]


def test_a_failure_is_shown_once(bench, talk):
    bench.write("kernels.txt", "FAIL\n")
    with pytest.raises(BazelError) as caught:
        bench.build()
    bench.console.fail(caught.value)
    shown = talk.getvalue()
    assert shown.count("kernels.txt: error: told to fail") == 1
    assert shown.index("told to fail") < shown.index("the command was:") < shown.index("error: //")
    assert shown.rstrip().endswith(".log")


def test_every_startup_option_of_a_real_bazel_is_known(tmp_path):
    """One that we do not know would be refused as no startup option."""
    (tmp_path / "WORKSPACE").touch()
    line = ["bazel", f"--output_user_root={tmp_path}/root", "--batch", "help", "startup_options"]
    shown = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    options = set(re.findall(r"(?m)^  --(?:\[no\])?(\w+)", shown))
    assert len(options) >= 20
    assert {name for name in options - STARTUP_OPTIONS if not BOTH.fullmatch(name)} == set()


def test_all_invocations_together_tell_what_was_slow_and_where_to_read_more(bench):
    bench.write("pjrt.txt", f"SLEEP 4 {time.time()}\n")
    bench.write("host.txt", f"SLEEP 7 {time.time()}\n")
    runs = bazel.build_all(
        [bench.invocation(0), bench.invocation(2)],
        folder=bench.folder / "logs",
        into=bench.folder / "out",
        runner=bench.runner,
        console=bench.console,
    )
    first, *lines = runs.lines()
    # how many came from the cache depends on what tests before this one left to the server
    caches = r"\d came from a cache \(\d+ %\)"
    assert re.match(rf"Bazel ran \d+ actions in 2 invocations, {caches}, \d", first)
    assert "src/host.txt" in lines[1]
    assert "src/pjrt.txt" in lines[2]
    assert lines[-1] == f"logs and profiles: {bench.folder / 'logs'}"
    assert runs.document["slowest_actions"][0]["milliseconds"] >= 7000
    record = runs.records[1]
    assert record.critical_path
    assert record.bytes_made > 0
    assert Path(record.profile).is_file()
    assert Path(record.log).is_file()
    json.dumps(runs.document)


def test_events_that_end_early_are_no_success(bench, tmp_path):
    fake = tmp_path / "bazel"
    fake.write_text(
        "#!/bin/sh\n"
        'for word in "$@"; do case "$word" in --build_event_json_file=*) '
        'echo \'{"id":{"started":{}}}\' > "${word#*=}";; esac; done\n'
    )
    fake.chmod(0o755)
    cut = BazelBinary(path=fake, version="7.7.0", origin="flag")
    with pytest.raises(BazelError, match="ends early"):
        bench.build(bazel=cut)


def test_a_bazel_that_does_not_start_shows_its_output(bench, tmp_path):
    fake = tmp_path / "bazel"
    fake.write_text("#!/bin/sh\necho 'FATAL: no room for the server'\nexit 37\n")
    fake.chmod(0o755)
    broken = BazelBinary(path=fake, version="7.7.0", origin="flag")
    with pytest.raises(BazelError, match="Bazel stopped") as caught:
        bench.build(bazel=broken)
    assert caught.value.detail == "FATAL: no room for the server"
