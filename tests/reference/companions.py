"""Boxes, key points and masks of shardd-transforms by torchvision: parameters from NumPy's generator, moves from torchvision's kernels.

``python tests/reference/companions.py PROGRAM`` prints a table of the differences, where PROGRAM is the example ``companions`` of the crate.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

SEED, EPOCH, OP = 7, 2, 1
FORMATS = ("XYXY", "XYWH", "CXCYWH")
POINTS = 100

Sample = dict[str, Any]
Arguments = dict[str, Any]


class Numbers:
    """The random numbers of an operation, by the names that its documentation has for them."""

    def __init__(self, position: int) -> None:
        philox = np.random.Philox(key=[SEED, 0], counter=[0, OP, position, EPOCH])
        self.uniform: Callable[[], float] = np.random.Generator(philox).random

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.uniform()

    def below(self, count: int) -> int:
        return math.floor(self.uniform() * count)

    def chance(self, p: float) -> bool:
        return self.uniform() < p


Reference = Callable[[Numbers, int, int, Arguments], Callable[[Any], Any]]


def same(x: Any) -> Any:
    return x


def size_of(size: int | list[int]) -> list[int]:
    return [size, size] if isinstance(size, int) else size


def resize(_: Numbers, height: int, width: int, op: Arguments) -> Callable[[Any], Any]:
    size = [op["size"]] if isinstance(op["size"], int) else op["size"]
    how = v2.InterpolationMode(op.get("interpolation", "bilinear"))
    return lambda x: F.resize(x, size, how, max_size=op.get("max_size"))


def center_crop(_: Numbers, height: int, width: int, op: Arguments) -> Callable[[Any], Any]:
    return lambda x: F.center_crop(x, size_of(op["size"]))


def padded(x: Any, padding: list[int], op: Arguments) -> Any:
    fill = 0 if isinstance(x, tv_tensors.Mask) else op.get("fill", 0)
    return F.pad(x, padding, fill=fill, padding_mode=op.get("padding_mode", "constant"))


def pad(_: Numbers, height: int, width: int, op: Arguments) -> Callable[[Any], Any]:
    padding = op["padding"] if isinstance(op["padding"], list) else [op["padding"]] * 4
    return lambda x: padded(x, padding, op)


def random_crop(n: Numbers, height: int, width: int, op: Arguments) -> Callable[[Any], Any]:
    size = op["size"]
    left = top = right = bottom = op.get("padding", 0)
    across, down = max(0, size - width - left - right), max(0, size - height - top - bottom)
    margins = [left + across, top + down, right + across, bottom + down]
    height, width = height + margins[1] + margins[3], width + margins[0] + margins[2]
    first = n.below(height - size + 1) if height > size else 0
    left = n.below(width - size + 1) if width > size else 0

    def change(x: Any) -> Any:
        if any(margins):
            x = padded(x, margins, op)
        return F.crop(x, first, left, size, size) if height > size or width > size else x

    return change


def resized_crop(n: Numbers, height: int, width: int, op: Arguments) -> Callable[[Any], Any]:
    ratios = [3 / 4, 4 / 3]
    for _ in range(10):
        area = height * width * n.between(*op.get("scale", (0.08, 1.0)))
        ratio = math.exp(n.between(*map(math.log, ratios)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = n.below(height - h + 1), n.below(width - w + 1)
            break
    else:
        h, w = height, width
        if width / height < ratios[0]:
            h = max(1, round(width / ratios[0]))
        elif width / height > ratios[1]:
            w = max(1, round(height * ratios[1]))
        top, left = (height - h) // 2, (width - w) // 2
    how = v2.InterpolationMode(op.get("interpolation", "bilinear"))
    return lambda x: F.resized_crop(x, top, left, h, w, size_of(op["size"]), how)


def flip(change: Callable[[Any], Any]) -> Reference:
    return lambda n, height, width, op: change if n.chance(op.get("p", 0.5)) else same


def interpolation(op: Arguments, default: str = "nearest") -> v2.InterpolationMode:
    return v2.InterpolationMode(op.get("interpolation", default))


def rotation(n: Numbers, height: int, width: int, op: Arguments) -> Callable[[Any], Any]:
    degrees = op["degrees"] if isinstance(op["degrees"], list) else [-op["degrees"], op["degrees"]]
    angle = n.between(*degrees)
    return lambda x: F.rotate(x, angle, interpolation(op), expand=op.get("expand", False), center=op.get("center"), fill=0)


def affine(n: Numbers, height: int, width: int, op: Arguments) -> Callable[[Any], Any]:
    angle = n.between(-op["degrees"], op["degrees"])
    translate = [round(n.between(-part * side, part * side)) for part, side in zip(op["translate"], (width, height))]
    scale = n.between(*op["scale"])
    shear = [n.between(*op["shear"][:2]), n.between(*op["shear"][2:])]
    return lambda x: F.affine(x, angle, translate, scale, shear, interpolation(op), fill=0, center=op.get("center"))


def perspective(n: Numbers, height: int, width: int, op: Arguments) -> Callable[[Any], Any]:
    if not n.chance(op.get("p", 0.5)):
        return same
    across, down = (int(op.get("distortion_scale", 0.5) * (side // 2)) + 1 for side in (width, height))
    corners = []
    for is_left, is_top in ((True, True), (False, True), (False, False), (True, False)):
        x = n.below(across) + (0 if is_left else width - across)
        corners.append([x, n.below(down) + (0 if is_top else height - down)])
    start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    return lambda x: F.perspective(x, start, corners, interpolation(op, "bilinear"), fill=0)


def elastic(n: Numbers, height: int, width: int, op: Arguments) -> Callable[[Any], Any]:
    alpha, sigma = op.get("alpha", 50.0), op.get("sigma", 5.0)
    moves = []
    for side in (width, height):
        noise = torch.tensor([n.uniform() for _ in range(height * width)], dtype=torch.float32).reshape(1, 1, height, width) * 2 - 1
        kernel = int(8 * sigma + 1) // 2 * 2 + 1
        moves.append(F.gaussian_blur(noise, [kernel, kernel], [sigma, sigma]) * alpha / side)
    field = torch.concat(moves, 1).permute(0, 2, 3, 1)
    return lambda x: F.elastic(x, field, interpolation(op, "bilinear"), fill=0)


def zoom_out(n: Numbers, height: int, width: int, op: Arguments) -> Callable[[Any], Any]:
    if not n.chance(op.get("p", 0.5)):
        return same
    factor = n.between(*op.get("side_range", (1.0, 4.0)))
    new_width, new_height = int(width * factor), int(height * factor)
    left, top = int((new_width - width) * n.uniform()), int((new_height - height) * n.uniform())
    return lambda x: padded(x, [left, top, new_width - width - left, new_height - height - top], op)


def shortest_size(n: Numbers, height: int, width: int, op: Arguments) -> Callable[[Any], Any]:
    factor = op["min_size"][n.below(len(op["min_size"]))] / min(height, width)
    factor = min(factor, op["max_size"] / max(height, width))
    return lambda x: F.resize(x, [max(1, int(height * factor)), max(1, int(width * factor))])


def scale_jitter(n: Numbers, height: int, width: int, op: Arguments) -> Callable[[Any], Any]:
    factor = min(op["target_size"][1] / height, op["target_size"][0] / width) * n.between(*op.get("scale_range", (0.1, 2.0)))
    return lambda x: F.resize(x, [max(1, int(height * factor)), max(1, int(width * factor))])


def random_resize(n: Numbers, height: int, width: int, op: Arguments) -> Callable[[Any], Any]:
    size = op["min_size"] + n.below(op["max_size"] - op["min_size"])
    return lambda x: F.resize(x, [size])


def iou_crop(n: Numbers, height: int, width: int, op: Arguments) -> Callable[[Any], Any]:
    """torchvision's own operation, whose random numbers are ours."""
    crop = v2.RandomIoUCrop()

    def change(x: Sample) -> Sample:
        random = {"randint": torch.randint, "rand": torch.rand}
        torch.randint = lambda low, high, size: torch.tensor([n.below(high)])
        torch.rand = lambda count: torch.tensor([n.uniform() for _ in range(count)], dtype=torch.float64)
        try:
            return crop(x)
        finally:
            torch.randint, torch.rand = random["randint"], random["rand"]

    return change


def whole(change: Callable[[], v2.Transform]) -> Reference:
    """An operation of torchvision that draws nothing and sees all of a sample."""
    return lambda n, height, width, op: change()


def op(type: str, **arguments: Any) -> Arguments:
    return {"type": type, **arguments}


AFFINE = {"degrees": 20, "translate": [0.1, 0.2], "scale": [0.7, 1.4], "shear": [-10, 10, -5, 5]}

# An operation, its reference by torchvision, and whether that takes a whole sample.
CASES: list[tuple[Arguments, Reference, bool]] = [
    (op("Resize", size=[64, 48]), resize, False),
    (op("Resize", size=50, max_size=90, interpolation="nearest-exact"), resize, False),
    (op("CenterCrop", size=[40, 50]), center_crop, False),
    (op("CenterCrop", size=97), center_crop, False),
    (op("Pad", padding=[1, 2, 3, 4]), pad, False),
    (op("RandomCrop", size=48, padding=4, pad_if_needed=True, fill=17), random_crop, False),
    (op("RandomResizedCrop", size=[56, 40], interpolation="bicubic"), resized_crop, False),
    (op("RandomHorizontalFlip"), flip(F.horizontal_flip), False),
    (op("RandomVerticalFlip"), flip(F.vertical_flip), False),
    (op("RandomRotation", degrees=30), rotation, False),
    (op("RandomRotation", degrees=170, interpolation="bilinear", center=[20, 31.5]), rotation, False),
    (op("RandomRotation", degrees=170, expand=True), rotation, False),
    (op("RandomRotation", degrees=[90, 90], expand=True), rotation, False),
    (op("RandomAffine", **AFFINE), affine, False),
    (op("RandomAffine", **AFFINE, center=[11, 7], interpolation="bilinear"), affine, False),
    (op("RandomPerspective", p=0.9), perspective, False),
    (op("ElasticTransform", alpha=30.0, sigma=4.0), elastic, False),
    (op("RandomZoomOut", fill=9), zoom_out, False),
    (op("RandomShortestSize", min_size=[40, 60, 80], max_size=100), shortest_size, False),
    (op("ScaleJitter", target_size=[100, 80]), scale_jitter, False),
    (op("RandomResize", min_size=30, max_size=120), random_resize, False),
    (op("RandomIoUCrop"), iou_crop, True),
    (op("SanitizeBoundingBoxes", min_size=3.0, min_area=20.0), whole(lambda: v2.SanitizeBoundingBoxes(3.0, 20.0)), True),
    (op("ClampBoundingBoxes"), whole(v2.ClampBoundingBoxes), True),
    (op("ClampBoundingBoxes", clamping_mode=None), whole(lambda: v2.ClampBoundingBoxes(None)), True),
    *((op("ConvertBoundingBoxFormat", format=f), whole(lambda f=f: v2.ConvertBoundingBoxFormat(f)), True) for f in FORMATS),
]


def sample(random: np.random.Generator, format: str, kind: str, is_inside: bool, is_large: bool) -> Sample:
    """A picture of random size, with boxes, key points and a mask of areas: one for each box, two, or one without planes."""
    height, width = (int(side) for side in random.integers(6, 700 if is_large else 140, 2))
    if random.random() < 0.2:
        width = height
    count = int(random.choice([0, 1, 2, 3, 17, 150, 400]))
    if count == height:
        # torchvision would take a mask without planes for one that has them.
        count += 1
    spread = 0.0 if is_inside else 0.2
    x = np.sort(random.uniform(-spread * width, (1 + spread) * width, (count, 2)), 1)
    y = np.sort(random.uniform(-spread * height, (1 + spread) * height, (count, 2)), 1)
    boxes = np.stack([x[:, 0], y[:, 0], x[:, 1], y[:, 1]], 1)
    if random.random() < 0.3:
        boxes = boxes.round()
    points = random.uniform(-spread, 1 + spread, (POINTS, 2)) * [width, height]
    canvas = (height, width)
    boxes = tv_tensors.BoundingBoxes(torch.tensor(boxes, dtype=torch.float32), format="XYXY", canvas_size=canvas)
    rows, columns = np.mgrid[:height, :width]
    planes = np.arange({"each": count, "two": 2, "flat": 1}[kind])[:, None, None]
    mask = ((rows // (2 + planes) * 5 + columns // 3 * 7) % 11).astype(np.uint8)
    return {
        "image": tv_tensors.Image(torch.tensor(random.integers(0, 256, (3, height, width), dtype=np.uint8))),
        "boxes": F.convert_bounding_box_format(boxes, new_format=format),
        "labels": torch.arange(count),
        "mask": tv_tensors.Mask(torch.tensor(mask[0] if kind == "flat" else mask)),
        "points": tv_tensors.KeyPoints(torch.tensor(points, dtype=torch.float32), canvas_size=canvas),
    }


def request(op: Arguments, given: Sample, position: int) -> str:
    picture, mask = given["image"].permute(1, 2, 0), given["mask"]
    companions = {
        "boxes": {"type": "boxes", "format": given["boxes"].format.value},
        "labels": {"type": "labels"},
        "mask": {"type": "mask"},
        "points": {"type": "keypoints"},
    }
    chain = {"companions": companions, "transforms": [{"type": "Identity"}, op, {"type": "CenterCrop", "size": 1}]}
    return json.dumps({
        "chain": chain,
        "shape": list(picture.shape),
        "pixels": picture.flatten().tolist(),
        "place": [SEED, EPOCH, position],
        "given": {
            "boxes": {"boxes": given["boxes"].flatten().tolist()},
            "labels": {"labels": len(given["labels"])},
            "mask": {"mask": {"shape": list(mask.shape), "bytes": mask.flatten().tolist()}},
            "points": {"keypoints": given["points"].flatten().tolist()},
        },
        "stage": 2,
    })


def by_torchvision(reference: Reference, is_whole: bool, op: Arguments, given: Sample, position: int) -> Sample | None:
    """The moved sample; ``None`` where torchvision refuses the picture: perspectives and kernels of a few pixels."""
    height, width = given["image"].shape[-2:]
    try:
        change = reference(Numbers(position), height, width, op)
        if is_whole:
            return change(given)
        return {name: value if name == "labels" else change(value) for name, value in given.items()}
    except RuntimeError as error:
        if "Padding size" in str(error) or "full rank" in str(error):
            return None
        raise


def largest(ours: list[float], theirs: torch.Tensor) -> float:
    ours_ = torch.tensor(ours, dtype=torch.float32).reshape(-1)
    theirs = theirs.as_subclass(torch.Tensor).reshape(-1)
    assert ours_.shape == theirs.shape, (ours_.shape, theirs.shape)
    return (ours_.double() - theirs.double()).abs().max().item() if len(ours_) else 0.0


class Differences:
    """The largest differences of one operation, and how many numbers were compared."""

    def __init__(self) -> None:
        self.largest = dict.fromkeys((*FORMATS, "points"), 0.0)
        self.pixels = {"mask": 0, "image": 0}
        self.boxes = self.mask_pixels = 0

    def add(self, format: str, ours: Any, theirs: Sample) -> None:
        moved = ours["moved"]
        self.boxes += len(theirs["boxes"])
        self.largest[format] = max(self.largest[format], largest(moved["boxes"]["boxes"], theirs["boxes"]))
        self.largest["points"] = max(self.largest["points"], largest(moved["points"]["keypoints"], theirs["points"]))
        assert ours["kept"] == theirs["labels"].tolist()
        mask = moved["mask"]["mask"]
        assert mask["shape"] == list(theirs["mask"].shape), (mask["shape"], theirs["mask"].shape)
        self.mask_pixels += theirs["mask"].numel()
        self.pixels["mask"] += int((torch.tensor(mask["bytes"], dtype=torch.uint8) != theirs["mask"].flatten()).sum())
        picture = theirs["image"].permute(1, 2, 0)
        assert ours["shape"] == list(picture.shape), (ours["shape"], picture.shape)
        self.pixels["image"] += int((torch.tensor(ours["pixels"], dtype=torch.uint8) != picture.flatten()).sum())


def differences(program: str, op: Arguments, reference: Reference, is_whole: bool, positions: int) -> Differences:
    random = np.random.default_rng(3)
    requests, expected = [], []
    for position in range(positions):
        for format in FORMATS:
            kind = ("each" if is_whole else "two", "two", "flat")[position % 3]
            given = sample(random, format, kind, bool(op.get("expand")), is_large=position % 10 == 8)
            theirs = by_torchvision(reference, is_whole, op, given, position)
            if theirs is not None:
                requests.append(request(op, given, position))
                expected.append((format, theirs))
    done = subprocess.run([program], input="\n".join(requests), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = Differences()
    for line, (format, theirs) in zip(done.stdout.splitlines(), expected, strict=True):
        found.add(format, json.loads(line), theirs)
    return found


def main() -> None:
    program, positions = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 30
    print("| operation | boxes | XYXY | XYWH | CXCYWH | key points | pixels of masks | that differ | of pictures |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for op, reference, is_whole in CASES:
        found = differences(program, op, reference, is_whole, positions)
        numbers = " | ".join(f"{value:.1e}" if value else "0" for value in found.largest.values())
        name = ", ".join(f"{key}={value}" for key, value in op.items() if key != "type")
        print(
            f"| `{op['type']}({name})` | {found.boxes} | {numbers} | {found.mask_pixels} | {found.pixels['mask']} "
            f"| {found.pixels['image']} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
