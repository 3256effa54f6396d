"""The cache: who may write there, what a damaged entry does, and many processes at once."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.compile.helpers import PYTHONPATH

from hopwell.compile import artifact as files
from hopwell.compile import cache as caches
from hopwell.compile import key as keys
from hopwell.compile.artifact import Artifact, CorruptArtifact, Manifest
from hopwell.compile.cache import Cache
from hopwell.errors import UnsafeCache

REQUEST, KEY = "a" * 64, "b" * 64
NOBODY = 65534


def artifact_in(
    directory: Path, library: bytes = b"code", request: str = REQUEST, key: str = KEY
) -> Artifact:
    """A small artifact that is all it says, without a compiler."""
    (directory / files.LIBRARY).write_bytes(library)
    ptx, cubin = ".version 9.4\n", b"cubin"
    manifest = Manifest(
        schema=keys.SCHEMA,
        plan_kind="TinyPlan",
        plan={},
        plan_name="tiny",
        request=request,
        key=key,
        export_symbol="tiny",
        kernel_symbol="tiny_kernel",
        ptx_sha256=files.ptx_hash(ptx),
        sass_sha256="",
        cubin_sha256=keys.sha256(cubin),
        so_sha256=keys.sha256(library),
        host=keys.host_abi(),
        toolchain={},
        assembler={},
        sources={},
        dependencies={},
        assembler_log="",
        compile_seconds=0.0,
        shared_launched=0,
        resources={},
    )
    return files.write(directory, manifest, ptx, cubin)


@pytest.fixture
def cache(cache_directory: Path) -> Cache:
    return Cache(cache_directory)


@pytest.fixture
def entry(cache: Cache) -> Path:
    return cache.publish(REQUEST, KEY, artifact_in).directory


# -- where ---------------------------------------------------------------------------------


def test_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HOPWELL_CACHE", "HOPWELL_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert caches.directory() == tmp_path / ".cache" / "hopwell"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert caches.directory() == tmp_path / ".cache" / "hopwell"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert caches.directory() == tmp_path / "xdg" / "hopwell"
    monkeypatch.setenv("HOPWELL_CACHE_DIR", str(tmp_path / "named"))
    assert caches.directory() == tmp_path / "named"
    monkeypatch.setenv("HOPWELL_CACHE", "0")
    assert caches.directory() is None


def test_a_new_cache_is_the_users_alone(cache: Cache, entry: Path) -> None:
    for directory in (cache.root, cache.entries, entry.parent, entry):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700, directory
    for file in entry.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
@pytest.mark.parametrize("inner", [False, True])
def test_places_that_others_can_write_are_refused(
    cache_directory: Path, mode: int, inner: bool
) -> None:
    cache = Cache(cache_directory)
    (cache.entries if inner else cache.root).chmod(mode)
    with pytest.raises(UnsafeCache, match="HOPWELL_CACHE_DIR"):
        Cache(cache_directory)


def test_a_parent_that_others_can_write_is_refused_unless_sticky(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(UnsafeCache, match="shared"):
        Cache(shared / "mine")
    shared.chmod(0o1777)  # like /tmp: nobody can replace what another owns
    assert Cache(shared / "mine").find(REQUEST, KEY) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_foreign_owner_is_refused(cache_directory: Path) -> None:
    Cache(cache_directory)
    os.chown(cache_directory, NOBODY, NOBODY)
    with pytest.raises(UnsafeCache, match=f"uid {NOBODY}"):
        Cache(cache_directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_link_to_a_foreign_place_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, NOBODY, NOBODY)
    (tmp_path / "link").symlink_to(theirs)
    with pytest.raises(UnsafeCache, match="theirs"):
        Cache(tmp_path / "link")
    assert list(theirs.iterdir()) == []


# -- what is read --------------------------------------------------------------------------


def test_what_was_published_is_found(cache: Cache, entry: Path) -> None:
    found = cache.find(REQUEST, KEY)
    assert found is not None
    assert found.directory == entry
    assert cache.find(REQUEST, "c" * 64) is None
    assert cache.find("c" * 64, KEY) is None


def test_without_a_compiler_the_newest_entry_of_the_request_is_found(cache: Cache) -> None:
    older = cache.publish(REQUEST, KEY, artifact_in)
    newer = cache.publish(REQUEST, "c" * 64, lambda d: artifact_in(d, b"newer", key="c" * 64))
    os.utime(older.directory, (1, 1))
    found = cache.find(REQUEST, None)
    assert found is not None
    assert found.directory == newer.directory
    (newer.directory / files.LIBRARY).write_bytes(b"damaged")
    found = cache.find(REQUEST, None)
    assert found is not None
    assert found.directory == older.directory


def _truncate(entry: Path, name: str) -> None:
    file = entry / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _alter_plan(entry: Path) -> None:
    manifest = json.loads((entry / files.MANIFEST).read_text())
    (entry / files.MANIFEST).write_text(json.dumps({**manifest, "request": "d" * 64}))


def _retype(entry: Path, field: str, value: object) -> None:
    manifest = json.loads((entry / files.MANIFEST).read_text())
    (entry / files.MANIFEST).write_text(json.dumps({**manifest, field: value}))


def _link_library(entry: Path) -> None:
    elsewhere = entry.parent / "elsewhere"
    (entry / files.LIBRARY).rename(elsewhere)
    (entry / files.LIBRARY).symlink_to(elsewhere)


def _link_entry(entry: Path) -> None:
    moved = entry.with_name("moved")
    entry.rename(moved)
    entry.symlink_to(moved)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated library": lambda e: _truncate(e, files.LIBRARY),
    "truncated manifest": lambda e: _truncate(e, files.MANIFEST),
    "changed library": lambda e: (e / files.LIBRARY).write_bytes(b"evil"),
    "no library": lambda e: (e / files.LIBRARY).unlink(),
    "no manifest": lambda e: (e / files.MANIFEST).unlink(),
    "empty manifest": lambda e: (e / files.MANIFEST).write_text(""),
    "manifest of something else": lambda e: (e / files.MANIFEST).write_text("[1]"),
    "a manifest too deep to read": lambda e: (e / files.MANIFEST).write_text("[" * 100_000),
    "a number too long to read": lambda e: (e / files.MANIFEST).write_text("9" * 10_000),
    "a manifest in another encoding": lambda e: (e / files.MANIFEST).write_bytes(b"\xff\xfe{"),
    "a name that is a number": lambda e: _retype(e, "plan_name", 5),
    "a name that is nothing": lambda e: _retype(e, "export_symbol", None),
    "a time that is true": lambda e: _retype(e, "compile_seconds", True),
    "resources that are a list": lambda e: _retype(e, "resources", []),
    "a source whose hash is a number": lambda e: _retype(e, "sources", {"forward.py": 1}),
    "another schema": lambda e: _retype(e, "schema", 2),
    "made for another request": _alter_plan,
    "library writable by all": lambda e: (e / files.LIBRARY).chmod(0o666),
    "manifest writable by group": lambda e: (e / files.MANIFEST).chmod(0o660),
    "entry writable by all": lambda e: e.chmod(0o777),
    "library behind a link": _link_library,
    "entry behind a link": _link_entry,
}
if os.geteuid() == 0:
    DAMAGE["library of someone else"] = lambda e: os.chown(e / files.LIBRARY, NOBODY, NOBODY)
    DAMAGE["entry of someone else"] = lambda e: os.chown(e, NOBODY, NOBODY)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_foreign_entry_is_a_miss_and_is_replaced(
    cache: Cache, entry: Path, damage: str
) -> None:
    assert cache.find(REQUEST, KEY) is not None
    DAMAGE[damage](entry)
    assert cache.find(REQUEST, KEY) is None
    assert cache.find(REQUEST, None) is None
    again = cache.publish(REQUEST, KEY, lambda d: artifact_in(d, b"again"))
    assert again.directory == entry
    found = cache.find(REQUEST, KEY)
    assert found is not None
    assert found.library.read_bytes() == b"again"


def test_reading_names_what_is_wrong(entry: Path) -> None:
    (entry / files.LIBRARY).write_bytes(b"evil")
    with pytest.raises(CorruptArtifact, match="does not have its hash"):
        files.read(entry, REQUEST, KEY)
    with pytest.raises(CorruptArtifact, match="another request"):
        files.read(entry, "e" * 64)


# -- what is written -----------------------------------------------------------------------


def test_whoever_publishes_first_wins(cache: Cache) -> None:
    def slow(directory: Path) -> Artifact:
        cache.publish(REQUEST, KEY, lambda d: artifact_in(d, b"first"))
        return artifact_in(directory, b"second")

    returned = cache.publish(REQUEST, KEY, slow)
    assert returned.library.read_bytes() == b"first"
    assert not list(cache.entries.glob("tmp-*"))


def test_a_failed_build_leaves_nothing(cache: Cache) -> None:
    def fails(directory: Path) -> Artifact:
        (directory / files.LIBRARY).write_bytes(b"half")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        cache.publish(REQUEST, KEY, fails)
    assert cache.find(REQUEST, KEY) is None
    assert list(cache.entries.iterdir()) == []


def test_listing_and_clearing(cache: Cache, entry: Path) -> None:
    other = cache.publish(
        "c" * 64, "d" * 64, lambda d: artifact_in(d, request="c" * 64, key="d" * 64)
    )
    (other.directory / files.CUBIN).write_bytes(b"damaged")
    listed = {found.directory: found.artifact is not None for found in cache.listing()}
    assert listed == {entry: True, other.directory: False}
    (cache.entries / "tmp-left").mkdir()
    count, size = cache.clear()
    assert count == 2
    assert size > 0
    assert cache.listing() == []
    assert [path for path in cache.entries.iterdir() if path.is_dir()] == []


# -- many processes ------------------------------------------------------------------------

WORKER = """
import pathlib, sys, time
from tests.compile.test_cache import KEY, REQUEST, artifact_in
from hopwell.compile.cache import Cache
cache, log = Cache(pathlib.Path(sys.argv[1])), pathlib.Path(sys.argv[2])
def build(directory):
    with log.open("a") as file:
        file.write("built\\n")
    time.sleep(float(sys.argv[3]))
    return artifact_in(directory, b"code" * 1000)
found = cache.find(REQUEST, KEY)
if found is None:
    with cache.lock(KEY):
        print("locked", flush=True)
        found = cache.find(REQUEST, KEY) or cache.publish(REQUEST, KEY, build)
assert found.library.read_bytes() == b"code" * 1000
print("done", flush=True)
"""


def _worker(directory: Path, log: Path, seconds: float = 0.05) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(directory), str(log), str(seconds)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_hundred_processes_build_once(cache_directory: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    workers = [_worker(cache_directory, log) for _ in range(100)]
    for worker in workers:
        out, err = worker.communicate(timeout=300)
        assert worker.returncode == 0, err
        assert out.endswith("done\n")
    assert log.read_text() == "built\n"
    assert len(Cache(cache_directory).listing()) == 1


def test_a_killed_writer_leaves_the_cache_usable(cache_directory: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    writer = _worker(cache_directory, log, seconds=600)
    deadline = time.monotonic() + 60
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    cache = Cache(cache_directory)
    left = list(cache.entries.glob("tmp-*"))
    assert len(left) == 1
    assert cache.find(REQUEST, KEY) is None
    # The lock died with its holder: the next process builds at once.
    second = _worker(cache_directory, log)
    _, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    assert log.read_text() == "built\n" * 2
    cache.remove_stale()
    assert left[0].exists()  # young: it could belong to somebody who still writes
    os.utime(left[0], (1, 1))
    cache.remove_stale()
    assert not left[0].exists()


def test_a_file_system_without_locks_still_publishes(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    import filelock

    def refuses(*_: object, **__: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuses)
    with cache.lock(KEY):
        cache.publish(REQUEST, KEY, artifact_in)
    assert cache.find(REQUEST, KEY) is not None


# -- modes and locks -----------------------------------------------------------------------


def test_a_directory_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    root.mkdir(mode=0o755)
    root.chmod(0o755)
    opened = Cache(root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert stat.S_IMODE(opened.entries.stat().st_mode) == 0o700


def test_looking_changes_no_mode_and_makes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    assert Cache(root, create=False).listing() == []
    assert not root.exists()
    root.mkdir()
    root.chmod(0o755)
    assert Cache(root, create=False).clear() == (0, 0)
    assert stat.S_IMODE(root.stat().st_mode) == 0o755
    assert list(root.iterdir()) == []


HOLD = """
import sys
from pathlib import Path
from hopwell.compile.cache import Cache
with Cache(Path(sys.argv[1])).lock("held"):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_clear_removes_locks_that_nobody_holds(cache: Cache) -> None:
    with cache.lock("free"):
        pass
    command = [sys.executable, "-c", HOLD, str(cache.root)]
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        (cache.entries / "free.lock").touch()
        cache.clear()
        assert {path.name for path in cache.entries.glob("*.lock")} == {"held.lock"}
        holder.communicate("")
    cache.clear()
    assert not list(cache.entries.glob("*.lock"))
