"""An animated picture of the page on which a whole model computes: python -m lessons.film"""

import argparse
import io
import shutil
import sys
from pathlib import Path

from PIL import Image

from lessons import COURSE, FOLDER
from numformer.errors import InputError
from numformer.runs.files import write_atomically
from toy_tasks.command_line import exit_code

WIDE = 800  # the picture's width in pixels
EACH, LAST = 260, 1800  # milliseconds of a frame, and of the last one


def frames(page) -> list[bytes]:
    """Pictures of lesson 9's figure: a step forward and back, block by block, then training."""
    figure = page.locator("#whole")
    page.evaluate("place => scrollTo(0, place.offsetTop)", figure.element_handle())
    boxes = [figure.locator(part).bounding_box() for part in (".map", ".beside-map")]
    left, top = (min(box[side] for box in boxes) for side in "xy")
    right, bottom = (
        max(box[side] + box[size] for box in boxes)
        for side, size in (("x", "width"), ("y", "height"))
    )
    height = min(bottom - top, 0.7 * (right - left))
    clip = {"x": left, "y": top, "width": right - left, "height": height}
    blocks = figure.evaluate("figure => figure.simulation.views[0].data.stages.length")

    def picture() -> bytes:
        page.wait_for_timeout(350)  # numbers glide to their new values
        return page.screenshot(clip=clip)

    taken = []
    for stage in range(blocks - 1):
        figure.evaluate("(figure, stage) => figure.simulation.choose('stage', stage)", stage)
        taken.append(picture())
    figure.get_by_role("button", name="Train on all 27 pairs").click()
    for _ in range(8):
        taken.append(picture())
    return taken


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m lessons.film", description=__doc__)
    parser.add_argument("--site", type=Path, default=Path("site"), help="built pages")
    picture = FOLDER / "page" / "whole.webp"
    parser.add_argument("--out", type=Path, default=picture, help="the picture, a .webp")
    parser.add_argument("--browser", default="chromium", help="the program (default: chromium)")
    options = parser.parse_args(arguments)
    path = (options.site / COURSE[8].page).resolve()
    if not path.is_file():
        rule = "--site is a folder of built pages"
        raise InputError(rule, f"no {path}", "python -m lessons.build --out site")
    browser = shutil.which(options.browser)
    if not browser:
        rule = "--browser is a Chromium, by its name or its path"
        raise InputError(rule, options.browser, "Install one, or name another.")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(
            executable_path=browser, args=["--no-sandbox", "--disable-gpu"]
        )
        page = opened.new_page(viewport={"width": 1280, "height": 2000})
        page.goto(path.as_uri())
        images = [Image.open(io.BytesIO(taken)).convert("RGB") for taken in frames(page)]
        opened.close()
    times = [EACH] * (len(images) - 1) + [LAST]
    size = WIDE, WIDE * images[0].height // images[0].width
    first, *others = [image.resize(size) for image in images]
    content, how = io.BytesIO(), dict(quality=70, method=6, loop=0)
    first.save(content, "WEBP", save_all=True, append_images=others, duration=times, **how)
    write_atomically(options.out, content.getvalue())
    print(f"{options.out}: {len(images)} frames, {len(content.getvalue()) // 1024} KB")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
