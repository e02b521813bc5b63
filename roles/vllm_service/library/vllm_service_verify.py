#!/usr/bin/python
"""Ansible module: ask every service a real question through the front door."""

from __future__ import annotations

import json
import math
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: vllm_service_verify
short_description: Ask every service a real question through the front door
description:
  - Sends one request per service to the router's public listener, as any client would, and checks that the
    answer has content. Honest 503 answers are waited for as their Retry-After says.
  - Nothing is changed on the box, except that sleeping services wake for the question.
options:
  endpoint:
    description: Address of the front door, such as C(http://127.0.0.1:8000).
    type: str
    required: true
  services:
    description: The services to ask.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: The service's name.
        type: str
        required: true
      model:
        description: The model name to send.
        type: str
        required: true
      task:
        description: What the engine does; decides which question is asked.
        type: str
        choices: [generate, embed, rerank]
        required: true
  api_key:
    description: The key to present, where the front door asks for one.
    type: str
    default: ""
  certificate:
    description: The PEM text of the certificate that the front door has to show, whatever name it is for.
    type: str
    default: ""
  timeout_seconds:
    description: How long one service may take to answer, waking included.
    type: int
    default: 600
"""

EXAMPLES = r"""
- name: Ask the text service
  vllm_service_verify:
    endpoint: http://127.0.0.1:8000
    services:
      - {name: text, model: SmolLM2-135M-Instruct, task: generate}
"""

RETURN = r"""
answers:
  description: What each service answered, one sentence each.
  returned: success
  type: dict
  sample: {text: The capital of France is Paris.}
said:
  description: The same as lines for people.
  returned: success
  type: list
  elements: str
  sample: ["text answers: The capital of France is Paris."]
"""

QUESTION = "What is the capital of France?"
SENTENCES = ("A cat sits on the mat.", "A kitten rests on the rug.", "Quarterly revenue grew by ten percent.")
LONGEST_PAUSE_SECONDS = 10.0


class VerificationError(Exception):
    """Why a service could not be verified: one sentence."""


class KeyNeededError(Exception):
    """The front door asks for a key, and none was given."""


@dataclass(frozen=True)
class FrontDoor:
    """Where to ask, and what to show and expect there."""

    endpoint: str
    api_key: str = ""
    certificate: str = ""

    def request(self, path: str, body: bytes) -> urllib.request.Request:
        """A POST as any client would send it."""
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return urllib.request.Request(self.endpoint + path, data=body, headers=headers)

    def context(self) -> ssl.SSLContext | None:
        """Trusts this very certificate and no other. The box is asked as 127.0.0.1, so its name can't be
        checked."""
        if not self.certificate:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=self.certificate)
        return context


def question(service: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The path and body of the request that suits the service's task."""
    model = service["model"]
    if service["task"] == "embed":
        return "/v1/embeddings", {"model": model, "input": list(SENTENCES)}
    if service["task"] == "rerank":
        return "/v1/rerank", {"model": model, "query": SENTENCES[0], "documents": list(SENTENCES[1:])}
    messages = [{"role": "user", "content": QUESTION}]
    return "/v1/chat/completions", {"model": model, "messages": messages, "temperature": 0, "max_tokens": 64}


def cosine(left: list[float], right: list[float]) -> float:
    """Cosine of the angle between two vectors; raises VerificationError for what has no direction."""
    norm = math.sqrt(math.fsum(x * x for x in left)) * math.sqrt(math.fsum(x * x for x in right))
    if not norm or not math.isfinite(norm):
        raise VerificationError("the embeddings are zero or not finite")
    return math.fsum(x * y for x, y in zip(left, right, strict=True)) / norm


def read_embeddings(answer: dict[str, Any]) -> str:
    """Says how alike the sentences are; raises VerificationError when the alike ones aren't."""
    first, similar, unlike = (item["embedding"] for item in answer["data"])
    near, far = cosine(first, similar), cosine(first, unlike)
    if near <= far:
        raise VerificationError(f"'{SENTENCES[2]}' ({far:.2f}) is as near as '{SENTENCES[1]}' ({near:.2f})")
    alike = f"'{SENTENCES[0]}' and '{SENTENCES[1]}' are alike ({near:.2f})"
    return f"{alike}; '{SENTENCES[2]}' is not ({far:.2f})."


def read_scores(answer: dict[str, Any]) -> str:
    """Says the scores of a reranker; raises VerificationError when one isn't finite."""
    scores = {item["index"]: float(item["relevance_score"]) for item in answer["results"]}
    if not all(math.isfinite(score) for score in scores.values()):
        raise VerificationError("its scores are not finite")
    return f"'{SENTENCES[1]}' scores {scores[0]:.2f}, '{SENTENCES[2]}' {scores[1]:.2f}."


def read_text(answer: dict[str, Any]) -> str:
    """The text of a chat answer; raises VerificationError for none and for the '!!!!' of bad weights."""
    message = answer["choices"][0]["message"]
    texts = (message.get(key) for key in ("content", "reasoning_content", "reasoning"))
    text: str = next((text for text in texts if text), "").strip()
    if not text.strip("!"):
        raise VerificationError(f"its answer to '{QUESTION}' has no content: '{text[:80]}'")
    return text


READERS = {"generate": read_text, "embed": read_embeddings, "rerank": read_scores}


def read_answer(task: str, answer: dict[str, Any]) -> str:
    """The answer as a sentence for people; raises VerificationError when it says nothing."""
    try:
        return READERS[task](answer)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        form = json.dumps(answer)[:200]
        raise VerificationError(f"its answer has not the expected form ({form})") from error


def post(door: FrontDoor, path: str, body: dict[str, Any], deadline: float) -> dict[str, Any]:
    """The JSON answer to a POST; waits as told by 503 answers until the (monotonic) deadline.

    Raises VerificationError, or KeyNeededError where a key is asked for that nobody gave.
    """
    data = json.dumps(body).encode()
    context = door.context()
    last = "no answer"
    while (remaining := deadline - time.monotonic()) > 0:
        request = door.request(path, data)
        try:
            with urllib.request.urlopen(request, timeout=remaining, context=context) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except urllib.error.HTTPError as error:
            text = error.read(10_000).decode(errors="replace")
            if error.code == 401 and not door.api_key:
                raise KeyNeededError from error
            if error.code != 503:
                raise VerificationError(f"it answers {error.code}: {text[:300]}") from error
            last = f"503: {text[:300]}"
            pause = float(error.headers.get("Retry-After") or 1)
        except (urllib.error.URLError, OSError) as error:
            last = f"no connection ({getattr(error, 'reason', error)})"
            pause = 1.0
        except json.JSONDecodeError as error:
            raise VerificationError("its answer is not JSON") from error
        time.sleep(min(pause, LONGEST_PAUSE_SECONDS, max(deadline - time.monotonic(), 0)))
    raise VerificationError(f"it did not answer in time; last: {last}")


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "endpoint": {"type": "str", "required": True},
            "services": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "name": {"type": "str", "required": True},
                    "model": {"type": "str", "required": True},
                    "task": {"type": "str", "required": True, "choices": ["generate", "embed", "rerank"]},
                },
            },
            "api_key": {"type": "str", "default": "", "no_log": True},
            "certificate": {"type": "str", "default": ""},
            "timeout_seconds": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False, answers={}, said=[], msg="Not asked: this run changes nothing.")
    try:
        ask_all(module)
    except ssl.SSLError as error:
        module.fail_json(msg=f"The certificate to expect (router_tls_certificate) can't be used: {error}")


def ask_all(module: AnsibleModule) -> None:
    """Ask every service, and end the module with the answers or with all problems."""
    given = module.params
    door = FrontDoor(given["endpoint"], given["api_key"], given["certificate"])
    answers: dict[str, str] = {}
    unasked: list[str] = []
    problems: list[str] = []
    for service in module.params["services"]:
        path, body = question(service)
        deadline = time.monotonic() + module.params["timeout_seconds"]
        try:
            answers[service["name"]] = read_answer(service["task"], post(door, path, body, deadline))
        except KeyNeededError:
            unasked.append(service["name"])
        except VerificationError as error:
            problems.append(f"The service '{service['name']}' does not work through the front door: {error}.")
    if problems:
        problems.append("Look at the logs: docker logs of the service's container and of the router's.")
        module.fail_json(msg="\n".join(problems), answers=answers)
    said = [f"{name} answers: {answer}" for name, answer in answers.items()]
    if unasked:
        said.append(
            f"Not asked through the front door: {', '.join(unasked)}. It wants a key, and this run knows "
            "only digests; set vllm_service_verify_key to one of them."
        )
    module.exit_json(changed=False, answers=answers, said=said)


if __name__ == "__main__":
    main()
