"""Your own images: learn a policy on a folder of images and apply it to DARTS."""

import argparse
from pathlib import Path

from PIL import Image

import natpp
from natpp.data.named import Data
from natpp.data.sets import load_images

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("folder", nargs="?", type=Path, help="train/CLASS/*.png, test/CLASS/*.png; default: digits")
arguments.add_argument("--small", action="store_true", help="takes seconds: four short training runs instead of 100")
given = arguments.parse_args()
folder = given.folder


def write_digits(folder: Path) -> None:
    """Write scikit-learn's digits to files, as an example of an image folder."""
    digits = load_images("digits")
    for part in ("train", "test"):
        for number, (pixels, label) in enumerate(
            zip(getattr(digits, part), getattr(digits, f"{part}_labels"), strict=True)
        ):
            file = folder / part / str(label) / f"{number:04}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.transpose(1, 2, 0)).save(file)


if folder is None:
    folder = Path("images")
    write_digits(folder)

images = Data(folder, size=None if given.folder is None else 32)
config = natpp.Search(evaluations=4, train_steps=2, steps=5) if given.small else natpp.Search()
policy = natpp.search(images, config, run=natpp.Run(out="run", say=print))
result = natpp.optimize("darts", policy)
print(result)
