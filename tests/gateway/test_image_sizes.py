"""What a picture says of its size in its first bytes, and what it takes where that goes by its size (C1)."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from random import Random
from typing import Any

import pytest
from app_scene import chat, fake_engine, run, scene

from headworks.config.settings import PartPrices
from headworks.gateway.dialects.base import Limits, Parsed
from headworks.gateway.dialects.image_sizes import HEAD_CHARS, size_of
from headworks.gateway.dialects.parts import _image_tokens
from headworks.gateway.dialects.table import DIALECTS


def png(width: int, height: int) -> bytes:
    """A whole one of a single colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\x00" + bytes(-(-width // 8))) * height
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def segment(marker: int, data: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(data)) + data


def jpeg(width: int, height: int, *before: bytes, frame: int = 0xC0) -> bytes:
    """Its head up to the frame, and what stands before that."""
    of_frame = segment(frame, struct.pack(">BHHB", 8, height, width, 1) + b"\x01\x11\x00")
    return b"\xff\xd8" + b"".join(before) + of_frame + b"\xff\xda" + bytes(64)


def gif(width: int, height: int, *image: int, flags: int = 0x80, extensions: bytes = b"") -> bytes:
    place = image or (0, 0, width, height)
    colours = bytes(3 << ((flags & 7) + 1)) if flags & 0x80 else b""
    head = b"GIF89a" + struct.pack("<HHBBB", width, height, flags, 0, 0)
    return head + colours + extensions + b"\x2c" + struct.pack("<HHHHB", *place, 0) + bytes(16)


def webp(kind: bytes, rest: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 4 + 8 + len(rest)) + b"WEBP" + kind + struct.pack("<I", len(rest)) + rest + bytes(16)


def lossy(width: int, height: int) -> bytes:
    return webp(b"VP8 ", b"\x10\x02\x00\x9d\x01\x2a" + struct.pack("<HH", width | 1 << 14, height | 3 << 14))


def lossless(width: int, height: int) -> bytes:
    return webp(b"VP8L", b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14 | 1 << 28))


def extended(width: int, height: int) -> bytes:
    return webp(b"VP8X", bytes(4) + struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3])


def text(file: bytes) -> str:
    return base64.b64encode(file).decode()


THUMBNAIL = segment(0xE1, b"Exif\x00\x00" + jpeg(160, 120))
PROFILE = segment(0xE2, bytes(60_000))


@pytest.mark.parametrize(
    ("file", "size"),
    [
        (png(1, 1), (1, 1)),
        (png(1_920, 1_080), (1_920, 1_080)),
        (jpeg(640, 480), (640, 480)),
        (jpeg(640, 480, frame=0xC2), (640, 480)),
        (jpeg(4_000, 3_000, THUMBNAIL), (4_000, 3_000)),
        (jpeg(4_000, 3_000, THUMBNAIL, PROFILE, PROFILE, b"\xff\xff\xff"), (4_000, 3_000)),
        (jpeg(8, 16, segment(0xC4, b"table"), segment(0xDB, bytes(65)), b"\xff\x01"), (8, 16)),
        (gif(320, 200), (320, 200)),
        (gif(320, 200, flags=0), (320, 200)),
        (gif(320, 200, flags=0x87, extensions=b"\x21\xf9\x04\x00\x00\x00\x00\x00\x21\xfe\x03abc\x02de\x00"), (320, 200)),
        (gif(1, 1, 5, 0, 3_000, 2_000), (3_005, 2_000)),
        (lossy(800, 600), (800, 600)),
        (lossless(16_384, 3), (16_384, 3)),
        (extended(70_000, 2), (70_000, 2)),
    ],
    ids=range(14),
)
def test_C1_a_picture_says_its_size(file: bytes, size: tuple[int, int]) -> None:
    assert size_of(text(file)) == size
    assert size_of("data:image/png;base64," + text(file), 22) == size


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"\x89PNG",
        b"\x89PNG\r\n\x1a\n" + bytes(40),
        png(5, 5).replace(struct.pack(">II", 5, 5), struct.pack(">II", 0, 5)),
        png(5, 5)[:20],
        b"\xff\xd8",
        b"\xff\xd8" + segment(0xE0, bytes(9)),
        b"\xff\xd8\xff\xda" + jpeg(5, 5)[2:],
        b"\xff\xd8\xff\xe0\x00\x00" + jpeg(5, 5)[2:],
        b"\xff\xd8" + bytes(100),
        jpeg(5, 0),
        jpeg(5, 5, *[PROFILE] * 7),
        gif(5, 5)[:20],
        gif(5, 5, extensions=b"\x3b"),
        webp(b"VP9 ", bytes(20)),
        webp(b"VP8 ", bytes(20)),
        webp(b"VP8L", bytes(20)),
        b"RIFF\x00\x00\x00\x00WAVE" + bytes(40),
        b"<svg width='5' height='5'>" + bytes(40),
    ],
    ids=range(19),
)
def test_C1_a_file_that_says_nothing_that_can_be_believed_has_no_size(file: bytes) -> None:
    assert size_of(text(file)) is None


@pytest.mark.parametrize("odd", ["\n", " ", "!", "=", "ä"])
def test_C1_what_a_decoder_would_skip_hides_no_size(odd: str) -> None:
    """A character that is no base64 moves what comes after it: whose decoder skips it reads another file than we do."""
    for place in (0, 9, 1_500):
        data = text(jpeg(640, 480, segment(0xE0, bytes(4_000))))
        assert size_of(data) == (640, 480)
        assert size_of(data[:place] + odd + data[place:]) is None


@pytest.mark.parametrize("file", [png(900, 700), jpeg(900, 700, THUMBNAIL), gif(900, 700), lossy(900, 700), extended(900, 700)])
def test_C1_a_part_of_a_file_says_its_size_or_none(file: bytes) -> None:
    for cut in range(len(file)):
        assert size_of(text(file[:cut])) in (None, (900, 700))


def test_C1_a_file_made_of_nothing_but_steps_is_gone_through_for_a_while_only() -> None:
    """Half a megabyte of them would keep the loop for a tenth of a second; real files have some dozen."""
    assert size_of(text(jpeg(8, 8, b"\xff" * 4_000))) == (8, 8)
    assert size_of(text(jpeg(8, 8, *[segment(0xE0, b"")] * 4_000))) == (8, 8)
    assert size_of(text(jpeg(8, 8, b"\xff" * 5_000))) is None
    assert size_of(text(jpeg(8, 8, *[segment(0xE0, b"")] * 5_000))) is None
    for blocks, size in ((4_000, (8, 8)), (5_000, None)):
        assert size_of(text(gif(8, 8, extensions=b"\x21\xfe" + b"\x01a" * blocks + b"\x00"))) == size
    assert size_of(text(gif(8, 8, extensions=b"\x21\xfe\x00" * 5_000))) is None


@pytest.mark.parametrize(
    ("size", "tokens"),
    [((1, 1), 6), ((4_294_967_295, 4_294_967_295), 1_280), ((4_294_967_295, 1), 1_280), ((0, 1), 1_280), ((56, 28), 6)],
)
def test_C1_whatever_size_a_picture_claims_it_takes_no_less_than_the_least_and_no_more_than_the_most(
    size: tuple[int, int], tokens: int
) -> None:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0)
    assert _image_tokens("data:image/png;base64," + text(head + bytes(20)), 22, QWEN, 1_280) == tokens


def test_C1_no_bytes_at_all_make_it_stumble() -> None:
    """`pytest tests/gateway/test_image_sizes.py -k stumble`: seed 61."""
    random, files = Random(61), [png(9, 9), jpeg(9, 9, THUMBNAIL), gif(9, 9), lossy(9, 9), lossless(9, 9), extended(9, 9)]
    for _ in range(5_000):
        file = bytearray(random.choice(files))
        for _ in range(random.randrange(4)):
            file[random.randrange(len(file))] = random.randrange(256)
        del file[random.randrange(len(file) + 1) :]
        size = size_of(text(bytes(file)))
        assert size is None or min(size) > 0


# what it takes

QWEN = PartPrices(image_tokens=1_280, image_tile_px=28, image_base_tokens=2, image_least_tokens=6, images_max=8)
TILES = PartPrices(
    image_tokens=1_105, image_low_tokens=85, image_tile_px=512, image_tile_tokens=170, image_base_tokens=85, images_max=8
)


def tokens(file: bytes, prices: PartPrices, kind: str = "png", **more: Any) -> int:
    part = {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{text(file)}", **more}}
    body = {"model": "m", "messages": [{"role": "user", "content": [part]}]}
    found = DIALECTS["/v1/chat/completions"].parse(json.dumps(body).encode(), Limits(context_tokens=4_096, parts={"m": prices}))
    assert isinstance(found, Parsed), found
    return found.parts.tokens


def test_C1_an_image_takes_what_its_squares_take_and_never_more_than_the_most() -> None:
    assert tokens(png(280, 56), QWEN) == 2 + 10 * 2
    assert tokens(png(281, 57), QWEN) == 2 + 11 * 3, "a part of a square as the whole"
    assert tokens(png(3, 3), QWEN) == 6, "a model makes the smallest larger"
    assert tokens(png(4_000, 4_000), QWEN) == 1_280
    assert tokens(png(512, 513), TILES) == 85 + 2 * 170
    assert tokens(png(2_048, 2_048), TILES) == 1_105
    assert tokens(png(2_048, 2_048), TILES, detail="low") == 85


def test_C1_a_size_that_is_not_told_is_the_largest_and_a_type_is_what_the_bytes_say() -> None:
    assert tokens(png(28, 28)[:20], QWEN) == 1_280
    assert tokens(jpeg(280, 28), QWEN, kind="png") == 2 + 10
    assert tokens(png(28, 28), PartPrices(image_tokens=500, images_max=1)) == 500, "no rule by size"


def test_C1_the_head_alone_is_read() -> None:
    """A picture of 12 MB costs what one of 1 kB does: no more of it than the last step is ever decoded."""
    assert size_of(text(png(640, 480) + bytes(9_000_000))) == (640, 480)
    assert HEAD_CHARS[-1] <= 524_288


def test_C1_both_other_dialects_price_by_size_too() -> None:
    limits = Limits(context_tokens=4_096, parts={"m": QWEN})
    uri = "data:image/gif;base64," + text(gif(280, 28))
    item = {"role": "user", "content": [{"type": "input_image", "image_url": uri}]}
    found = DIALECTS["/v1/responses"].parse(json.dumps({"model": "m", "input": [item]}).encode(), limits)
    assert isinstance(found, Parsed) and found.parts == (12, len(uri))
    source = {"type": "base64", "media_type": "image/webp", "data": text(lossy(280, 56))}
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}
    found = DIALECTS["/v1/messages"].parse(json.dumps(body).encode(), limits)
    assert isinstance(found, Parsed) and found.parts == (22, len(source["data"]))


def test_C1_the_rule_of_the_file_is_the_one_in_force() -> None:
    """From configuration to what is reserved; the engine's own count, 64 an image here, is what is settled."""
    rules = {"tiny": {"image": {"tokens": 1_280, "tile_px": 28, "tokens_base": 2}}}

    async def steps() -> None:
        async with scene(fake_engine(part_tokens=64), models=rules) as s:
            for file, reserved in ((png(280, 56), 22), (jpeg(2_800, 28), 102), (b"no picture", 1_280)):
                part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + text(file)}}
                answer = await s.ask(chat(messages=[{"role": "user", "content": [part]}], tokens=5))
                assert answer.status == 200, answer.body
                await s.settled()
                outcome = s.everything("outcome")[-1]
                assert outcome["work"]["prefill_tokens"] == reserved + 8 + 32, "the image, its message's role and its template"
                assert outcome["usage"]["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"] == 64 + 2

    run("uvloop", steps())
