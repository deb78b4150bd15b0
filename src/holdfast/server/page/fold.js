// The state of a conversation, folded from its events, and the entries of its log.

const PIECES = new Set(["text", "reasoning", "tool", "restart", "retry"]);
const REST = new Set(["idle", "finished", "stuck", "error"]);

const READERS = new Set(["plan", "think", "terminal_collect", "find_tools", "tool_search"]);
const READS = /^(?:read|get|list|search|find|grep|glob|view|show|query|lookup|describe|fetch|ls|cat)(?:_|$)/;

/** True if a tool only reads, as far as its name tells. The log shows its calls in one line. */
const reads = (name) => READERS.has(name) || READS.test(name.split(/[.:/]|__/).at(-1));

class Call {
	constructor(given, entry) {
		this.id = given.id;
		this.name = given.name;
		this.arguments = given.arguments ?? {};
		this.raw = given.raw ?? "";
		this.invalid = given.invalid ?? "";
		this.entry = entry;
		this.decisions = [];
		this.attempts = 0;
		this.runner = "";
		this.progress = "";
		this.result = null;
		this.duration = 0;
		this.asked = null; // the decision event for which the call waits
		this.questions = new Map();
		this.given = null; // arguments that an approver substituted
		this.reads = reads(given.name);
		this.started = ""; // the time of its start
	}

	get state() {
		if (this.result) return this.result.isError || this.result.meta?.exitCode ? "failed" : "done"; // a failed command is not an error of its tool
		if (this.asked) return "waiting";
		if (this.questions.size) return "asking";
		return this.attempts ? "running" : "called";
	}

	get effective() {
		return this.given ? { name: this.name, arguments: this.given } : this;
	}
}

export class Fold {
	constructor() {
		this.last = 0;
		this.status = "idle";
		this.reason = "";
		this.entries = []; // the entries of the log, ordered by seq
		this.calls = new Map();
		this.open = new Map(); // calls without a result
		this.plan = [];
		this.timers = new Map();
		this.asides = new Map(); // entries of questions aside
		this.agent = null;
		this.steps = 0;
		this.cost = 0;
		this.priced = true;
		this.usage = { inputTokens: 0, outputTokens: 0, cachedInputTokens: 0, reasoningTokens: 0 };
		this.error = null;
		this.live = null; // the answer that streams in
		this.broken = null; // the beginning of an answer that was broken off, which is not in the journal
		this.missed = false; // true if pieces of the answer may be missing before the next one
		this.retry = null; // the next attempt of a model call that failed: number, most, reason, and until (in this machine's milliseconds)
		this.turned = ""; // the time since which the model's answer is awaited
		this.touched = new Set();
	}

	/** What happens now: `what` ("model", "writing", "thinking", "calling", "retry", "tools"), and `since` which time; null while nothing runs. */
	get activity() {
		if (this.status !== "running") return null;
		const calls = [...this.open.values()].filter((call) => call.state === "running");
		if (calls.length) return { what: "tools", calls, since: calls[0].started };
		if (this.questions.length) return null; // a call waits for the user
		if (this.retry) return { what: "retry", ...this.retry };
		const { text, calls: called = [] } = this.live ?? {};
		return { what: called.length ? "calling" : text ? "writing" : this.live ? "thinking" : "model", since: this.turned };
	}

	get pending() {
		return [...this.open.values()].filter((call) => call.asked);
	}

	get questions() {
		return [...this.open.values()].flatMap((call) => [...call.questions.values()].map((question) => ({ call, question })));
	}

	/** Apply events in order. Returns the changed and new entries. */
	take(events) {
		this.touched = new Set();
		for (const event of events) {
			if (event.seq <= this.last) continue;
			this.last = event.seq;
			this.turned = event.timestamp;
			this.retry = null;
			const found = this.#apply(event);
			if (found) this.touched.add(found);
		}
		return this.touched;
	}

	/** Put an answer that only read into one group with such answers right before it. */
	#group(entry) {
		if (entry.group || !quiet(entry)) return;
		const at = this.entries.lastIndexOf(entry);
		entry.group = this.entries[at - 1]?.group ?? { entries: [], open: false };
		entry.group.entries.push(entry);
		for (const one of entry.group.entries) this.touched.add(one);
	}

	/** Keep the answer so far where it was broken off, as the user has read it. */
	#break() {
		if (this.live?.text || this.live?.reasoning) this.broken = this.live;
		this.live = null;
	}

	#add(kind, event, more = {}) {
		const entry = { kind, seq: event.seq, time: event.timestamp, event, ...more };
		this.entries.push(entry);
		return entry;
	}

	#spend({ usage, cost }) {
		if (!usage) return;
		for (const name of Object.keys(this.usage)) this.usage[name] += usage[name] ?? 0;
		if (typeof cost === "number") this.cost += cost;
		else this.priced = false;
	}

	#apply(event) {
		switch (event.type) {
			case "message":
				this.#spend(event);
				if (event.sender !== "holdfast") this.broken = null;
				return this.#add("message", event);
			case "assistant": {
				this.#spend(event);
				this.steps++;
				this.live = this.broken = null;
				const entry = this.#add("answer", event, { calls: [] });
				for (const given of event.calls ?? []) {
					const call = new Call(given, entry);
					entry.calls.push(call);
					this.calls.set(call.id, call);
					this.open.set(call.id, call);
				}
				return entry;
			}
			case "decision": {
				this.#spend(event);
				const call = this.calls.get(event.callId);
				if (!call) return null;
				if (event.question) call.questions.set(event.question.id, event.question);
				else if (event.questionId) call.questions.delete(event.questionId);
				else {
					call.asked = event.decision === "ask" ? event : null;
					if (event.arguments && event.decision === "approve") call.given = event.arguments;
				}
				call.decisions.push(event);
				return call.entry;
			}
			case "toolCallStarted": {
				const call = this.calls.get(event.callId);
				if (!call) return null;
				call.attempts = event.attempt ?? 1;
				call.runner = event.runner ?? "";
				call.started = event.timestamp ?? "";
				return call.entry;
			}
			case "toolResult": {
				const call = this.calls.get(event.callId);
				if (!call) return this.#add("result", event);
				call.result = event.result;
				call.duration = event.duration ?? 0;
				call.asked = null;
				call.progress = "";
				call.questions.clear();
				this.open.delete(call.id);
				this.#group(call.entry);
				const meta = event.result.meta ?? {};
				if (call.name === "plan" && meta["holdfast/plan"] === true && !event.result.isError) {
					const steps = event.result.structuredContent?.steps ?? call.effective.arguments.steps;
					if (Array.isArray(steps)) this.plan = steps;
				}
				return call.entry;
			}
			case "status":
				this.status = event.status;
				this.reason = event.reason ?? "";
				if (event.status === "running" && this.error) this.error = null;
				// The answer continues to stream after a pause, but not after an interrupt.
				if (REST.has(event.status) || (event.status === "paused" && event.reason === "interrupted")) this.#break();
				// The status is at the top, and a request for approval has a card: the log has only what ends or interrupts work.
				return ["running", "waiting_for_confirmation"].includes(event.status) || (event.status === "idle" && !event.reason) ? null : this.#add("status", event);
			case "error":
				this.error = event;
				this.#break();
				return this.#add("error", event);
			case "condensation":
				this.#spend(event);
				return this.#add("condensation", event);
			case "agent": {
				const before = this.agent;
				this.agent = event;
				return this.#add("agent", event, { before });
			}
			case "note":
				this.#spend({ cost: 0, ...event });
				return this.#add("note", event);
			case "label":
				return this.#add("label", event);
			case "asideAsked": {
				const entry = this.#add("aside", event, { answer: null });
				this.asides.set(event.aside, entry);
				return entry;
			}
			case "asideAnswered": {
				this.#spend({ cost: 0, ...event });
				const entry = this.asides.get(event.aside);
				if (entry) entry.answer = event;
				return entry ?? null;
			}
			case "timerSet":
			case "timerFired":
			case "timerCancelled": {
				const { timer, next } = event;
				const now = event.content ? event : next && { ...this.timers.get(timer), due: next };
				this.timers.delete(timer);
				if (now?.content) this.timers.set(timer, now);
				return null;
			}
			default:
				return this.#add("unknown", event);
		}
	}

	/** Apply a transient note: a piece of an answer, or a call's progress. Returns the call, or "live". */
	note(kind, data) {
		if (kind === "progress") {
			const call = this.calls.get(data.callId);
			if (!call || call.result) return null;
			call.progress = String(data.message ?? "");
			return call;
		}
		if (kind !== "delta" || !PIECES.has(data.kind) || REST.has(this.status)) return null; // a newer server may send more kinds
		this.retry = data.kind === "retry" ? { number: data.index, most: data.most, reason: data.reason, until: Date.now() + 1000 * (data.seconds ?? 0) } : null;
		if (data.kind === "restart") this.live = null;
		if (data.kind === "restart" || data.kind === "retry") return "live";
		this.broken = null;
		this.live ??= { text: "", reasoning: "", calls: [], cut: this.missed };
		if (this.missed && this.live.text) this.live.text += "\n\n…\n\n";
		this.missed = false;
		const piece = data.text ?? "";
		if (data.kind === "text") this.live.text += piece;
		else if (data.kind === "reasoning") this.live.reasoning += piece;
		else if (data.kind === "tool") {
			const call = (this.live.calls[data.index ?? 0] ??= { name: "", text: "" });
			if (data.name) call.name = data.name;
			call.text += piece;
		}
		return "live";
	}

	/** Note that pieces were missed, so that the next piece does not follow what is shown. */
	cut() {
		this.missed = true;
	}
}

/** True if an answer did nothing but read, with success. */
function quiet({ event, calls }) {
	const { refusal, serverCalls = [], media = [], citations = [], parts = [] } = event.details ?? {};
	if (event.text || refusal || serverCalls.length || media.length || citations.length || parts.length > 1) return false;
	return calls.length > 0 && calls.every((call) => call.reads && call.state === "done" && !call.decisions.some(({ decision }) => decision !== "allow") && !call.result.meta?.["holdfast/child"]);
}
