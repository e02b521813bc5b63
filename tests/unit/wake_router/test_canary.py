"""The canary tells garbage from health, and leaves rounding alone."""

from __future__ import annotations

import base64
import email
import io
import math
import struct
import wave
import zlib
from typing import Any

import pytest
from wake_router import canary
from wake_router.canary import Answer, degeneracy, difference, read_answer, requests_for

TEXT = Answer(
    "generate",
    (tuple(-0.1 * number for number in range(1, 40)), (-0.5, -0.2, -1.0)),
    ("he", " wrote", " it"),
)
EMBED = Answer("embed", ((1.0, 0.0, 0.2), (0.9, 0.1, 0.1), (0.0, 1.0, 0.0)))
RERANK = Answer("rerank", ((0.9, 0.5, 0.01),))
CLASSIFY = Answer("classify", ((0.9, 0.1), (0.9, 0.1), (0.2, 0.8)))


def shifted(answer: Answer, by: float) -> Answer:
    return Answer(
        answer.kind, tuple(tuple(value + by for value in row) for row in answer.rows), answer.tokens
    )


@pytest.mark.parametrize("answer", [TEXT, EMBED, RERANK, CLASSIFY])
def test_healthy_answers(answer: Answer) -> None:
    assert degeneracy(answer) is None
    assert difference(answer, answer) is None
    assert difference(answer, shifted(answer, 0.01)) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("answer", [TEXT, EMBED, RERANK, CLASSIFY])
def test_not_finite(answer: Answer, bad: float) -> None:
    rows = ((bad, *answer.rows[0][1:]), *answer.rows[1:])
    assert "NaN" in (degeneracy(Answer(answer.kind, rows, answer.tokens)) or "")


@pytest.mark.parametrize(
    "answer",
    [
        Answer("generate", (TEXT.rows[0], (-0.1,) * 3), ("!", "!", "!")),
        Answer("generate", ((-11.5,) * 39, TEXT.rows[1]), TEXT.tokens),
        Answer("generate", ((), ()), ()),
        Answer("embed", ((0.0, 0.0), (0.0, 0.0))),
        Answer("embed", ((0.5, 0.5), (0.5, 0.5))),
        Answer("rerank", ((0.5, 0.5, 0.5),)),
        Answer("rerank", ((),)),
        Answer("classify", ((0.0, 0.0), (0.9, 0.1))),
        Answer("classify", ()),
        Answer("transcript", (), ("!!!!",)),
    ],
)
def test_degenerate(answer: Answer) -> None:
    assert degeneracy(answer)


@pytest.mark.parametrize(
    ("expected", "answer"),
    [
        (TEXT, shifted(TEXT, -2.0)),
        (TEXT, Answer("generate", (TEXT.rows[0][:-1], TEXT.rows[1]), TEXT.tokens)),
        (TEXT, Answer("generate", (TEXT.rows[0], (-4.0, -5.0, -3.0)), ("x", "y", "z"))),
        (EMBED, Answer("embed", (EMBED.rows[2], EMBED.rows[1], EMBED.rows[0]))),
        (EMBED, Answer("embed", EMBED.rows[:2])),
        (RERANK, Answer("rerank", ((0.01, 0.5, 0.9),))),
        (CLASSIFY, Answer("classify", (*CLASSIFY.rows[:2], (0.4, 0.6)))),
        (CLASSIFY, Answer("rerank", ((0.9, 0.9, 0.2),))),
        (TEXT, EMBED),
    ],
)
def test_different(expected: Answer, answer: Answer) -> None:
    assert difference(expected, answer)


def test_other_tokens_of_the_same_likelihood_are_rounding() -> None:
    assert difference(TEXT, Answer("generate", TEXT.rows, ("he", " put", " it"))) is None


def test_answers_are_read() -> None:
    choice: dict[str, Any] = {
        "prompt_logprobs": [None, {"1": {"logprob": -0.5}, "2": {"logprob": -2.0}}, {"3": {"logprob": -0.1}}],
        "logprobs": {"token_logprobs": [-0.3], "tokens": [" a"]},
    }
    answer = read_answer("generate", {"choices": [choice]})
    assert answer == Answer("generate", ((-2.0, -0.1), (-0.3,)), (" a",))
    assert read_answer("embed", {"data": [{"embedding": [1, 2]}]}) == Answer("embed", ((1.0, 2.0),))
    assert read_answer("rerank", {"data": [{"score": 0.5}]}) == Answer("rerank", ((0.5,),))


@pytest.mark.parametrize(
    "document", [{}, {"choices": []}, {"choices": [{}]}, None, [], {"data": [{}]}, {"data": 1}]
)
@pytest.mark.parametrize("task", ["generate", "embed", "rerank"])
def test_another_shape_is_a_value_error(task: str, document: Any) -> None:
    with pytest.raises(ValueError, match="shape"):
        read_answer(task, document)


def test_an_engine_that_gives_no_log_probabilities_is_asked_without_next() -> None:
    bodies = [body for _, body in requests_for("generate", "m", plain=False)]
    assert ["logprobs" in body for body in bodies] == [True, True, False, False]
    assert not any("logprobs" in body for _, body in requests_for("generate", "m", plain=True))


def test_a_classifier_is_asked_for_its_labels_where_it_has_no_score() -> None:
    assert [path for path, _ in requests_for("rerank", "m", plain=False)] == ["/score", "/classify"]
    document = {"data": [{"label": "a", "probs": [0.9, 0.1]}, {"label": "b", "probs": [0.2, 0.8]}]}
    assert read_answer("rerank", document) == Answer("classify", ((0.9, 0.1), (0.2, 0.8)))


def test_a_transcript_may_be_empty_and_is_compared_as_text() -> None:
    silence = read_answer("generate", {"text": ""})
    assert silence == Answer("transcript", (), ("",))
    assert degeneracy(silence) is None
    assert difference(silence, silence) is None
    assert difference(silence, read_answer("generate", {"text": "zq zq zq"}))


def test_the_sound_is_a_form_with_the_same_file_each_time() -> None:
    path, content_type, body = canary.sound_request("m")
    assert (path, canary.sound_request("m")[2]) == ("/v1/audio/transcriptions", body)
    message = email.message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    parts = {str(part.get_param("name", header="content-disposition")): part for part in message.walk()}
    assert parts["model"].get_payload() == "m"
    assert parts["file"].get_filename() == "canary.wav"
    with wave.open(io.BytesIO(canary.sound())) as file:
        assert (file.getframerate(), file.getnchannels()) == (16000, 1)
        samples = struct.unpack("<32000h", file.readframes(32000))
    assert max(samples) > 5000 > -5000 > min(samples)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("task", ["generate", "embed", "rerank"])
def test_the_model_is_named(task: str, plain: bool) -> None:
    assert all(body["model"] == "m" for _, body in requests_for(task, "m", plain))


def test_without_log_probabilities_the_text_is_compared() -> None:
    plain = read_answer("generate", {"choices": [{"text": " wrote it down", "logprobs": None}]})
    assert plain == Answer("plain", (), (" wrote it down",))
    assert degeneracy(plain) is None
    assert degeneracy(Answer("plain", (), ("!!!!",)))
    assert degeneracy(Answer("plain", (), ("",)))
    assert difference(plain, Answer("plain", (), (" wrote it up",))) is None
    assert difference(plain, Answer("plain", (), ("zzz qqq xyx",)))


def described(*tokens: str, logprob: float = -0.2) -> Answer:
    content = [{"token": token, "logprob": logprob - 0.01 * at} for at, token in enumerate(tokens)]
    return canary.read_image_answer({"choices": [{"logprobs": {"content": content}}]})


DISC = ("A", " red", " circle", " on", " a", " blue", " and", " green", " ground", ".")


@pytest.mark.parametrize(
    ("answer", "sound"),
    [
        (described(*DISC), True),
        (described(*DISC[:5], " teal", " background", " that", " fades"), True),
        (described("A", " bright", " dot", " in", " front", " of", " colours"), True),
        (described("The", " image", " is", " blank", ",", " with", " nothing"), False),
        (described("A", " x", " y", " z", logprob=-3.0), False),
    ],
)
def test_descriptions_of_the_picture(answer: Answer, sound: bool) -> None:
    assert (canary.difference(described(*DISC), answer) is None) is sound


def test_a_description_can_be_degenerate() -> None:
    assert canary.degeneracy(described(*DISC)) is None
    assert canary.degeneracy(described("!", "!", "!")) is not None
    assert canary.degeneracy(described("A", " dot", logprob=float("nan"))) is not None
    assert canary.degeneracy(described()) is not None


@pytest.mark.parametrize("document", [{}, {"choices": []}, {"choices": [{"logprobs": None}]}, None])
def test_a_description_of_another_shape_is_said(document: object) -> None:
    with pytest.raises(ValueError, match="another shape"):
        canary.read_image_answer(document)


def test_the_picture_is_a_png_and_always_the_same() -> None:
    head, _, data = canary.image_url().partition(",")
    assert head == "data:image/png;base64"
    png = base64.b64decode(data)
    assert png.startswith(b"\x89PNG")
    length = struct.unpack(">I", png[33:37])[0]
    assert png[37:41] == b"IDAT"
    pixels = zlib.decompress(png[41 : 41 + length])
    assert len(pixels) == canary.IMAGE_SIDE_PIXELS * (1 + 3 * canary.IMAGE_SIDE_PIXELS)
    middle = canary.IMAGE_SIDE_PIXELS // 2
    at = middle * (1 + 3 * canary.IMAGE_SIDE_PIXELS) + 1 + 3 * middle
    assert tuple(pixels[at : at + 3]) == (220, 30, 30)
