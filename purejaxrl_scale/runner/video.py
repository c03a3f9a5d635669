"""Films the agent: one episode recorded on the device, drawn on the host, as a GIF or an MP4."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image
from rich.console import Console

from purejaxrl_scale.environments.interface import RenderUnavailable

CANDIDATES = 4
_LONGEST = 1000  # steps that are recorded: all states of an episode lie in memory at once
_LONG = 400  # frames from which on an MP4 is better than a GIF
_GIF_FRAMES = 200
_GIF_BYTES = 2_000_000
_MP4_SECONDS, _MP4_RATE = 30, 30
_FILMING = 0xFFFF_0002  # like an evaluation's, a key that training never meets
PyTree = Any


class Recording(NamedTuple):
    """One episode."""

    states: PyTree  # [steps + 1, ...], the start first
    length: jax.Array  # i32[], steps until the episode ended
    episode_return: jax.Array  # f32[]
    outcome: dict[str, jax.Array]  # f32[] each, at the end
    finished: jax.Array  # bool[]


class Film(NamedTuple):
    """A film that lies on the disk."""

    path: Path
    caption: str


def make_record(trainer: Any, deterministic: bool) -> Callable[[PyTree, jax.Array], Recording]:
    """`record(learner, key) -> Recording` of one episode, jitted."""
    environment = trainer.environment
    steps = min(environment.max_episode_steps, _LONGEST)

    def record(learner: PyTree, key: jax.Array) -> Recording:
        observation, state = environment.reset(jax.random.fold_in(key, steps))

        def step(carry, index):
            observation, state, first, memory, over = carry
            act_key, step_key = jax.random.split(jax.random.fold_in(key, index))
            batch = jax.tree.map(lambda leaf: leaf[None], observation)
            _, action, memory = trainer.act(
                learner, memory, batch, first[None], act_key[None], deterministic=deterministic
            )
            timestep = environment.step(step_key, state, jax.tree.map(lambda leaf: leaf[0], action))
            ended = timestep.terminated | timestep.truncated
            carry = (timestep.observation, timestep.state, jnp.array(False), memory, over | ended)
            return carry, (timestep.state, timestep.reward, timestep.outcome, ended, over)

        carry = (observation, state, jnp.array(True), trainer.initial_memory(1), jnp.array(False))
        _, (states, reward, outcome, ended, over) = jax.lax.scan(step, carry, jnp.arange(steps))
        length = jnp.sum(~over)
        return Recording(
            jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), state, states),
            length,
            jnp.sum(reward, where=~over),
            jax.tree.map(lambda values: values[length - 1], outcome),
            ended[length - 1],
        )

    return jax.jit(record)


def candidate_keys(seed: int) -> jax.Array:
    """The keys of the episodes among which the film's is chosen, key[CANDIDATES]."""
    return jax.random.split(jax.random.fold_in(jax.random.key(seed), _FILMING), CANDIDATES)


def film(trainer: Any, learner: PyTree, seed: int, folder: Path, *, deterministic: bool = True) -> Film:
    """Film the best of a few episodes into `folder`: most successful first, then by return.

    Where frames cannot be drawn but the environment has a viewer for the browser, the film is an HTML page.
    Raises RenderUnavailable where neither is to be had.
    """
    record = make_record(trainer, deterministic)
    best, best_score = None, (-math.inf, -math.inf)
    for key in candidate_keys(seed):
        candidate = record(learner, key)
        score = (float(candidate.outcome.get("success", 0.0)), float(candidate.episode_return))
        if best is None or score > best_score:
            best, best_score = candidate, score
    if best is None:
        raise RenderUnavailable("no episode was recorded")
    host = jax.device_get(best)
    length = int(host.length)
    states = [jax.tree.map(lambda leaf, index=index: leaf[index], host.states) for index in range(length + 1)]
    mode = "deterministic" if deterministic else "stochastic"
    caption = f"best of {CANDIDATES} episodes, {mode} policy, return {float(host.episode_return):.3g} in {length} steps"
    folder.mkdir(parents=True, exist_ok=True)
    environment = trainer.environment
    try:
        is_long = length > _LONG and find_spec("imageio_ffmpeg") is not None
        if is_long:
            shown = states[:: math.ceil(length / (_MP4_SECONDS * _MP4_RATE))]
            return Film(write_mp4(environment.render(shown), folder / "agent.mp4"), caption)
        shown = states[:: math.ceil(length / _GIF_FRAMES) or 1]
        return Film(write_gif(environment.render(shown), folder / "agent.gif"), caption)
    except RenderUnavailable:
        if not hasattr(environment, "html"):
            raise
        path = folder / "agent.html"
        path.write_text(environment.html(states), encoding="utf-8")
        return Film(path, caption)


def write_mp4(frames: Sequence[np.ndarray], path: Path) -> Path:
    """Frames uint8[height, width, 3] as H.264. Raises RenderUnavailable where the encoder fails."""
    import imageio_ffmpeg

    # The codec halves colour's resolution, so both sides must be even.
    height, width = (side - side % 2 for side in frames[0].shape[:2])
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error"]
    command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(_MP4_RATE), "-i", "-"]
    command += ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "23", "-movflags", "+faststart", str(path)]
    pixels = b"".join(np.ascontiguousarray(frame[:height, :width]).tobytes() for frame in frames)
    # Not through imageio: it forks with a hook in the child, and a fork of a process that runs JAX may deadlock.
    encoder = subprocess.run(command, input=pixels, capture_output=True, check=False)
    if encoder.returncode:
        raise RenderUnavailable(f"ffmpeg failed: {encoder.stderr.decode(errors='replace').strip()[-300:]}")
    return path


def write_gif(frames: Sequence[np.ndarray], path: Path, most_bytes: int = _GIF_BYTES) -> Path:
    """Frames uint8[height, width, 3] as a GIF that loops, made smaller until it has at most `most_bytes`."""
    images = [Image.fromarray(np.asarray(frame)) for frame in frames]
    for side, colours, stride in ((360, 128, 1), (280, 64, 1), (240, 64, 2), (180, 32, 3), (120, 32, 4)):
        chosen = images[::stride] if images[::stride][-1] is images[-1] else [*images[::stride], images[-1]]
        # About 8 seconds for a film, but no slower than 10 and no faster than 33 frames a second.
        pause = stride * 10 * round(min(100.0, max(30.0, 8000 / (len(chosen) * stride))) / 10)
        save_gif([_scaled(image, side) for image in chosen], path, colours, pause)
        if path.stat().st_size <= most_bytes:
            break
    return path


def save_gif(images: list[Image.Image], path: Path, colours: int, pause: int) -> None:
    """Images of one size as a GIF that loops, each shown for `pause` milliseconds and the last for longer."""
    # One palette for the whole film: a palette a frame flickers, and dithering both flickers and compresses badly.
    sample = images[:: max(1, len(images) // 12)]
    width, height = sample[0].size
    montage = Image.new("RGB", (width, height * len(sample)))
    for index, image in enumerate(sample):
        montage.paste(image, (0, index * height))
    palette = montage.quantize(colours, method=Image.Quantize.MEDIANCUT)
    first, *rest = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images)
    durations = [pause] * len(rest) + [max(900, pause)]
    first.save(path, save_all=True, append_images=rest, duration=durations, loop=0, disposal=1)


def _scaled(image: Image.Image, side: int) -> Image.Image:
    largest = max(image.size)
    if largest * 2 <= side:
        factor = side // largest
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    if largest <= side:
        return image
    size = (max(1, round(image.width * side / largest)), max(1, round(image.height * side / largest)))
    return image.resize(size, Image.Resampling.LANCZOS)


def main(run: str | Path, which: Literal["newest", "best"] = "newest") -> int:
    """Film a run's newest or best checkpoint into its report folder; print where. Exit code."""
    from purejaxrl_scale.analysis.runs import load_run
    from purejaxrl_scale.runner.compilation import enable_cache

    enable_cache()
    loaded = load_run(run)
    console = Console(highlight=False)
    try:
        made = film(loaded.trainer, loaded.checkpoint(which).learner, loaded.config.seed, loaded.path / "report")
    except RenderUnavailable as fault:
        console.print(f"cannot film {loaded.config.environment.name}: {fault}", markup=False)
        return 1
    console.print(f"{made.path}: {made.caption}", markup=False, soft_wrap=True)
    return 0
