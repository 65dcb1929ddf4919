"""What is read from Bazel's event protocol, old and new; what Bazel prints is never needed."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from rocwheel.bazel.events import BuildEvents, read_profile, read_spawns

LABEL = "//jaxlib/tools:jaxlib_wheel"


def read(*events: dict) -> BuildEvents:
    found = BuildEvents()
    for event in events:
        found.feed(json.dumps(event))
    return found


def named_set(identity: str, *files: dict, children: tuple[str, ...] = ()) -> dict:
    return {
        "id": {"namedSet": {"id": identity}},
        "namedSetOfFiles": {"files": list(files), "fileSets": [{"id": item} for item in children]},
    }


def completed(*sets: str, success: bool = True) -> dict:
    groups = [{"name": "default", "fileSets": [{"id": item} for item in sets]}]
    done = {"outputGroup": groups} | ({"success": True} if success else {})
    return {"id": {"targetCompleted": {"label": LABEL}}, "completed": done}


def action(kind: str, *, success: bool = True, **more: object) -> dict:
    done = {"type": kind, **({"success": True} if success else {}), **more}
    return {"id": {"actionCompleted": {"label": "//a:b"}}, "action": done}


def test_files_of_nested_sets_are_found_once_each():
    found = read(
        named_set("0", {"name": "a.whl", "uri": "file:///out/a%20b.whl"}),
        named_set("1", {"name": "c.txt", "uri": "file:///out/c.txt"}, children=("0",)),
        completed("1", "0"),
    )
    assert found.files(LABEL) == (Path("/out/c.txt"), Path("/out/a b.whl"))
    assert found.completed == {LABEL: True}


def test_what_bazel_fetched_is_known_where_it_says_so():
    def fetched(url: str, *, success: bool) -> dict:
        done = {"success": True} if success else {}
        return {"id": {"fetch": {"url": url}}, "fetch": done}

    assert read().fetched == set()
    events = [fetched("https://a/llvm.tar.gz", success=ok) for ok in (False, True, True)]
    assert read(*events, fetched("https://b", success=False)).fetched == {"https://a/llvm.tar.gz"}


def test_a_file_that_only_a_remote_cache_has_is_looked_for_where_it_belongs():
    remote = {
        "name": "dist/a.whl",
        "uri": "bytestream://cache/blobs/abc/1",
        "pathPrefix": ["bazel-out", "k8-opt", "bin"],
    }
    found = read(
        {"id": {"workspace": {}}, "workspaceInfo": {"localExecRoot": "/base/execroot/jax"}},
        named_set("0", remote),
        completed("0"),
    )
    assert found.files(LABEL) == (Path("/base/execroot/jax/bazel-out/k8-opt/bin/dist/a.whl"),)


def test_stamping_is_not_an_action_that_was_rebuilt():
    found = read(action("BazelWorkspaceStatusAction"), action("CppCompile"), action("CppLink"))
    assert found.actions == 2


def test_cache_hits_are_counted_by_runner_where_bazel_says_them():
    counts = [
        {"name": "total", "count": 7},
        {"name": "internal", "count": 1},
        {"name": "disk cache hit", "count": 3, "execKind": "Remote"},
        {"name": "remote cache hit", "count": 2},
        {"name": "linux-sandbox", "count": 1},
    ]
    metrics = {
        "actionSummary": {"actionsExecuted": "7", "runnerCount": counts},
        "artifactMetrics": {"outputArtifactsSeen": {"sizeInBytes": "1024", "count": 7}},
    }
    found = read({"id": {"buildMetrics": {}}, "buildMetrics": metrics})
    assert (found.cache_hits, found.bytes_made) == (5, 1024)


def test_an_old_bazel_says_no_cache_hits():
    metrics = {"actionSummary": {"actionsExecuted": "7"}}
    found = read({"id": {"buildMetrics": {}}, "buildMetrics": metrics})
    assert (found.cache_hits, found.bytes_made) == (None, 0)


def test_a_failed_action_tells_its_output_command_and_status(tmp_path):
    (tmp_path / "stderr").write_text("a.cc:1: error\n")
    found = read(
        action(
            "CppCompile",
            success=False,
            label="//a:b",
            commandLine=["clang", "-c", "a.cc"],
            stderr={"uri": f"file://{tmp_path}/stderr"},
            stdout={"contents": base64.b64encode(b"told").decode()},
            failureDetail={"message": "clang failed", "spawn": {"spawnExitCode": 3}},
        )
    )
    (failed,) = found.failed
    assert failed.output == "a.cc:1: error\ntold"
    assert (failed.label, failed.exit_code) == ("//a:b", 3)
    assert failed.command == ("clang", "-c", "a.cc")


def test_output_that_is_gone_is_no_second_failure():
    found = read(action("CppCompile", success=False, stderr={"uri": "file:///none/stderr"}))
    assert found.failed[0].output == ""


def test_a_target_that_cannot_be_loaded_is_one_problem():
    event = {
        "id": {"targetConfigured": {"label": LABEL}},
        "aborted": {"reason": "ANALYSIS_FAILURE", "description": "no such package 'x'"},
    }
    assert read(event, event).problems == [f"{LABEL}: no such package 'x'"]


def test_half_a_line_of_a_bazel_that_was_killed_is_ignored():
    found = BuildEvents()
    found.feed('{"id":{"buildFinished":{}},"finis')
    found.feed("")
    assert (found.exit_name, found.last) == ("", False)


def test_the_end_and_its_exit_code_are_known():
    finished = {"finished": {"exitCode": {"name": "BUILD_FAILURE", "code": 1}}}
    found = read({"id": {"buildFinished": {}}, **finished}, {"id": {}, "lastMessage": True})
    assert (found.exit_name, found.last) == ("BUILD_FAILURE", True)


def test_the_execution_log_of_old_bazel_is_counted_object_by_object(tmp_path):
    def output(size: str) -> dict:
        return {"path": "x", "digest": {"hash": "y", "sizeBytes": size}}

    spawns = [
        {"remoteCacheHit": False, "inputs": [output("9")], "actualOutputs": [output("5")]},
        {"remoteCacheHit": True, "actualOutputs": [output("2"), output("1")]},
        {"remoteCacheHit": True},
    ]
    log = tmp_path / "spawns.json"
    log.write_text("".join(json.dumps(spawn, indent=2) for spawn in spawns))
    assert read_spawns(log) == (2, 8, 3)
    log.write_text("")
    assert read_spawns(log) == (0, 0, 0)


def test_a_profile_that_is_none_gives_no_summary(tmp_path):
    assert read_profile(tmp_path / "none") == ((), ())
    (tmp_path / "cut").write_bytes(b"\x1f\x8b\x08")
    assert read_profile(tmp_path / "cut") == ((), ())
