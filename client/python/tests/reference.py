"""The operations of shardd.transforms by torchvision: parameters from NumPy's generator, pixels from torchvision's functions.

``python tests/reference.py DIRECTORY`` prints a table of the differences over the images in a directory.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision.io import decode_image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from shardd import transforms as T

Picture = torch.Tensor


def generator(seed: int, epoch: int, position: int, op: int) -> np.random.Generator:
    """The random numbers of an operation, as the documentation of shardd.transforms has it."""
    return np.random.Generator(np.random.Philox(key=[seed, 0], counter=[0, op, position, epoch]))


class Numbers:
    """What the documentation calls ``uniform``, ``between``, ``below``, ``chance`` and ``order``."""

    def __init__(self, *place: int) -> None:
        self.uniform: Callable[[], float] = generator(*place).random

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.uniform()

    def below(self, count: int) -> int:
        return math.floor(self.uniform() * count)

    def chance(self, p: float) -> bool:
        return self.uniform() < p

    def order(self, count: int) -> list[int]:
        order = list(range(count))
        for place in range(count - 1, 0, -1):
            other = self.below(place + 1)
            order[place], order[other] = order[other], order[place]
        return order


Reference = Callable[[Numbers, Picture, Any], Picture]


def resized_crop(n: Numbers, picture: Picture, op: T.RandomResizedCrop) -> Picture:
    height, width = picture.shape[-2:]
    for _ in range(10):
        area = height * width * n.between(*op.scale)
        ratio = math.exp(n.between(*map(math.log, op.ratio)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = n.below(height - h + 1), n.below(width - w + 1)
            break
    else:
        h, w = height, width
        if width / height < min(op.ratio):
            h = max(1, round(width / min(op.ratio)))
        elif width / height > max(op.ratio):
            w = max(1, round(height * max(op.ratio)))
        top, left = (height - h) // 2, (width - w) // 2
    size = [op.size, op.size] if isinstance(op.size, int) else list(op.size)
    return F.resized_crop(picture, top, left, h, w, size, v2.InterpolationMode(op.interpolation))


def random_crop(n: Numbers, picture: Picture, op: T.RandomCrop) -> Picture:
    height = width = op.size
    picture = F.pad(picture, [op.padding] * 4, fill=op.fill, padding_mode=op.padding_mode)
    if op.pad_if_needed:
        across, down = max(0, width - picture.shape[-1]), max(0, height - picture.shape[-2])
        picture = F.pad(picture, [across, down], fill=op.fill, padding_mode=op.padding_mode)
    top = n.below(picture.shape[-2] - height + 1) if picture.shape[-2] > height else 0
    left = n.below(picture.shape[-1] - width + 1) if picture.shape[-1] > width else 0
    return F.crop(picture, top, left, height, width)


def jitter(n: Numbers, picture: Picture, op: T.ColorJitter) -> Picture:
    order = n.order(4)
    ranges = [(max(0, 1 - by), 1 + by) for by in (op.brightness, op.contrast, op.saturation)] + [(-op.hue, op.hue)]
    factors = [n.between(*range) for range in ranges]
    adjust = [F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue]
    for which in order:
        picture = adjust[which](picture, factors[which])
    return picture


def distort(n: Numbers, picture: Picture, op: T.RandomPhotometricDistort) -> Picture:
    ranges = [op.brightness, op.contrast, op.saturation, op.hue]
    factors = [n.between(*range) if n.chance(op.p) else None for range in ranges]
    order = [0, 1, 2, 3] if n.chance(0.5) else [0, 2, 3, 1]
    adjust = [F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue]
    for which in order:
        if (factor := factors[which]) is not None:
            picture = adjust[which](picture, factor)
    return F.permute_channels(picture, n.order(len(picture))) if n.chance(op.p) else picture


def affine(n: Numbers, picture: Picture, op: T.RandomAffine) -> Picture:
    height, width = picture.shape[-2:]
    angle = n.between(-op.degrees, op.degrees)
    translate = [round(n.between(-part * side, part * side)) for part, side in zip(op.translate, (width, height))]
    scale = n.between(*op.scale)
    shear = [n.between(*op.shear[:2]), n.between(*op.shear[2:])]
    return F.affine(picture, angle, translate, scale, shear, v2.InterpolationMode(op.interpolation), fill=op.fill)


def rotation(n: Numbers, picture: Picture, op: T.RandomRotation) -> Picture:
    angle = n.between(-op.degrees, op.degrees)
    return F.rotate(picture, angle, v2.InterpolationMode(op.interpolation), expand=op.expand, center=op.center, fill=op.fill)


def perspective(n: Numbers, picture: Picture, op: T.RandomPerspective) -> Picture:
    if not n.chance(op.p):
        return picture
    height, width = picture.shape[-2:]
    across, down = (int(op.distortion_scale * (side // 2)) + 1 for side in (width, height))
    corners = []
    for is_left, is_top in ((True, True), (False, True), (False, False), (True, False)):
        x = n.below(across) + (0 if is_left else width - across)
        corners.append([x, n.below(down) + (0 if is_top else height - down)])
    start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    return F.perspective(picture, start, corners, v2.InterpolationMode(op.interpolation), fill=op.fill)


def elastic(n: Numbers, picture: Picture, op: T.ElasticTransform) -> Picture:
    height, width = picture.shape[-2:]
    moves = []
    for side in (width, height):
        noise = torch.tensor([n.uniform() for _ in range(height * width)], dtype=torch.float32).reshape(1, 1, height, width) * 2 - 1
        kernel = int(8 * op.sigma + 1) // 2 * 2 + 1
        moves.append(F.gaussian_blur(noise, [kernel, kernel], [op.sigma, op.sigma]) * op.alpha / side)
    field = torch.concat(moves, 1).permute(0, 2, 3, 1)
    return F.elastic(picture, field, v2.InterpolationMode(op.interpolation), fill=op.fill)


def blur(n: Numbers, picture: Picture, op: T.GaussianBlur) -> Picture:
    return F.gaussian_blur(picture, [op.kernel_size] * 2, [n.between(*op.sigma)] * 2)


def erasing(n: Numbers, picture: Picture, op: T.RandomErasing) -> Picture:
    height, width = picture.shape[-2:]
    if not n.chance(op.p):
        return picture
    for _ in range(10):
        area = height * width * n.between(*op.scale)
        ratio = math.exp(n.between(*map(math.log, op.ratio)))
        h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if h < height and w < width:
            top, left = n.below(height - h + 1), n.below(width - w + 1)
            return F.erase(picture, top, left, h, w, torch.tensor(op.value)[:, None, None])
    return picture


def sometimes(change: Callable[..., Picture], *arguments: str) -> Reference:
    """A function that is applied with probability ``p``, with these arguments of the operation."""
    return lambda n, picture, op: change(picture, *(getattr(op, name) for name in arguments)) if n.chance(op.p) else picture


def always(change: Callable[[Picture, Any], Picture]) -> Reference:
    return lambda _, picture, op: change(picture, op)


def grey(picture: Picture) -> Picture:
    return F.rgb_to_grayscale(picture, num_output_channels=len(picture))


SCALED = [T.ToDtype(torch.float32, scale=True), T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]


def normalised(picture: Picture) -> Picture:
    return F.normalize(F.to_dtype(picture, torch.float32, scale=True), SCALED[1].mean, SCALED[1].std)


# An operation, its reference by torchvision, and the largest difference of a number.
CASES: list[tuple[T.Transform, Reference, float]] = [
    *(
        (T.Resize(size, interpolation=how), always(lambda x, op: F.resize(x, list(op.size), v2.InterpolationMode(op.interpolation))), 0)
        for size in ([64, 48], [7, 300])
        for how in ("nearest", "nearest-exact", "bilinear", "bicubic")
    ),
    (T.CenterCrop(40), always(lambda x, op: F.center_crop(x, [op.size] * 2)), 0),
    (T.Pad([1, 2, 3, 4], padding_mode="edge"), always(lambda x, op: F.pad(x, list(op.padding), padding_mode=op.padding_mode)), 0),
    (T.RandomCrop(28, padding=4, pad_if_needed=True, fill=17), random_crop, 0),
    (T.RandomResizedCrop(56), resized_crop, 0),
    (T.RandomResizedCrop([24, 40], interpolation="bicubic", scale=(0.3, 0.9)), resized_crop, 0),
    (T.RandomHorizontalFlip(), sometimes(F.horizontal_flip), 0),
    (T.RandomVerticalFlip(), sometimes(F.vertical_flip), 0),
    (T.RandomRotation(30), rotation, 0),
    (T.RandomRotation(170, interpolation="bilinear", fill=9), rotation, 0),
    (T.RandomAffine(20, (0.1, 0.2), (0.7, 1.4), [-10, 10, -5, 5]), affine, 0),
    (T.RandomAffine(20, (0.1, 0.2), (0.7, 1.4), [-10, 10, -5, 5], interpolation="bilinear", fill=200), affine, 1),
    (T.RandomPerspective(p=0.9), perspective, 1),
    (T.ElasticTransform(30.0, 4.0), elastic, 1),
    (T.ColorJitter(0.4, 0.4, 0.4, 0.1), jitter, 0),
    (T.RandomPhotometricDistort(), distort, 0),
    (T.Grayscale(3), always(lambda x, op: F.rgb_to_grayscale(x, op.num_output_channels)), 0),
    (T.RandomGrayscale(0.5), sometimes(grey), 0),
    (T.GaussianBlur(5), blur, 1),
    (T.RandomAdjustSharpness(2.5), sometimes(F.adjust_sharpness, "sharpness_factor"), 0),
    (T.RandomInvert(), sometimes(F.invert), 0),
    (T.RandomPosterize(3), sometimes(F.posterize, "bits"), 0),
    (T.RandomSolarize(100), sometimes(F.solarize, "threshold"), 0),
    (T.RandomAutocontrast(), sometimes(F.autocontrast), 0),
    (T.RandomEqualize(), sometimes(F.equalize), 0),
    (T.RandomErasing(0.9, value=[1.0, 2.0, 3.0]), erasing, 0),
]


def by_us(op: T.Transform, picture: Picture, position: int) -> Picture:
    """What it makes of a picture, of any size."""
    compose = T.Compose([T.Identity(), op], layout="HWC", seed=7)
    return compose.stages(picture.permute(1, 2, 0).numpy(), epoch=2, position=position)[-1][1].permute(2, 0, 1)


def by_torchvision(reference: Reference, op: T.Transform, picture: Picture, position: int) -> Picture | None:
    """The same by torchvision; ``None`` where it refuses the picture: margins and perspectives of a few pixels."""
    try:
        return reference(Numbers(7, 2, position, 1), picture, op)
    except RuntimeError as error:
        if "Padding size" in str(error) or "full rank" in str(error):
            return None
        raise


def differences(pictures: list[Picture], positions: int) -> Iterator[tuple[T.Transform, float, float, float]]:
    """Each operation with the largest difference of its numbers, their mean difference, and that which is allowed."""
    for op, reference, allowed in CASES:
        largest, total, count = 0.0, 0.0, 0
        for index, picture in enumerate(pictures):
            for position in range(index, index + positions):
                ours, theirs = by_us(op, picture, position), by_torchvision(reference, op, picture, position)
                if theirs is None:
                    continue
                assert ours.shape == theirs.shape, (op, ours.shape, theirs.shape)
                difference = (ours.double() - theirs.double()).abs()
                largest = max(largest, difference.max().item())
                total, count = total + difference.sum().item(), count + difference.numel()
        yield op, largest, total / count, allowed


def synthetic() -> list[Picture]:
    """Smooth pictures with noise, and the smallest ones."""
    numbers = np.random.default_rng(3)
    made = []
    for height, width in ((1, 1), (1, 7), (5, 2), (33, 47), (120, 90)):
        y, x = np.mgrid[:height, :width] / max(height, width)
        waves = [np.sin(3 * x + 5 * y), np.cos(7 * x), np.sin(9 * x * y)]
        pixels = 128 + 90 * np.stack(waves) + numbers.normal(0, 12, (3, height, width))
        made.append(torch.from_numpy(pixels.clip(0, 255).astype(np.uint8)))
    return made


def main() -> None:
    files = sorted(path for path in Path(sys.argv[1]).rglob("*") if path.suffix in (".jpg", ".jpeg", ".png"))
    pictures = [decode_image(str(path), mode="RGB") for path in files]
    print(f"{len(pictures)} pictures, {sum(picture.numel() for picture in pictures)} numbers\n")
    print("| operation | largest difference | mean difference |\n|---|---:|---:|")
    for op, largest, mean, _ in differences(pictures, 2):
        print(f"| `{op!r}` | {largest:.0f} | {mean:.1e} |", flush=True)


if __name__ == "__main__":
    main()
