"""The model's name in a multipart form."""

from __future__ import annotations

import pytest
from wake_router.form_model import find_model_in_form
from wake_router.model_name import UnusableBodyError

TYPE = "multipart/form-data; boundary=XyZ"


def form(*parts: tuple[str, bytes]) -> bytes:
    body = b"".join(
        b"--XyZ\r\nContent-Disposition: form-data; " + head.encode() + b"\r\n\r\n" + value + b"\r\n"
        for head, value in parts
    )
    return body + b"--XyZ--\r\n"


FILE = ('name="file"; filename="a.wav"', b'\x00\xff--Xy\r\nname="model"\r\n\r\nno')


def test_only_the_field_changes() -> None:
    body = form(FILE, ('name="model"', b"whisper"), ('name="x"', b"y"))
    named = find_model_in_form(TYPE, body)
    assert named.model == "whisper"
    assert named.with_model("big model") == form(FILE, ('name="model"', b"big model"), ('name="x"', b"y"))


def test_quoted_boundary_and_preamble() -> None:
    body = b"preamble\r\n" + form(('name="model"', b"m"))
    assert find_model_in_form('Multipart/Form-Data; charset=x; boundary="XyZ"', body).model == "m"


def test_stream_and_unquoted_name() -> None:
    named = find_model_in_form(TYPE, form(("name=model", b"m"), ('name="stream"', b"true")))
    assert (named.model, named.stream) == ("m", True)


def test_what_browsers_write_is_read() -> None:
    named = find_model_in_form(
        TYPE,
        form(
            ('name="file"; filename="a;b \\"c\\".wav"\r\nContent-Type: audio/wav', b"x"),
            ("name=\"file\"; filename*=UTF-8''%e2%82%ac.wav", b"x"),
            ('name="name=\\"model"', b"no"),
            ('name="model"\r\ncontent-type: text/plain; charset=utf-8', b"m"),
        ).replace(b"--XyZ\r\n", b"--XyZ \t\r\n"),
    )
    assert named.model == "m"


def test_a_file_called_model_is_no_model() -> None:
    with pytest.raises(UnusableBodyError, match="missing"):
        find_model_in_form(TYPE, form(('name="model"; filename="m"', b"m")))


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", form(('name="model"', b"m"))),
        (TYPE, b""),
        (TYPE, b"--XyZ"),
        (TYPE, b"--XyZ\r\n"),
        (TYPE, b"--other\r\n\r\n"),
        (TYPE, form(('name="model"', b"m"))[:-10]),
        (TYPE, b'--XyZ\r\nContent-Disposition: form-data; name="model"\r\n'),
        (TYPE, b'--XyZ\r\nContent-Disposition: form-data; name="model"\r\n\r\nm'),
        (TYPE, form(('name="model"', b""))),
        (TYPE, form(('name="model"', b"\xff"))),
        (TYPE, form(('name="x"', b"y\r\n--XyZ-"), ('name="model"', b"m"))),
        (TYPE, form(('name="model"', b"m"), ('name="x"', b"y\r\n--XyZabc"))),
        (TYPE, form(('name="model"', b"m"), ('nome="x"', b"y"))),
        (TYPE, form(('name="model"', b"m"), ('name="x', b"y"))),
        (TYPE, form(('name="model"', b"m"), ('name="x" filename="f"', b"y"))),
        (TYPE, form(('name="model"', b"m"), ('name="x"\r\nno header', b"y"))),
        (TYPE, form(('name="model"', b"m"), ('name="x"\r\nContent-Disposition: form-data; name="y"', b"y"))),
        (TYPE, form(('name="model"; name="x"', b"m"))),
        (TYPE, form(('name="model"', b"m"), ("", b"y"))),
        (TYPE, form(('name="model"', b"m")).replace(b"form-data", b"attachment")),
        (TYPE, b"--XyZ--"),
        (TYPE, b"--XyZ\r\n" + b"X-A: " + b"y" * 20_000 + b"\r\n\r\nm\r\n--XyZ--\r\n"),
    ],
)
def test_malformed(content_type: str, body: bytes) -> None:
    with pytest.raises(UnusableBodyError, match=r"\."):
        find_model_in_form(content_type, body)


def test_every_truncation_is_refused_or_whole() -> None:
    body = form(FILE, ('name="model"', b"whisper"))
    for length in range(len(body) - 4):
        with pytest.raises(UnusableBodyError):
            find_model_in_form(TYPE, body[:length])
