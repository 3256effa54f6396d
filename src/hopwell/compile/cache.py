"""The on-disk cache of compiled kernels.

An entry is code that will run in the user's process, so the place it lives in must be the user's
own: see :func:`check_safe`. Entries appear by one atomic rename, complete or not at all; whoever
renames first wins and every reader verifies what it reads. The per-key lock only keeps processes
from compiling the same plan twice: nothing breaks on a network file system without locks.

Layout: ``<directory>/v1/<request>/<key>/`` holds an artifact; ``tmp-*`` are unfinished writes.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from hopwell.compile import artifact as files
from hopwell.compile.artifact import Artifact, CorruptArtifact
from hopwell.compile.key import SCHEMA
from hopwell.errors import UnsafeCache, UnusableCache
from hopwell.settings import settings

#: After this long a waiting process stops trusting the lock's holder and compiles for itself.
LOCK_TIMEOUT_SECONDS = 300
#: Unfinished writes older than this belong to a dead process.
STALE_WRITE_SECONDS = 3600
#: A damaged entry is moved away and replaced; others may do the same at the same time.
PUBLISH_ATTEMPTS = 4
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def directory() -> Path | None:
    """The cache directory of the settings, or None when the cache is off or has no place."""
    found = settings()
    return found.cache_dir if found.cache else None


# -- trust ---------------------------------------------------------------------------------


def check_safe(path: Path) -> None:
    """Raises :class:`UnsafeCache` unless only this user (and root) can change what is at ``path``.

    ``path`` must be the user's own and closed to others' writes. Each directory above it must
    belong to the user or to root, and be closed to others' writes or sticky: otherwise somebody
    could put another directory in its place. Symbolic links are followed to where they lead.
    """
    real = Path(os.path.realpath(path))
    user = os.geteuid()
    for place in (real, *real.parents):
        found = place.stat()
        own = found.st_uid == user if place == real else found.st_uid in (user, 0)
        shared = found.st_mode & _WRITABLE_BY_OTHERS
        sticky = found.st_mode & stat.S_ISVTX and place != real
        if not own or (shared and not sticky):
            raise UnsafeCache(
                f"kernel cache {path}",
                expected="a directory that only you can write, below directories that only you "
                "or root can write",
                actual=f"{place} owned by uid {found.st_uid}, mode {stat.filemode(found.st_mode)}",
                consequence="Somebody else could plant code there. Nothing was read or written; "
                "set HOPWELL_CACHE_DIR to a private directory, or HOPWELL_CACHE=0.",
            )


def _is_directory(path: Path) -> bool:
    """False where nothing is; raises OSError for anything but a directory."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(os.stat(path).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    return True


def _check_writable(path: Path) -> None:
    """Raises OSError unless ``path`` can be made: by making another directory for a moment."""
    above = next(parent for parent in path.parents if parent.is_dir())
    os.rmdir(tempfile.mkdtemp(prefix=".hopwell-", dir=above))


def _close(path: Path) -> None:
    """Mode 0700 for a directory that is ours, whatever it was before."""
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.chmod(0o700)


def _is_private(path: Path, kind: Callable[[int], bool]) -> bool:
    """Whether ``path`` itself (no link) is of the kind, ours, and closed to others' writes."""
    found = os.lstat(path)
    return (
        kind(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_mode & _WRITABLE_BY_OTHERS
    )


# -- the cache -----------------------------------------------------------------------------


class Entry(NamedTuple):
    """One artifact on disk. ``artifact`` is None when it is corrupt or foreign."""

    directory: Path
    bytes: int
    artifact: Artifact | None


class Cache:
    """An opened cache. Opening checks that the directory is safe.

    With ``create`` it is made where it is missing, mode 0700, and closed to others where they may
    read it. Without, nothing is changed: a cache that is not there yet is empty.

    Raises :class:`UnsafeCache`, and :class:`UnusableCache` when there can be no such directory.
    """

    def __init__(self, root: Path, create: bool = True) -> None:
        self.root = root
        self.entries = root / f"v{SCHEMA}"
        try:
            for place in (root, self.entries):
                if create:
                    place.mkdir(mode=0o700, parents=True, exist_ok=True)
                elif not _is_directory(place):
                    _check_writable(place)
                    break
                check_safe(place)
                if create:
                    _close(place)
        except UnsafeCache:  # an OSError too
            raise
        except (OSError, ValueError) as error:  # a ValueError: no path can hold a null
            raise UnusableCache(
                f"kernel cache {root}",
                expected="a directory that exists or can be made",
                actual=str(error),
                consequence="Each process compiles for itself; set HOPWELL_CACHE_DIR, or "
                "HOPWELL_CACHE=0 for no cache.",
            ) from error

    def find(self, request: str, key: str | None) -> Artifact | None:
        """The entry for a key, or for any key of the request where no compiler is installed.

        A corrupt, truncated, foreign or unreadable entry is a miss.
        """
        if key is not None:
            return self._read(self.entries / request / key, request, key)
        for candidate in self._newest_first(self.entries / request):
            found = self._read(candidate, request, candidate.name)
            if found is not None:
                return found
        return None

    def _newest_first(self, directory: Path) -> list[Path]:
        with contextlib.suppress(OSError):
            dated = [(os.lstat(entry).st_mtime, entry) for entry in _entries(directory)]
            return [entry for _, entry in sorted(dated, reverse=True)]
        return []

    def _read(self, path: Path, request: str, key: str | None) -> Artifact | None:
        try:
            if not (_is_private(path.parent, stat.S_ISDIR) and _is_private(path, stat.S_ISDIR)):
                return None
            for name in (files.LIBRARY, files.MANIFEST):
                if not _is_private(path / name, stat.S_ISREG):
                    return None
            return files.read(path, request, key)
        except (OSError, CorruptArtifact):
            return None

    def publish(self, request: str, key: str, build: Callable[[Path], Artifact]) -> Artifact:
        """Builds into a private directory and renames it into place.

        Another process may have published meanwhile: its valid entry is kept and returned.
        Raises OSError when the file system refuses, and whatever ``build`` raises.
        """
        scratch = Path(tempfile.mkdtemp(prefix=f"tmp-{key[:16]}-", dir=self.entries))
        try:
            built = build(scratch)
            for name in (files.LIBRARY, files.PTX, files.CUBIN, files.MANIFEST):
                _make_durable(scratch / name)
            final = self.entries / request / key
            final.parent.mkdir(mode=0o700, exist_ok=True)
            for _ in range(PUBLISH_ATTEMPTS):
                if self._rename(scratch, final):
                    return Artifact(final, built.manifest)
                theirs = self._read(final, request, key)
                if theirs is not None:
                    return theirs
                self._discard(final)
            raise OSError(f"{final} cannot be replaced")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    @staticmethod
    def _rename(source: Path, target: Path) -> bool:
        """Whether ``source`` became ``target``; False when something is there already."""
        try:
            source.rename(target)
        except OSError:
            if not os.path.lexists(target):
                raise
            return False
        return True

    def _discard(self, path: Path) -> None:
        """Takes an entry out of the readers' sight at once, then deletes it."""
        grave = Path(tempfile.mkdtemp(prefix="tmp-discard-", dir=self.entries))
        with contextlib.suppress(OSError):
            path.rename(grave / "entry")
        shutil.rmtree(grave, ignore_errors=True)

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """One process at a time per key. The system drops the lock of a process that dies.

        Gives up waiting after LOCK_TIMEOUT_SECONDS, and goes on without a lock where the file
        system has none: publication is atomic either way.
        """
        import filelock  # here, since it costs the first call more than everything else in it

        lock = filelock.FileLock(str(self.entries / f"{key}.lock"), mode=0o600)
        with contextlib.suppress(filelock.Timeout, OSError, NotImplementedError):
            lock.acquire(timeout=LOCK_TIMEOUT_SECONDS)
        try:
            yield
        finally:
            lock.release()

    # -- housekeeping ----------------------------------------------------------------------

    def listing(self) -> list[Entry]:
        """Every entry, each verified in full."""
        found = []
        for request in _entries(self.entries):
            for path in _entries(request) if len(request.name) == 64 else ():
                artifact = self._read(path, request.name, path.name)
                if artifact is not None:
                    try:
                        files.verify(artifact)
                    except CorruptArtifact:
                        artifact = None
                found.append(Entry(path, _size(path), artifact))
        return found

    def clear(self) -> tuple[int, int]:
        """Removes every entry, stale write and free lock. Returns (entries, bytes) removed."""
        listing = self.listing()
        for entry in listing:
            self._discard(entry.directory)
        for path in _entries(self.entries):
            if len(path.name) == 64:
                with contextlib.suppress(OSError):
                    path.rmdir()
        self.remove_stale(-math.inf)  # also those of a clock that runs ahead
        self._remove_locks()
        return len(listing), sum(entry.bytes for entry in listing)

    def _remove_locks(self) -> None:
        """Removes the lock files that nobody holds.

        Each is held while it is removed. Whoever opened it just before gets the lock of a file
        that is gone, and may compile what another compiles too: publication is atomic.
        """
        import filelock

        for path in self.entries.glob("*.lock"):
            lock = filelock.FileLock(str(path), mode=0o600)
            with contextlib.suppress(filelock.Timeout, OSError, NotImplementedError):
                lock.acquire(blocking=False)
                path.unlink(missing_ok=True)
            lock.release()

    def remove_stale(self, age: float = STALE_WRITE_SECONDS) -> None:
        """Removes unfinished writes of dead processes."""
        for path in _entries(self.entries):
            with contextlib.suppress(OSError):
                if path.name.startswith("tmp-") and time.time() - os.lstat(path).st_mtime >= age:
                    shutil.rmtree(path, ignore_errors=True)


def _entries(directory: Path) -> list[Path]:
    """Sub-directories, no links, in order of name."""
    try:
        with os.scandir(directory) as found:
            return sorted(Path(e.path) for e in found if e.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.iterdir() if file.is_file())


def _make_durable(file: Path) -> None:
    file.chmod(0o600)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
