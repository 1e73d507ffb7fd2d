"""Reads uploaded images within limits on bytes, pixels and time."""

import io
import time

from PIL import Image, ImageFile

from lambdanets.data.images import UnreadableImage, read_image

MAX_BYTES = 32 * 2**20
MAX_PIXELS = 5_000_000
MAX_SIDE = 20_000  # an image of 1 x 5,000,000 pixels would be thousands of tiles
MAX_SECONDS = 5.0
_BLOCK = 4096  # bytes that a decoder gets at once


def read_upload(
    content: bytes, name: str, channel: int | None = None, stretch: bool = False, max_seconds: float = MAX_SECONDS
) -> Image.Image:
    """Read an uploaded image by `read_image`, which has the same arguments.

    max_seconds: time limit for decoding, checked at each block that the decoder reads.

    The format and the number of pixels are checked before the pixels are decoded, the sides after. Raises
    UnreadableImage with one sentence about the file.
    """
    file = _TimedBytes(content, max_seconds)
    image = read_image(file, name, channel=channel, stretch=stretch, max_pixels=MAX_PIXELS)
    if max(image.size) > MAX_SIDE:
        raise UnreadableImage(name, f"it is {image.width} x {image.height} pixels, more than {MAX_SIDE:,} on a side")
    return image


class _TimedBytes(io.BytesIO):
    """A file in memory that raises TimeoutError if it is read too late: small files may need minutes to decode."""

    def __init__(self, content: bytes, max_seconds: float) -> None:
        super().__init__(content)
        self.max_seconds = max_seconds
        self.deadline = time.monotonic() + max_seconds

    def read(self, size: int | None = -1, /) -> bytes:
        if time.monotonic() > self.deadline:
            raise TimeoutError(f"decoding it takes more than {self.max_seconds:g} seconds")
        # decoders request MAXBLOCK bytes, which may be the whole file
        return super().read(_BLOCK if size == ImageFile.MAXBLOCK else size)
