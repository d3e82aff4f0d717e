"""Loaders of pictures behind one small interface.

A contestant is a class:

    title       its name in the tables
    packages    whose versions are noted
    prepare     writes the pictures in its format (static): (Pictures, folder)
    __init__    opens them: (Pictures, folder, kind)
    epoch       yields shuffled batches of 64, (pictures, numbers): contiguous tensors, `[64, 3, 224, 224]`

Kind "jpeg" is RandomResizedCrop, RandomHorizontalFlip, and normalised float32; "raw" is RandomCrop, RandomHorizontalFlip, and uint8.
Each has two threads or two worker processes. Imports are inside of the classes: a process has only those of its own contestant.
"""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

BATCH, SIZE, RAW, THREADS = 64, 224, 256, 2
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MEAN_255, STD_255 = ([255 * value for value in values] for values in (MEAN, STD))


@dataclass(frozen=True)
class Pictures:
    """The files, and the raw rows."""

    folder: Path
    count: int

    @property
    def files(self):
        return [str(self.folder / "jpeg" / f"{number:05}.jpg") for number in range(self.count)]

    @property
    def rows(self):
        return np.memmap(self.folder / "raw.bin", np.uint8, "r", shape=(self.count, RAW, RAW, 3))


class Contestant:
    packages = ()
    kinds = ("jpeg", "raw")

    @staticmethod
    def prepare(pictures, folder):
        pass

    @classmethod
    def versions(cls):
        return {package: version(package) for package in cls.packages}


class Shardd(Contestant):
    title, packages = "shardd", ("shardd",)

    @staticmethod
    def prepare(pictures, folder):
        import shardd

        encoded = ({"image": Path(file).read_bytes(), "id": number} for number, file in enumerate(pictures.files))
        shardd.from_iter(encoded, str(folder / "jpeg"), name="pictures")
        rows = ({"image": row, "id": number} for number, row in enumerate(pictures.rows))
        shardd.from_iter(rows, str(folder / "raw"), name="pictures")

    def __init__(self, pictures, folder, kind):
        import shardd
        from shardd import transforms as T

        if kind == "jpeg":
            operations = [T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True), T.Normalize(MEAN, STD)]
        else:
            operations = [T.RandomCrop(SIZE), T.RandomHorizontalFlip()]
        dataset = shardd.StreamingDataset(str(folder / kind), dataset="pictures", q=0.1, shuffle_seed=1)
        self.loader = shardd.DataLoader(dataset, BATCH, num_workers=THREADS, transform=T.Compose(operations), drop_last=True)

    def epoch(self):
        for batch in self.loader:
            yield batch["image"], batch["id"]


class Torchvision(Contestant):
    title, packages = "torchvision v2, `decode_image`", ("torchvision", "torch")

    def __init__(self, pictures, folder, kind):
        import torch
        from torch.utils.data import DataLoader, Dataset
        from torchvision.transforms import v2

        if kind == "jpeg":
            float32 = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
            transform = v2.Compose([*self.first(), v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip(), *self.then(), *float32])
            load, files = self.loading(), pictures.files
        else:
            transform = v2.Compose([v2.RandomCrop(SIZE), v2.RandomHorizontalFlip()])
            rows = pictures.rows

        class Samples(Dataset):
            def __len__(self):
                return pictures.count

            def __getitem__(self, number):
                if kind == "jpeg":
                    return transform(load(files[number])), number
                return transform(torch.from_numpy(rows[number].copy()).permute(2, 0, 1)), number

        self.loader = DataLoader(Samples(), BATCH, shuffle=True, num_workers=THREADS, drop_last=True, persistent_workers=True)

    def first(self):
        return []

    def then(self):
        return []

    def loading(self):
        from torchvision.io import decode_image

        return lambda file: decode_image(file, mode="RGB")

    def epoch(self):
        return iter(self.loader)


class Torchcodec(Torchvision):
    title, packages, kinds = "torchvision v2, torchcodec's `decode_jpeg`", ("torchcodec", "torchvision", "torch"), ("jpeg",)

    def loading(self):
        from torchcodec.decoders import decode_jpeg

        return lambda file: decode_jpeg(file, mode="RGB")


class Pillow(Torchvision):
    title, packages, kinds = "torchvision v2, Pillow", ("torchvision", "pillow", "torch"), ("jpeg",)

    def then(self):
        from torchvision.transforms import v2

        return [v2.ToImage()]

    def loading(self):
        from PIL import Image

        return lambda file: Image.open(file).convert("RGB")


class Dali(Contestant):
    title, packages = "NVIDIA DALI", ("nvidia-dali-cuda120",)

    @staticmethod
    def prepare(pictures, folder):
        for number, row in enumerate(pictures.rows):
            np.save(folder / f"{number:05}.npy", row)

    def __init__(self, pictures, folder, kind):
        from nvidia.dali import fn, pipeline_def, types
        from nvidia.dali.plugin.base_iterator import LastBatchPolicy
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        @pipeline_def(batch_size=BATCH, num_threads=THREADS, device_id=None, seed=1)
        def encoded():
            files, numbers = fn.readers.file(
                files=pictures.files, labels=list(range(pictures.count)), shuffle_after_epoch=True, pad_last_batch=True, name="reader"
            )
            images = fn.decoders.image_random_crop(
                files, device="cpu", output_type=types.RGB, random_area=list(SCALE), random_aspect_ratio=list(RATIO), num_attempts=10
            )
            images = fn.resize(images, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=True)
            mirror = fn.random.coin_flip(probability=0.5)
            return (
                fn.crop_mirror_normalize(images, dtype=types.FLOAT, output_layout="CHW", mean=MEAN_255, std=STD_255, mirror=mirror),
                numbers,
            )

        @pipeline_def(batch_size=BATCH, num_threads=THREADS, device_id=None, seed=1)
        def raw():
            names = [f"{number:05}.npy" for number in range(pictures.count)]
            images = fn.readers.numpy(
                file_root=str(folder), files=names, shuffle_after_epoch=True, pad_last_batch=True, name="reader", cache_header_information=True
            )
            across, down = (fn.random.uniform(range=[0.0, 1.0]) for _ in range(2))
            mirror = fn.random.coin_flip(probability=0.5)
            images = fn.reshape(images, layout="HWC")
            cut = fn.crop_mirror_normalize(
                images, dtype=types.UINT8, output_layout="CHW", crop=[SIZE, SIZE], crop_pos_x=across, crop_pos_y=down, mirror=mirror
            )
            return cut, fn.get_property(images, key="source_info")

        self.kind = kind
        self.loader = DALIGenericIterator(
            encoded() if kind == "jpeg" else raw(), ["image", "number"], reader_name="reader", last_batch_policy=LastBatchPolicy.DROP, auto_reset=True
        )

    def epoch(self):
        import torch

        for (batch,) in self.loader:
            numbers = batch["number"]
            if self.kind == "raw":
                numbers = torch.tensor([int(bytes(path).split(b"/")[-1].split(b".")[0]) for path in numbers.numpy()])
            yield batch["image"], numbers.flatten()


class Ffcv(Contestant):
    title, packages = "FFCV", ("ffcv", "numba")

    @staticmethod
    def prepare(pictures, folder):
        """With the bytes of the files: FFCV would encode them once more."""
        from ffcv.fields import IntField, RGBImageField, rgb_image
        from ffcv.writer import DatasetWriter
        from PIL import Image

        class Samples:
            def __init__(self, pixels):
                self.pixels = pixels

            def __len__(self):
                return pictures.count

            def __getitem__(self, number):
                return self.pixels(number), number

        def decoded(number):
            last["file"] = pictures.files[number]
            return np.asarray(Image.open(last["file"]).convert("RGB"))

        last = {}
        rgb_image.encode_jpeg = lambda image, quality: np.fromfile(last["file"], np.uint8)
        for kind, pixels, mode in (("jpeg", decoded, "jpg"), ("raw", pictures.rows.__getitem__, "raw")):
            fields = {"image": RGBImageField(write_mode=mode), "number": IntField()}
            DatasetWriter(str(folder / f"{kind}.beton"), fields, num_workers=1).from_indexed_dataset(Samples(pixels))

    def __init__(self, pictures, folder, kind):
        from ffcv.fields.basics import IntDecoder
        from ffcv.fields.decoders import RandomResizedCropRGBImageDecoder
        from ffcv.loader import Loader, OrderOption
        from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage

        # A cut without resizing is one of the area of 224 * 224 pixels; OpenCV copies it.
        area = (SIZE / RAW) ** 2
        cut = {"scale": SCALE, "ratio": RATIO} if kind == "jpeg" else {"scale": (area, area), "ratio": (1.0, 1.0)}
        image = [RandomResizedCropRGBImageDecoder((SIZE, SIZE), **cut), RandomHorizontalFlip()]
        if kind == "jpeg":
            image.append(NormalizeImage(np.array(MEAN_255), np.array(STD_255), np.float32))
        image += [ToTensor(), ToTorchImage(channels_last=False)]
        self.loader = Loader(
            str(folder / f"{kind}.beton"),
            batch_size=BATCH,
            num_workers=THREADS,
            os_cache=True,
            order=OrderOption.RANDOM,
            drop_last=True,
            pipelines={"image": image, "number": [IntDecoder(), ToTensor(), Squeeze()]},
        )

    def epoch(self):
        return iter(self.loader)


class Spdl(Contestant):
    """Its pipeline of threads around torchvision's functions, which leave the interpreter's lock."""

    title, packages = "SPDL, torchvision's functions", ("spdl", "torchvision", "torch")

    def __init__(self, pictures, folder, kind):
        import torch
        from torchvision.io import decode_jpeg, read_file
        from torchvision.transforms import v2

        self.pictures, self.numbers = pictures, np.random.default_rng(1)
        crop = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])
        normalise = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
        cut = v2.Compose([v2.RandomCrop(SIZE), v2.RandomHorizontalFlip()])
        files, rows = pictures.files, pictures.rows

        def encoded(numbers):
            return normalise(torch.stack([crop(decode_jpeg(read_file(files[number]), mode="RGB")) for number in numbers]))

        def raw(numbers):
            return torch.stack([cut(torch.from_numpy(rows[number]).permute(2, 0, 1)) for number in numbers])

        self.make = encoded if kind == "jpeg" else raw

    def epoch(self):
        import torch
        from spdl.pipeline import PipelineBuilder

        order = self.numbers.permutation(self.pictures.count)
        batches = [order[at : at + BATCH] for at in range(0, len(order) - BATCH + 1, BATCH)]
        made = lambda numbers: (self.make(numbers), torch.from_numpy(numbers))
        pipeline = PipelineBuilder().add_source(batches).pipe(made, concurrency=THREADS).add_sink(2 * THREADS).build(num_threads=THREADS)
        with pipeline.auto_stop():
            yield from pipeline


class SpdlFfmpeg(Spdl):
    """Its own decoder: FFmpeg, and FFmpeg's filters for the cut, the scale and the flip."""

    title, packages, kinds = "SPDL, FFmpeg", ("spdl", "spdl-io", "torch"), ("jpeg",)

    def __init__(self, pictures, folder, kind):
        import random

        import spdl.io
        import torch
        from torchvision.transforms import v2

        self.pictures, self.numbers = pictures, np.random.default_rng(1)
        normalise = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
        chance = random.Random(1)
        files = pictures.files

        def decoded(number):
            packets = spdl.io.demux_image(files[number])
            left, top, width, height = rectangle(packets.width, packets.height, chance)
            steps = f"crop={width}:{height}:{left}:{top}:exact=1,scale={SIZE}:{SIZE}:flags=bilinear"
            flip = ",hflip" if chance.random() < 0.5 else ""
            return spdl.io.decode_packets(packets, filter_desc=spdl.io.get_video_filter_desc(filter_desc=steps + flip, pix_fmt="rgb24"))

        def encoded(numbers):
            images = spdl.io.to_torch(spdl.io.convert_frames([decoded(number) for number in numbers]))
            return normalise(images.permute(0, 3, 1, 2).contiguous())

        self.make = encoded


def rectangle(width, height, chance):
    """That of RandomResizedCrop."""
    low, high = (float(np.log(ratio)) for ratio in RATIO)
    for _ in range(10):
        area, ratio = width * height * chance.uniform(*SCALE), np.exp(chance.uniform(low, high))
        across, down = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            return chance.randint(0, width - across), chance.randint(0, height - down), across, down
    across, down = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    return (width - across) // 2, (height - down) // 2, across, down


CONTESTANTS = {
    "shardd": Shardd,
    "torch_decode": Torchvision,
    "torch_codec": Torchcodec,
    "torch_pillow": Pillow,
    "dali": Dali,
    "ffcv": Ffcv,
    "spdl_torch": Spdl,
    "spdl_ffmpeg": SpdlFfmpeg,
}
