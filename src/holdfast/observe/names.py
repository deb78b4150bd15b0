"""The names of spans, attributes and metrics: those of OpenTelemetry's GenAI semantic conventions,
and Holdfast's own for anything else.

The conventions are in development. The names are from version 1.41.0
(https://github.com/open-telemetry/semantic-conventions/tree/v1.41.0/docs/gen-ai). The counts of
audio and image tokens are from the repository that continues them
(https://github.com/open-telemetry/semantic-conventions-genai). Moving to a newer version changes
only this module, its `SCHEMA`, and the documentation page.
"""

from __future__ import annotations

VERSION = "1.41.0"
SCHEMA = f"https://opentelemetry.io/schemas/{VERSION}"

# --- operations, the first words of span names ---

INVOKE_AGENT = "invoke_agent"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"
CONDENSE = "holdfast.condense"

# --- attributes of the conventions ---

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
CONVERSATION = "gen_ai.conversation.id"
AGENT_NAME = "gen_ai.agent.name"
REQUEST_MODEL = "gen_ai.request.model"
MAX_TOKENS = "gen_ai.request.max_tokens"
TEMPERATURE = "gen_ai.request.temperature"
TOP_P = "gen_ai.request.top_p"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_CREATION_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
INPUT_AUDIO_TOKENS = "gen_ai.usage.audio.input_tokens"
INPUT_IMAGE_TOKENS = "gen_ai.usage.image.input_tokens"
OUTPUT_AUDIO_TOKENS = "gen_ai.usage.audio.output_tokens"
OUTPUT_IMAGE_TOKENS = "gen_ai.usage.image.output_tokens"
SERVICE_TIER = "openai.response.service_tier"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL_ID = "gen_ai.tool.call.id"
SERVER_ADDRESS = "server.address"
ERROR_TYPE = "error.type"
HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"
# content, opt-in
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"

# --- metrics of the conventions: name, unit, description, and the buckets that they specify ---

TOKEN_TYPE = "gen_ai.token.type"
TOKEN_USAGE = "gen_ai.client.token.usage"
DURATION = "gen_ai.client.operation.duration"
HISTOGRAMS = (
    (TOKEN_USAGE, "{token}", "Number of input and output tokens used.", [4**n for n in range(14)]),
    (DURATION, "s", "GenAI operation duration.", [0.01 * 2**n for n in range(14)]),
)

# --- Holdfast's own ---

COST = "holdfast.cost"  # US dollars, as the provider states it, or else by list prices
PROVIDER_COST = "holdfast.provider_cost"  # what the provider states
LIST_COST = "holdfast.list_cost"  # what list prices say, beside a provider's statement
CACHE_CREATION_1H_TOKENS = "holdfast.usage.cache_creation_1h.input_tokens"
SERVER_TOOLS = "holdfast.server_tools"  # names of the calls that the provider ran
CITATIONS = "holdfast.citations"  # number of sources that the answer names
STATUS = "holdfast.status"
STEPS = "holdfast.steps"
RESUMED = "holdfast.resumed"  # the run was begun by a lost process
CUT_OFF = "holdfast.cut_off"  # closed before its end
ATTEMPT = "holdfast.tool.attempt"
RUNNER = "holdfast.tool.runner"  # the client that ran the call
DECISION = "holdfast.decision"
DECIDED_BY = "holdfast.decision.by"
RISK = "holdfast.decision.risk"
QUESTION = "holdfast.question.id"
ROUTE = "holdfast.route"  # the composite's model that answered
ABOUT = "holdfast.about"
HIDDEN = "holdfast.condense.hidden"  # number of events hidden from the model
CLIENT_COST = "holdfast.client.cost"
TOKEN_KIND = "holdfast.token.kind"
TOKEN_PARTS = "holdfast.client.token.parts"
SERVER_CALLS = "holdfast.client.server_tool.calls"
# events of spans
RETRY = "holdfast.retry"
DELAY = "holdfast.retry.delay"  # seconds
NOTE = "holdfast.note"
ASKED = "holdfast.question"
ANSWERED = "holdfast.answer"

# Field of `Usage` -> its attribute, and its kind among the parts of the input or the output. The
# two totals have no kind.
USAGE_ATTRIBUTES = (
    ("input_tokens", INPUT_TOKENS, ""),
    ("output_tokens", OUTPUT_TOKENS, ""),
    ("cached_input_tokens", CACHE_READ_TOKENS, "cache_read"),
    ("cache_write_tokens", CACHE_CREATION_TOKENS, "cache_creation"),
    ("cache_write_1h_tokens", CACHE_CREATION_1H_TOKENS, "cache_creation_1h"),
    ("reasoning_tokens", REASONING_TOKENS, "reasoning"),
    ("input_audio_tokens", INPUT_AUDIO_TOKENS, "audio_input"),
    ("input_image_tokens", INPUT_IMAGE_TOKENS, "image_input"),
    ("output_audio_tokens", OUTPUT_AUDIO_TOKENS, "audio_output"),
    ("output_image_tokens", OUTPUT_IMAGE_TOKENS, "image_output"),
)

# End of a host -> the conventions' name of the provider. Any other provider is named by its host.
PROVIDERS_BY_HOST = (
    ("openai.azure.com", "azure.ai.openai"),
    ("openai.com", "openai"),
    ("anthropic.com", "anthropic"),
    ("generativelanguage.googleapis.com", "gcp.gemini"),
    ("aiplatform.googleapis.com", "gcp.vertex_ai"),
    ("amazonaws.com", "aws.bedrock"),
    ("cohere.com", "cohere"),
    ("deepseek.com", "deepseek"),
    ("groq.com", "groq"),
    ("mistral.ai", "mistral_ai"),
    ("perplexity.ai", "perplexity"),
    ("x.ai", "x_ai"),
)


def provider_of(host: str) -> str:
    """Return the conventions' name of the provider at a host. An unlisted host is returned
    itself, and an empty one gives `_OTHER`."""
    name = host.lower()
    for end, provider in PROVIDERS_BY_HOST:
        if name == end or name.endswith(f".{end}"):
            return provider
    return name or "_OTHER"
