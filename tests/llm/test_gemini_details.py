"""Details of Gemini's answers: each is read alike from a plain answer and from a stream, over a
socket, and the next request carries the answer back."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from holdfast.answer import Citation, ServerToolCall, TextPart, TokenLogprob
from holdfast.content import (
    AudioContent,
    FileContent,
    ImageContent,
    ResourceLink,
    ToolResult,
    Usage,
)
from holdfast.llm import LLM, Completion, Transcript
from tests.model_server import ModelServer

PNG = b"\x89PNG fake"


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def body(*parts: dict[str, Any], finish: str = "STOP", **more: Any) -> dict[str, Any]:
    """Return an answer with these parts; `more` are fields of its candidate, or of the answer."""
    outer = {
        key: more.pop(key) for key in ("usageMetadata", "modelStatus", "createTime") & more.keys()
    }
    content = {"parts": list(parts), "role": "model"}
    return {
        "candidates": [{"content": content, "finishReason": finish, "index": 0, **more}],
        "modelVersion": "gemini-test",
        "responseId": "r1",
        **outer,
    }


def stream_of(whole: dict[str, Any]) -> str:
    """Return the answer as a stream: each part in a chunk, texts in two, then the rest without a
    part."""
    [candidate] = whole["candidates"]
    pieces: list[dict[str, Any]] = []
    for part in candidate["content"]["parts"]:
        text = part.get("text", "")
        if len(text) > 1 and "thoughtSignature" not in part:
            half = len(text) // 2
            pieces += [{**part, "text": text[:half]}, {**part, "text": text[half:]}]
        else:
            pieces.append(part)
    chunks = [
        {"candidates": [{"content": {"parts": [piece], "role": "model"}}]} for piece in pieces
    ]
    last = {**candidate, "content": {"parts": [{"text": ""}], "role": "model"}}
    chunks.append({**whole, "candidates": [last]})
    return "".join(f"data: {json.dumps(chunk)}\r\n\r\n" for chunk in chunks)


def read_both_ways(whole: dict[str, Any], native: bool = True) -> Completion:
    """Return the answer, after it was read both ways with one result and went back in a request."""
    answers: list[Completion] = []
    for stream in (False, True):
        replies: list[Any] = [stream_of(whole) if stream else whole, body({"text": "done"})]
        if stream:
            replies[1] = stream_of(replies[1])
        with ModelServer(replies) as server:
            llm = LLM("gemini-3-pro", "k", server.url, wire="gemini", stream=stream, max_retries=0)
            transcript = Transcript.from_messages("go")
            answer = llm.completion(transcript)
            transcript.append(answer)
            for call in answer.calls:
                transcript.append((call, ToolResult("ok")))
            transcript.say("on")
            assert llm.completion(transcript).text == "done"
            part = server.requests[1].json["contents"][1]
        if native:
            assert part["parts"] == whole["candidates"][0]["content"]["parts"]
        assert Completion.from_json(answer.to_json()) == answer
        answers.append(answer)
    plain, streamed = answers
    assert plain.details == streamed.details
    assert (plain.text, plain.calls, plain.usage) == (streamed.text, streamed.calls, streamed.usage)
    return plain


# --- sources ---

TEXT = "Grüße: Spain won. “Euro” 2024 🎉 ended 2÷1."


def segment(quote: str, **more: Any) -> dict[str, Any]:
    """Return a segment of `TEXT`, with indexes that count bytes."""
    start = len(TEXT[: TEXT.index(quote)].encode())
    return {"startIndex": start, "endIndex": start + len(quote.encode()), "text": quote, **more}


WEB = [
    {"web": {"uri": "https://a.example", "title": "A", "domain": "a.example"}},
    {"web": {"uri": "https://b.example", "title": "B"}},
    {"web": {"uri": "https://c.example", "title": "C"}},
]


def test_sources_cite_characters_of_the_text() -> None:
    answer = read_both_ways(
        body(
            {"text": TEXT},
            groundingMetadata={
                "webSearchQueries": ["euro 2024"],
                "groundingChunks": WEB,
                "groundingSupports": [
                    {
                        "segment": segment("Spain won."),
                        "groundingChunkIndices": [0, 1],
                        "confidenceScores": [0.9, 0.4],
                    },
                    {"segment": segment("🎉 ended 2÷1."), "groundingChunkIndices": [1]},
                ],
                "searchEntryPoint": {"renderedContent": "<div/>"},
            },
        )
    )
    spans = [(one.url, TEXT[one.start : one.end]) for one in answer.citations[:3]]
    assert spans == [
        ("https://a.example", "Spain won."),
        ("https://b.example", "Spain won."),
        ("https://b.example", "🎉 ended 2÷1."),
    ]
    assert answer.citations[0].title == "A"
    assert answer.citations[0].details == {"domain": "a.example", "confidenceScore": 0.9}
    assert answer.citations[3] == Citation("https://c.example", "C")  # supports no segment
    assert answer.server_calls == (
        ServerToolCall(
            "google_search",
            arguments={"queries": ["euro 2024"]},
            output=[chunk["web"] for chunk in WEB],
        ),
    )
    entry = {"searchEntryPoint": {"renderedContent": "<div/>"}}
    assert answer.provider_details == {"groundingMetadata": entry}


def test_a_segment_counts_from_its_part_or_from_the_text_whichever_its_words_say() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "1"}}
    parts = [{"text": "Ünited "}, code, {"text": "Überall so"}]
    text = "Ünited Überall so"
    for start, quote, more in (
        (0, "Überall", {"partIndex": 2}),
        (8, "Überall", {}),
        (3, "Überall", {}),  # neither: the nearest occurrence
        (0, "Ünited", {}),
    ):
        answer = read_both_ways(
            body(
                *parts,
                groundingMetadata={
                    "groundingChunks": WEB[:1],
                    "groundingSupports": [
                        {
                            "segment": {
                                "startIndex": start,
                                "endIndex": start + len(quote.encode()),
                                "text": quote,
                                **more,
                            },
                            "groundingChunkIndices": [0],
                        }
                    ],
                },
            )
        )
        [citation] = answer.citations
        assert text[citation.start : citation.end] == quote


def test_of_equal_words_the_part_decides() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "1"}}
    place = {"partIndex": 2, "startIndex": 0, "endIndex": 2, "text": "so"}
    answer = read_both_ways(
        body(
            {"text": "so, so. "},
            code,
            {"text": "so"},
            groundingMetadata={
                "groundingChunks": WEB[:1],
                "groundingSupports": [{"segment": place, "groundingChunkIndices": [0]}],
            },
        )
    )
    assert (answer.citations[0].start, answer.citations[0].end) == (8, 10)


@pytest.mark.parametrize(
    "place",
    [
        {"startIndex": 0, "endIndex": 99},
        {"startIndex": 5, "endIndex": 2},
        {"startIndex": "x", "endIndex": None},
        {"endIndex": 4, "text": "other words"},
        {},
    ],
)
def test_a_segment_that_fits_nothing_has_no_offsets(place: dict[str, Any]) -> None:
    support = {"segment": place, "groundingChunkIndices": [0, 7, "x"]}
    metadata = {"groundingChunks": WEB[:1], "groundingSupports": [support]}
    [citation] = read_both_ways(body({"text": "short"}, groundingMetadata=metadata)).citations
    assert (citation.url, citation.start, citation.end) == ("https://a.example", None, None)


def test_sources_that_are_files_and_places() -> None:
    chunks = [
        {
            "retrievedContext": {
                "text": "The rule.",
                "title": "rules.pdf",
                "fileSearchStore": "fileSearchStores/1",
                "pageNumber": 3,
            }
        },
        {"maps": {"uri": "https://maps", "title": "Café", "placeId": "places/1"}},
        {"image": {"sourceUri": "https://page", "imageUri": "https://page/a.png", "title": "P"}},
    ]
    answer = read_both_ways(body({"text": "a"}, groundingMetadata={"groundingChunks": chunks}))
    rule, place, picture = answer.citations
    assert (rule.title, rule.quote, rule.source) == ("rules.pdf", "The rule.", "fileSearchStores/1")
    assert rule.details["pageNumber"] == 3
    assert (place.url, place.source) == ("https://maps", "places/1")
    assert (picture.url, picture.details) == ("https://page", {"imageUri": "https://page/a.png"})
    assert {call.name for call in answer.server_calls} == {
        "file_search",
        "google_maps",
        "google_search",
    }


@pytest.mark.parametrize("name", ["citationSources", "citations"])
def test_recognized_quotations_are_sources_on_both_hosts(name: str) -> None:
    place = segment("Spain won.")
    listed = [{**place, "uri": "https://a", "title": "T", "license": "MIT"}]
    for one in listed:
        del one["text"]
    [citation] = read_both_ways(body({"text": TEXT}, citationMetadata={name: listed})).citations
    assert (citation.url, citation.title, citation.details) == (
        "https://a",
        "T",
        {"license": "MIT"},
    )
    assert TEXT[citation.start : citation.end] == "Spain won."


def test_sources_of_several_chunks_keep_their_supports() -> None:
    """Each chunk of a stream counts its own sources from 0."""

    def chunk(text: str, source: dict[str, Any], **more: Any) -> dict[str, Any]:
        start = {"startIndex": words.index(text), "endIndex": words.index(text) + len(text)}
        support = {"segment": {**start, "text": text}, "groundingChunkIndices": [0]}
        metadata = {"groundingChunks": [source], "groundingSupports": [support]}
        return {
            "candidates": [
                {"content": {"parts": [{"text": text}]}, "groundingMetadata": metadata, **more}
            ]
        }

    words = "one two "
    chunks = [chunk("one ", WEB[0]), chunk("two ", WEB[1], finishReason="STOP")]
    stream = "".join(f"data: {json.dumps(one)}\n\n" for one in chunks)
    with ModelServer([stream]) as server:
        answer = LLM("gemini-3-pro", "", server.url, wire="gemini", stream=True).completion("x")
    assert [(one.url, words[one.start : one.end]) for one in answer.citations] == [
        ("https://a.example", "one "),
        ("https://b.example", "two "),
    ]


# --- calls that Google ran ---


def test_executed_code_is_a_server_call() -> None:
    answer = read_both_ways(
        body(
            {"text": "Let me see."},
            {"executableCode": {"language": "PYTHON", "code": "print(1)", "id": "x1"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n", "id": "x1"}},
            {"executableCode": {"language": "PYTHON", "code": "boom"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_FAILED", "output": "NameError"}},
            {"text": "It is 1.", "thoughtSignature": "c2ln"},
        )
    )
    assert answer.server_calls == (
        ServerToolCall(
            "code_execution",
            "x1",
            {"language": "PYTHON", "code": "print(1)"},
            {"outcome": "OUTCOME_OK", "output": "1\n"},
        ),
        ServerToolCall(
            "code_execution",
            "",
            {"language": "PYTHON", "code": "boom"},
            {"outcome": "OUTCOME_FAILED", "output": "NameError"},
            True,
        ),
    )
    assert answer.calls == ()
    assert answer.parts == (TextPart("Let me see."), TextPart("It is 1."))


def test_a_file_search_that_runs_as_code_is_one() -> None:
    code = {"code": 'print(file_search.query(query="what \\"is\\" it?"))', "language": "PYTHON"}
    answer = read_both_ways(
        body(
            {"executableCode": code}, {"codeExecutionResult": {"output": "it"}}, {"text": "It is."}
        )
    )
    assert answer.server_calls == (
        ServerToolCall("file_search", "", {"query": 'what "is" it?'}, {"output": "it"}),
    )


def test_server_run_tools_beside_a_function_call_go_back_with_their_signatures() -> None:
    context = {"text": "a rule", "title": "r.pdf", "fileSearchStore": "s"}
    answer = read_both_ways(
        body(
            {
                "toolCall": {
                    "id": "g1",
                    "toolType": "GOOGLE_SEARCH_WEB",
                    "args": {"queries": ["weather"]},
                },
                "thoughtSignature": "czE=",
            },
            {
                "toolResponse": {
                    "id": "g1",
                    "toolType": "GOOGLE_SEARCH_WEB",
                    "response": {"search_suggestions": "<div/>"},
                },
                "thoughtSignature": "czI=",
            },
            {"toolCall": {"id": "f1", "toolType": "FILE_SEARCH", "args": {"query": "rule"}}},
            {"toolResponse": {"id": "f1", "toolType": "FILE_SEARCH"}},
            {"toolCall": {"id": "n1", "toolType": "OF_TOMORROW"}},
            {"functionCall": {"name": "t", "args": {}, "id": "c1"}, "thoughtSignature": "czM="},
            groundingMetadata={
                "webSearchQueries": ["weather"],
                "groundingChunks": [*WEB[:1], {"retrievedContext": context}],
            },
        )
    )
    assert answer.server_calls == (
        ServerToolCall(
            "google_search", "g1", {"queries": ["weather"]}, {"search_suggestions": "<div/>"}
        ),
        # The result of this one is only in the metadata.
        ServerToolCall("file_search", "f1", {"query": "rule"}, [context]),
        ServerToolCall("of_tomorrow", "n1", {}),
    )
    assert [call.name for call in answer.calls] == ["t"]


def test_read_pages_are_a_server_call() -> None:
    pages = [
        {"retrievedUrl": "https://a", "urlRetrievalStatus": "URL_RETRIEVAL_STATUS_SUCCESS"},
        {"retrievedUrl": "https://b", "urlRetrievalStatus": "URL_RETRIEVAL_STATUS_UNSAFE"},
    ]
    for listed, is_error in ((pages, False), (pages[1:], True)):
        answer = read_both_ways(body({"text": "a"}, urlContextMetadata={"urlMetadata": listed}))
        [call] = answer.server_calls
        assert call.arguments == {"urls": [page["retrievedUrl"] for page in listed]}
        assert (call.name, call.output, call.is_error) == ("url_context", listed, is_error)


# --- media ---


def test_generated_files_are_media_and_drafts_are_not() -> None:
    draft = {"inlineData": {"mimeType": "image/png", "data": encode(b"draft")}, "thought": True}
    url_safe = base64.urlsafe_b64encode(b"\xff\xfe\xfd").decode()
    answer = read_both_ways(
        body(
            {"text": "Look:"},
            draft,
            {
                "inlineData": {"mimeType": "image/png", "data": encode(PNG)},
                "thoughtSignature": "c2ln",
            },
            {"inlineData": {"mimeType": "audio/wav", "data": encode(b"a")}},
            {"inlineData": {"mimeType": "audio/wav", "data": encode(b"b")}},
            {"inlineData": {"mimeType": "text/csv", "data": url_safe}},
            {"inlineData": {"mimeType": "image/png", "data": "!"}},
            {"fileData": {"mimeType": "video/mp4", "fileUri": "gs://b/a.mp4"}},
        )
    )
    assert answer.media == (
        ImageContent(PNG, "image/png"),
        AudioContent(b"a", "audio/wav"),
        AudioContent(b"b", "audio/wav"),
        FileContent(b"\xff\xfe\xfd", "text/csv"),
        FileContent(url="gs://b/a.mp4", mime_type="video/mp4"),
    )


@pytest.mark.parametrize("address", ["files/abc", "file:///tmp/a.mp4"])
def test_an_odd_address_of_a_file_costs_no_answer(address: str) -> None:
    file = {"fileData": {"mimeType": "video/mp4", "fileUri": address}}
    answer = read_both_ways(body({"text": "Here."}, file))
    assert (answer.text, answer.media) == ("Here.", (ResourceLink(address, mime_type="video/mp4"),))


def test_pieces_of_raw_sound_are_one_sound() -> None:
    kind = "audio/L16;codec=pcm;rate=24000"
    pieces = [{"inlineData": {"mimeType": kind, "data": encode(data)}} for data in (b"ab", b"cd")]
    assert read_both_ways(body(*pieces)).media == (AudioContent(b"abcd", kind),)


# --- filters, probabilities, tier, usage ---


def test_a_filter_that_ended_an_answer_is_named() -> None:
    rating = {"category": "HARM_CATEGORY_HARASSMENT", "probability": "HIGH", "blocked": True}
    answer = read_both_ways(
        body({"text": "so"}, finish="SAFETY", finishMessage="unsafe", safetyRatings=[rating])
    )
    assert answer.stop_reason == "content_filter"
    assert answer.filters == (rating, {"finishReason": "SAFETY", "finishMessage": "unsafe"})
    assert answer.provider_details == {"finishReason": "SAFETY", "finishMessage": "unsafe"}


def test_feedback_on_a_prompt_that_was_answered_is_kept() -> None:
    feedback = {"safetyRatings": [{"category": "X", "probability": "LOW"}]}
    whole = {**body({"text": "a"}), "promptFeedback": feedback}
    assert read_both_ways(whole).filters == ({"promptFeedback": feedback},)


def test_probabilities_of_tokens() -> None:
    result = {
        "chosenCandidates": [
            {"token": "Hi", "tokenId": 5, "logProbability": -0.5},
            {"token": "!"},
        ],
        "topCandidates": [
            {
                "candidates": [
                    {"token": "Hi", "logProbability": -0.5},
                    {"token": "Yo", "logProbability": -2},
                ]
            },
        ],
    }
    answer = read_both_ways(body({"text": "Hi!"}, logprobsResult=result, avgLogprobs=-0.25))
    assert answer.logprobs == (
        TokenLogprob("Hi", -0.5, (("Hi", -0.5), ("Yo", -2.0))),
        TokenLogprob("!", 0.0),
    )
    assert answer.provider_details == {"avgLogprobs": -0.25}


def test_probabilities_of_several_chunks_follow_each_other() -> None:
    def chunk(token: str, **more: Any) -> str:
        result = {"chosenCandidates": [{"token": token, "logProbability": -1}]}
        content = {"parts": [{"text": token}]}
        candidates = {"candidates": [{"content": content, "logprobsResult": result, **more}]}
        return f"data: {json.dumps(candidates)}\n\n"

    with ModelServer([chunk("a") + chunk("a", finishReason="STOP")]) as server:
        answer = LLM("gemini-3-pro", "", server.url, wire="gemini", stream=True).completion("x")
    assert answer.logprobs == (TokenLogprob("a", -1.0), TokenLogprob("a", -1.0))


@pytest.mark.parametrize(
    ("field", "tier"), [("serviceTier", "flex"), ("trafficType", "PROVISIONED_THROUGHPUT")]
)
def test_the_class_of_service_of_both_hosts(field: str, tier: str) -> None:
    usage = {"promptTokenCount": 1, field: tier}
    assert read_both_ways(body({"text": "a"}, usageMetadata=usage)).service_tier == tier


def test_everything_else_is_under_the_providers_names() -> None:
    status = {"modelStage": "DEPRECATED", "message": "gone soon"}
    answer = read_both_ways(
        body({"text": "a"}, modelStatus=status, createTime="2026-01-01T00:00:00Z", novel={"a": 1})
    )
    assert answer.provider_details == {
        "modelStatus": status,
        "createTime": "2026-01-01T00:00:00Z",
        "novel": {"a": 1},
    }


def test_tokens_of_sound_and_pictures_are_counted() -> None:
    usage = {
        "promptTokenCount": 1000,
        "toolUsePromptTokenCount": 100,
        "candidatesTokenCount": 300,
        "thoughtsTokenCount": 7,
        "totalTokenCount": 1407,
        "promptTokensDetails": [
            {"modality": "TEXT", "tokenCount": 10},
            {"modality": "IMAGE", "tokenCount": 258},
            {"modality": "AUDIO", "tokenCount": 600},
            {"modality": "VIDEO", "tokenCount": 132},
        ],
        "toolUsePromptTokensDetails": [{"modality": "IMAGE", "tokenCount": 100}],
        "candidatesTokensDetails": [
            {"modality": "IMAGE", "tokenCount": 250},
            {"modality": "AUDIO", "tokenCount": 50},
        ],
    }
    answer = read_both_ways(body({"text": "a"}, usageMetadata=usage))
    assert answer.usage == Usage(
        1100,
        307,
        reasoning_tokens=7,
        input_audio_tokens=600,
        output_audio_tokens=50,
        input_image_tokens=358,
        output_image_tokens=250,
    )
    lists = {key: value for key, value in usage.items() if key.endswith("Details")}
    assert answer.provider_details == {"usageMetadata": lists}


def test_an_answer_with_nothing_else_has_no_details() -> None:
    usage = {
        "promptTokenCount": 1,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 1}],
    }
    assert read_both_ways(body({"text": "ab"}, usageMetadata=usage)).details is None
