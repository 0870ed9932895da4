"""A moving picture of the page on which a whole model computes: python -m lessons.film"""

import argparse
import io
import sys
from pathlib import Path

from PIL import Image

from lessons import COURSE, FOLDER
from numformer.errors import InputError
from numformer.training.files import write_atomically
from toy_tasks.kit import exit_code

WIDE, HIGH = 1180, 700  # pixels of the page that are seen
EACH, LAST = 260, 1800  # milliseconds of a frame, and of the last one


def frames(page) -> list[bytes]:
    """Pictures of lesson 9's figure: a step forward and back, block by block, then training."""
    figure = page.locator("#whole")
    figure.scroll_into_view_if_needed()
    top = figure.bounding_box()
    clip = {"x": top["x"], "y": top["y"], "width": WIDE, "height": HIGH}
    blocks = figure.evaluate("figure => figure.simulation.views[0].data.stages.length")

    def picture() -> bytes:
        page.wait_for_timeout(350)  # numbers glide to what they become
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
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=options.browser, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(path.as_uri())
        images = [Image.open(io.BytesIO(taken)).convert("RGB") for taken in frames(page)]
        browser.close()
    times = [EACH] * (len(images) - 1) + [LAST]
    small = [
        image.resize((WIDE * 2 // 3, HIGH * 2 // 3), Image.Resampling.LANCZOS) for image in images
    ]
    made = io.BytesIO()
    settings = dict(
        save_all=True, append_images=small[1:], duration=times, loop=0, quality=70, method=6
    )
    small[0].save(made, "WEBP", **settings)
    write_atomically(options.out, made.getvalue())
    print(f"{options.out}: {len(small)} frames, {len(made.getvalue()) // 1024} KB")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
