"""Specifications of all data sets in raysim: sizes, statistics, augmentation and names of their files."""

from __future__ import annotations

from dataclasses import dataclass

from raysim.common.inputs import InputSpec, image


@dataclass(frozen=True)
class Augment:
    """Augmentation of a training image after it is normalised, in this order: flip, erase, crop."""

    flip: bool = True
    """Mirror half of the images left to right."""
    erase: bool = False
    """Blank a random box (4 to 20 % of the area, aspect 0.5 to 2) in half of the images."""
    crop_padding: int = 0
    """Pad by this many pixels on every side, then crop to the image size at a random position; 0: do not crop."""


@dataclass(frozen=True)
class DatasetSpec:
    """One data set. `mean` and `std` are per channel of pixels in [0, 1], or per feature.

    They are empty for tokens, and for data without a test part, where the partition decides on the training samples.
    """

    name: str
    summary: str
    num_classes: int
    input_spec: InputSpec
    train_size: int
    """0 if the size is not published. All values that are not published are known only after the files are read."""
    test_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment
    folders: tuple[str, ...] = ()
    """Sub-folders of a data folder that may hold this data set."""
    image_columns: tuple[str, ...] = ("img", "image")
    """Parquet columns that may hold the image; the first one that exists is read."""
    label_columns: tuple[str, ...] = ("label",)
    test_prefixes: tuple[str, ...] = ("test",)
    """Possible beginnings of the names of Parquet files with the published test part; train files begin with
    `train`."""
    torchvision: str | None = None
    """Class in torchvision.datasets that can download and read the data set."""
    torchvision_folder: str | None = None
    """Folder of torchvision's files, below its root."""
    idx: bool = False
    """Whether the data set is published as IDX files, which torchvision downloads as they are."""
    image_folder: bool = False
    """Whether the data set is also published as image files in one folder per class."""
    keys: tuple[str, ...] = ()
    """Keys of the section `data` that describe a user's own files; empty for a published data set."""


@dataclass(frozen=True)
class Files:
    """Settings of a user's own files, from the section `data` of a scenario."""

    path: tuple[str, ...]
    """One file or folder, or two: the train part and the test part."""
    label: str = "label"
    """The column of the labels."""
    features: tuple[str, ...] = ()
    """The columns of the features, or patterns of them; (): all columns except label and id."""
    size: int | None = None
    """Side in pixels to which images are resized."""
    by: str | None = None
    """The column of the clients' ids."""


def of_files(
    name: str, summary: str = "", *, keys: tuple[str, ...] = (), folders: tuple[str, ...] = (), flip: bool = True
) -> DatasetSpec:
    """Return the specification of a data set whose sizes, shapes and statistics are only known from its files."""
    unknown = InputSpec("features", ())
    return DatasetSpec(name, summary, 0, unknown, 0, 0, (), (), Augment(flip=flip), folders, keys=keys)


_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

_ALL = (
    DatasetSpec(
        name="digits",
        summary=(
            "1,797 handwritten digits of 8 x 8 grey pixels that come with scikit-learn, without a download. "
            "There is no published test part, so the last 360 images are the test part."
        ),
        num_classes=10,
        input_spec=image(1, 8, 8),
        train_size=1437,
        test_size=360,
        mean=(0.3053,),
        std=(0.3760,),
        augment=Augment(flip=False, crop_padding=1),  # a mirrored digit is not a digit
    ),
    DatasetSpec(
        name="mnist",
        summary="MNIST: 70,000 handwritten digits of 28 x 28 grey pixels.",
        num_classes=10,
        input_spec=image(1, 28, 28),
        train_size=60_000,
        test_size=10_000,
        mean=(0.1307,),
        std=(0.3081,),
        augment=Augment(flip=False, crop_padding=2),  # a mirrored digit is not a digit
        folders=("mnist", "mnist/mnist"),  # the second folder occurs in a copy of the hub's repository
        torchvision="MNIST",
        torchvision_folder="MNIST/raw",
        idx=True,
    ),
    DatasetSpec(
        name="fashion_mnist",
        summary="Fashion-MNIST: 70,000 pieces of clothing of 28 x 28 grey pixels in 10 classes.",
        num_classes=10,
        input_spec=image(1, 28, 28),
        train_size=60_000,
        test_size=10_000,
        mean=(0.5071,),  # not the true mean, but the constant in the code of FedMRL, on which FedRAL builds
        std=(0.2673,),
        augment=Augment(erase=True, crop_padding=4),
        folders=("fashion_mnist", "fashion-mnist"),
        torchvision="FashionMNIST",
        torchvision_folder="FashionMNIST/raw",
        idx=True,
    ),
    DatasetSpec(
        name="cifar10",
        summary=(
            "CIFAR-10: 60,000 photographs of 32 x 32 colour pixels in 10 classes. They are normalised with ImageNet's "
            "mean and standard deviation, as in the released code of FedGH and FedSSA."
        ),
        num_classes=10,
        input_spec=image(3, 32, 32),
        train_size=50_000,
        test_size=10_000,
        mean=_IMAGENET_MEAN,  # not the true mean: the codes that build on FedGH's normalise with ImageNet's mean
        std=_IMAGENET_STD,
        augment=Augment(erase=True, crop_padding=4),
        folders=("cifar10", "cifar-10"),
        torchvision="CIFAR10",
        torchvision_folder="cifar-10-batches-py",
    ),
    DatasetSpec(
        name="cifar100",
        summary="CIFAR-100: 60,000 photographs of 32 x 32 colour pixels in 100 classes.",
        num_classes=100,
        input_spec=image(3, 32, 32),
        train_size=50_000,
        test_size=10_000,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        augment=Augment(erase=True, crop_padding=4),
        folders=("cifar100", "cifar-100"),
        label_columns=("fine_label", "label"),
        torchvision="CIFAR100",
        torchvision_folder="cifar-100-python",
    ),
    DatasetSpec(
        name="tiny_imagenet",
        summary=(
            "Tiny-ImageNet: 110,000 photographs of 64 x 64 colour pixels in 200 classes. "
            "The published validation images are the test part."
        ),
        num_classes=200,
        input_spec=image(3, 64, 64),
        train_size=100_000,
        test_size=10_000,
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        augment=Augment(crop_padding=8),
        folders=("tiny_imagenet", "tiny-imagenet", "tiny-imagenet-200"),
        # The published test part has no labels, so `valid-` and `validation-` files are the test part.
        test_prefixes=("valid", "val"),
        image_folder=True,
    ),
    of_files(
        "femnist",
        "FEMNIST: handwritten digits and letters of 28 x 28 grey pixels in 62 classes. The writer of each image is "
        "known. A folder femnist must contain LEAF's JSON files, or the Parquet files of the Hugging Face hub "
        "(flwrlabs/femnist).",
        folders=("femnist",),
        flip=False,  # a mirrored letter is another letter, or none
    ),
    of_files(
        "shakespeare",
        "Shakespeare: texts of 80 characters from the lines of a role in a play. The label is the next character. A "
        "folder shakespeare must contain LEAF's JSON files, or the CSV or Parquet files of the Hugging Face hub "
        "(flwrlabs/shakespeare).",
        folders=("shakespeare",),
    ),
    of_files(
        "parquet",
        "Your own Parquet files, such as a data set of the Hugging Face hub. The samples are a column of images, a "
        "column of lists (floats are features, whole numbers are tokens), or columns of numbers.",
        keys=("path", "label", "features", "size"),
    ),
    of_files("csv", "Your own CSV files: columns of numbers.", keys=("path", "label", "features")),
    of_files(
        "images",
        "Your own PNG and JPEG files: one folder per class. These folders may be inside two folders, train and test.",
        keys=("path", "size"),
    ),
    of_files(
        "numpy",
        "Your own .npz files with labels y and samples x: uint8 (images), floats (features) or whole numbers (tokens).",
        keys=("path",),
    ),
)

DATASETS: dict[str, DatasetSpec] = {spec.name: spec for spec in _ALL}
