import dataclasses

import numpy as np
import pytest
from PIL import Image

from purejaxrl_scale.environments.interface import RenderUnavailable
from purejaxrl_scale.runner import video
from tests.runner.conftest import ToyEnvironment, ToyTrainer, toy_config


def frames(count, height, width, noise=False):
    generator = np.random.default_rng(0)
    made = []
    for index in range(count):
        frame = np.full((height, width, 3), 250, np.uint8)
        frame[:, : 1 + index * (width - 1) // count] = (0, 114, 178)
        if noise:
            frame = generator.integers(0, 255, frame.shape).astype(np.uint8)
        made.append(frame)
    return made


def test_a_gif_loops_keeps_its_colours_and_holds_the_end(tmp_path):
    path = video.write_gif(frames(20, 100, 200), tmp_path / "a.gif")
    with Image.open(path) as image:
        assert image.n_frames == 20
        assert image.info["loop"] == 0
        image.seek(19)
        assert image.info["duration"] >= 900
        red, green, blue = image.convert("RGB").getpixel((2, 2))
    assert max(abs(red - 0), abs(green - 114), abs(blue - 178)) < 12


def test_small_frames_are_enlarged_sharply(tmp_path):
    with Image.open(video.write_gif(frames(3, 10, 10), tmp_path / "a.gif")) as image:
        assert image.size == (360, 360)


def test_a_gif_that_would_be_large_is_made_smaller(tmp_path):
    path = video.write_gif(frames(60, 200, 200, noise=True), tmp_path / "a.gif", most_bytes=400_000)
    assert path.stat().st_size <= 400_000
    with Image.open(path) as image:
        assert image.n_frames > 5


def test_long_films_are_mp4(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    path = video.write_mp4(frames(40, 101, 201), tmp_path / "a.mp4")
    assert path.read_bytes()[4:8] == b"ftyp"
    with pytest.raises(RenderUnavailable, match="ffmpeg failed"):
        video.write_mp4(frames(2, 64, 64), tmp_path / "none" / "a.mp4")


def test_the_best_episode_is_filmed_to_its_end(tmp_path):
    trainer = ToyTrainer(toy_config("."))
    film = video.film(trainer, None, 0, tmp_path)
    assert film.path == tmp_path / "agent.gif"
    starts = [
        int(trainer.environment.reset(video.jax.random.fold_in(key, 5))[1].length) for key in video.candidate_keys(0)
    ]
    best = max(starts, key=lambda length: (length % 2, length))
    assert len(set(starts)) > 1
    with Image.open(film.path) as image:
        assert image.n_frames == best + 1
    assert film.caption == f"best of 4 episodes, deterministic policy, return {best} in {best} steps"


def test_without_pixels_the_film_is_a_page(tmp_path):
    class Blind(ToyEnvironment):
        def render(self, states):
            raise RenderUnavailable("no OpenGL")

    class Viewer(Blind):
        def html(self, states):
            return f"<p>{len(states)} states</p>"

    trainer = ToyTrainer(toy_config("."), Viewer())
    film = video.film(trainer, None, 0, tmp_path)
    assert film.path == tmp_path / "agent.html"
    assert film.path.read_text().endswith("states</p>")
    with pytest.raises(RenderUnavailable, match="no OpenGL"):
        video.film(dataclasses.replace(trainer, environment=Blind()), None, 0, tmp_path)
