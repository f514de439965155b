"""Make the embedded subset of MNIST, src/atlas/data/mnist_mini.tar.xz, and print its table entry.

    python scripts/make_mnist_mini.py ROOT        # ROOT/MNIST/raw holds the full set, raw or gz

800 training images and 200 test images of each digit, drawn from the official training set and the official
test set by a fixed seed, in their official order. The same input gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import sys
import tarfile
from pathlib import Path

import torch
from torch import Tensor

from atlas.data import Images, load
from atlas.data.readers import format_idx
from atlas.rng import Rng

SEED = 0
TRAIN_PER_CLASS, TEST_PER_CLASS = 800, 200
TARGET = Path(__file__).resolve().parents[1] / "src" / "atlas" / "data" / "mnist_mini.tar.xz"
# Literals of MNIST depend on the pixel before and not on alignment; 8 MiB hold the whole set.
FILTERS = [
    {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 23, "lc": 4, "pb": 0}
]


def stratified(images: Images, per_class: int, half: str) -> Images:
    """`per_class` images of each class: those whose random keys are the smallest."""
    keys = Rng.lanes(SEED, images.ids).fold("mnist-mini", half).bits(())
    chosen: list[Tensor] = []
    for label in range(images.num_classes):
        members = (images.y == label).nonzero().flatten()
        chosen.append(members[keys[members].argsort(stable=True)[:per_class]])
    return images.subset(torch.cat(chosen).sort().values)


def contents(root: Path) -> dict[str, bytes]:
    """The four idx files, by name."""
    files = {}
    for half, per_class in (("train", TRAIN_PER_CLASS), ("t10k", TEST_PER_CLASS)):
        images = stratified(load("mnist", train=half == "train", root=root), per_class, half)
        files[f"{half}-images-idx3-ubyte"] = format_idx(images.x[:, 0])
        files[f"{half}-labels-idx1-ubyte"] = format_idx(images.y.to(torch.uint8))
    return files


def archive(files: dict[str, bytes]) -> bytes:
    """A .tar.xz without time, owner or anything else that could differ between two runs."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return lzma.compress(raw.getvalue(), format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC32, filters=FILTERS)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    files = contents(Path(sys.argv[1]))
    packed = archive(files)
    TARGET.write_bytes(packed)
    for name, data in {**files, TARGET.name: packed}.items():
        print(f'File("{name}", {len(data)}, sha256="{hashlib.sha256(data).hexdigest()}")')


if __name__ == "__main__":
    main()
