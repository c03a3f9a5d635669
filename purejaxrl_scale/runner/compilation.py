"""The persistent compile cache, and what JAX reports about tracing, lowering and compiling."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

import jax

_TRACE = "/jax/core/compile/jaxpr_trace_duration"
_LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILE = "/jax/core/compile/backend_compile_duration"
_CACHE_HIT = "/jax/compilation_cache/cache_hits"


@dataclass
class CompileLog:
    """Compilations of this thread's program while the log was open."""

    lowering_seconds: float = 0.0
    compile_seconds: float = 0.0
    compiles: int = 0  # programs that came out of XLA or of the cache
    cache_hits: int = 0
    thread: int = field(default_factory=threading.get_ident)

    @property
    def cached(self) -> bool:
        """Whether everything came from the persistent cache."""
        return self.compiles > 0 and self.cache_hits >= self.compiles


_open_logs: list[CompileLog] = []
_listening = threading.Lock()


def _on_duration(event: str, duration_secs: float, **kwargs: str | int) -> None:
    for log in _open_logs:
        if log.thread != threading.get_ident():
            continue
        if event == _LOWER:
            log.lowering_seconds += duration_secs
        elif event == _COMPILE:
            log.compile_seconds += duration_secs
            log.compiles += 1


def _on_event(event: str, **kwargs: str | int) -> None:
    for log in _open_logs:
        if event == _CACHE_HIT and log.thread == threading.get_ident():
            log.cache_hits += 1


class watch:
    """A context in which a CompileLog counts what this thread compiles."""

    def __enter__(self) -> CompileLog:
        # JAX has no public way to take a listener back, so there is one for all logs.
        if _listening.acquire(blocking=False):
            jax.monitoring.register_event_duration_secs_listener(_on_duration)
            jax.monitoring.register_event_listener(_on_event)
        self._log = CompileLog()
        _open_logs.append(self._log)
        return self._log

    def __exit__(self, *_: object) -> None:
        _open_logs.remove(self._log)


def enable_cache() -> Path | None:
    """Turn JAX's persistent compile cache on; its folder, or None, with the cache off, if it cannot be written.

    It lies where the user has put it, or in the user's cache folder. Short compilations are kept too: a run has dozens
    of them.
    """
    chosen = getattr(jax.config, "jax_compilation_cache_dir", None)
    folder = Path(chosen) if chosen else None
    if folder is None:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "purejaxrl_scale" / "jax"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", None)
        return None
    if chosen:
        return folder
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder
