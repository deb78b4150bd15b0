// Renders entries of the log: messages, answers with their calls, and other events.
import { terminal } from "./ansi.js";
import { callBody, callTitle, edits } from "./calls.js";
import { code, copyable, copyButton, languageOf, numberedLines } from "./code.js";
import { diff } from "./diff.js";
import { button, el, fold, link, talkLink } from "./dom.js";
import { GrowingMarkdown, markdown } from "./markdown.js";
import { bytes, clipped, clock, count, json, money, oneLine, plain, seconds, statusName, written } from "./text.js";

const MARKS = { done: "✓", failed: "✗", waiting: "?", asking: "?", running: "…", called: "…" };
const STATES = { done: "done", failed: "failed", waiting: "waits for you", asking: "asks you", running: "running", called: "called" };
const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const HEAD_LINES = 6;
const TAIL_LINES = 10;
const LONG_CHARACTERS = 20_000; // the part of a result that is shown at once
const LIVE_LINES = 12; // of the output of a running command

/**
 * Return the element of an entry. `act` holds the actions: fork, whole, toggle, toggleGroup, and `level(call)`, which
 * tells how much of a call is shown: its "line", a "part" of its result, or the "whole" call.
 */
export function render(entry, act) {
	if (!(entry.group?.entries.length > 1)) return rendered(entry, act);
	const { group } = entry;
	const first = group.entries[0] === entry;
	if (!first && !group.open) return el("div.entry.folded", { "data-seq": entry.seq, hidden: true });
	const node = group.open ? rendered(entry, act) : null;
	return first ? el("div.entry.group", { "data-seq": entry.seq }, groupHead(group, act), node) : node;
}

function groupHead(group, act) {
	const calls = group.entries.flatMap((entry) => entry.calls);
	return el("button.head", { type: "button", "aria-expanded": String(group.open), "data-group": group.entries[0].seq, onclick: () => act.toggleGroup(group) },
		el("span.mark", { title: "done" }, "✓"), el("span", summary(calls)), el("span.title", calls.slice(-3).map((call) => callTitle(call.effective)).join(", ")));
}

/** Return what calls did that only read: "Read 5 files, searched 2 times". */
function summary(calls) {
	const files = new Set();
	const others = new Map();
	let [searches, plans] = [0, 0];
	for (const { name, arguments: given } of calls) {
		if (/^(read|view)_/.test(name) && typeof given.path === "string") files.add(given.path);
		else if (/grep|glob|search|find/.test(name)) searches++;
		else if (name === "plan") plans++;
		else others.set(name, (others.get(name) ?? 0) + 1);
	}
	const times = (number) => (number === 1 ? "once" : `${number} times`);
	const parts = [files.size && `read ${files.size} ${files.size === 1 ? "file" : "files"}`, searches && `searched ${times(searches)}`, plans && `planned ${times(plans)}`,
		...[...others].map(([name, number]) => `${oneLine(name, 40)}${number > 1 ? ` ${times(number)}` : ""}`)].filter(Boolean);
	const text = parts.join(", ");
	return text.charAt(0).toUpperCase() + text.slice(1);
}

function rendered(entry, act) {
	const { event } = entry;
	switch (entry.kind) {
		case "message":
			return frame(entry, event.sender === "holdfast" ? "message.own" : "message.user", who(event), act, blocks(event.content, event.sender === "holdfast"));
		case "answer":
			return frame(entry, "answer", ["Agent", event.route ? ` (${oneLine(event.route, 60)})` : ""], act, answer(entry, act), facts(event), event.text);
		case "result":
			return frame(entry, "answer", "Result of an earlier call", act, result({ name: "", result: event.result, id: event.callId, decisions: [] }, act));
		case "status":
			return line(entry, event.status === "stuck" || event.status === "error" ? ".bad" : "", [statusName(plain(event.status)), event.reason ? `: ${oneLine(event.reason, 300)}` : ""]);
		case "error":
			return frame(entry, "error", ["Error: ", plain(event.error)], act, el("p", plain(event.message)));
		case "condensation":
			return condensation(entry, act);
		case "note":
			return line(entry, ".note", [el("b", plain(event.about)), " ", oneLine(event.text, 500)]);
		case "label":
			return line(entry, ".note", label(event));
		case "aside":
			return frame(entry, "message.own", "Asked aside", act, aside(entry));
		case "agent":
			return agent(entry);
		default:
			return line(entry, "", `${plain(event.type)}: ${oneLine(event.reason || "an event of a newer version", 300)}`);
	}
}

function label({ title, add = [], remove = [] }) {
	const parts = [title && `title: ${oneLine(title, 200)}`, add.length && `tags: ${oneLine(add.join(", "), 300)}`, remove.length && `without: ${oneLine(remove.join(", "), 300)}`];
	return parts.filter(Boolean).join("; ");
}

/** Return a question aside and its outcome, which the model does not see again. */
function aside({ event, answer }) {
	const said = el("p", { dir: "auto" }, plain(event.question));
	if (!answer) return [said, el("p.dim", "…")];
	return [said, answer.error ? el("p.bad", plain(answer.failed || answer.error)) : el("div.text", { dir: "auto" }, markdown(answer.text ?? ""))];
}

function frame(entry, kind, name, act, body, extra, said = "") {
	const number = entry.seq;
	const bare = entry.kind === "answer" && !said && entry.calls.length > 0; // only calls, whose lines say what is done
	return el(
		`article.entry.${kind}${bare ? ".bare" : ""}`,
		{ "aria-label": `Event ${number}`, "data-seq": number },
		el("header", el("span.who", name), extra, el("time", { datetime: entry.time }, clock(entry.time)),
			said && copyButton(plain(said), "answer"),
			button("continue from here", () => act.fork(number), "quiet.fork", { "aria-label": `continue from here, event ${number}`, title: `#${number}` })),
		body,
	);
}

const line = (entry, kind, body) => el(`p.entry.line${kind}`, { "data-seq": entry.seq }, body, " ", el("time", { datetime: entry.time }, clock(entry.time)));

function who(event) {
	if (!event.sender || event.sender === "user") return "You";
	if (event.sender === "holdfast") return event.about ? `Holdfast, about ${oneLine(event.about, 80)}` : "Holdfast";
	return ["from ", talkLink(short(event.sender), plain(event.sender))];
}

const short = (id) => id.slice(id.lastIndexOf("/") + 1);

function facts(event) {
	const usage = event.usage ?? {};
	const parts = [];
	if (usage.inputTokens || usage.outputTokens) parts.push(`${count(usage.inputTokens ?? 0)} in, ${count(usage.outputTokens ?? 0)} out`);
	if (typeof event.cost === "number" && event.cost) parts.push(money(event.cost));
	if (event.duration) parts.push(seconds(event.duration));
	return parts.length ? el("span.facts", { title: plain(event.model) }, parts.join(" · ")) : null;
}

export function blocks(content, quiet = false) {
	return (content ?? []).map((block) => {
		switch (block.type) {
			case "text":
				return quiet ? fold(oneLine(block.text, 160), el("pre.said", plain(block.text))) : el("pre.said", { dir: "auto" }, plain(block.text));
			case "image":
				return picture(block);
			case "file":
				return file(block);
			case "resource_link":
				return el("p", plain(block.name || "resource"), ": ", link(plain(block.uri)));
			case "resource":
				return typeof block.resource?.text === "string" ? copyable(el("pre.output", plain(block.resource.text)), plain(block.resource.text), "resource") : el("p.dim", `resource ${plain(block.resource?.uri)}`);
			default:
				return el("p.dim", `${plain(block.type)} (${plain(block.mimeType)}, ${bytes(block.data)})`);
		}
	});
}

function file(block) {
	const name = plain(block.name || block.url || block.fileId || "file");
	if (block.url) return el("p", "file: ", link(plain(block.url)), block.name ? ` (${plain(block.name)})` : "");
	if (block.data && PICTURES.has(block.mimeType)) return picture(block);
	return el("p.dim", `file ${name} (${plain(block.mimeType)}${block.data ? `, ${bytes(block.data)}` : ""})`);
}

function picture(block) {
	const type = block.mimeType ?? "image/png";
	if (!PICTURES.has(type) || !/^[A-Za-z0-9+/=_-]*$/.test(block.data)) return el("p.dim", `picture (${plain(type)}, ${bytes(block.data)})`);
	return el("button.picture", { type: "button", title: "Show in full size, or small again", onclick: (event) => event.currentTarget.classList.toggle("large") },
		el("img", { src: `data:${type};base64,${block.data}`, alt: block.name ? plain(block.name) : "picture", loading: "lazy" }));
}

function answer(entry, act) {
	const { event } = entry;
	const found = [];
	if (event.reasoning) found.push(fold("Reasoning", el("pre.said", plain(event.reasoning))));
	found.push(...texts(event), ...details(event.details ?? {}));
	for (const call of entry.calls) found.push(callElement(call, act));
	if (!found.length) found.push(el("p.dim", `(nothing: ${plain(event.stopReason)})`));
	return found;
}

/** Return the texts of an answer; one that the model said before it went on working is marked. */
function texts(event) {
	const parts = event.details?.parts ?? [];
	if (!parts.some((part) => part.phase === "commentary")) return event.text ? [el("div.text", { dir: "auto" }, markdown(event.text))] : [];
	return parts.map((part) => el(`div.text${part.phase === "commentary" ? ".dim" : ""}`, { dir: "auto" }, markdown(part.text)));
}

/** Return the parts of an answer beyond text and calls: refusal, the provider's own calls, generated files, sources. */
function details({ refusal, serverCalls = [], media = [], citations = [] }) {
	const found = [];
	if (refusal) found.push(el("p", el("b", "Refused: "), plain(refusal)));
	for (const call of serverCalls) {
		const title = `${plain(call.name)}, run by the provider${call.isError ? ": failed" : ""} ${oneLine(json(call.arguments ?? null), 160)}`;
		found.push(fold(title, el("pre.output", plain(json(call.output ?? null)).slice(0, LONG_CHARACTERS))));
	}
	found.push(...blocks(media));
	if (citations.length) found.push(el("ol.sources", { "aria-label": "Sources" }, citations.map((one) => el("li", source(one)))));
	return found;
}

function source({ url, title, source: id, quote }) {
	const label = oneLine(title || url || id || "source", 200);
	return [url ? link(plain(url), label) : label, quote ? el("q.dim", oneLine(quote, 200)) : null];
}

/** An answer that streams in, or that broke off. Its element is updated in place. */
export class LiveAnswer {
	constructor() {
		this.text = new GrowingMarkdown();
		this.body = el("div");
		this.facts = el("span.facts");
		this.node = el("article.entry.answer", el("header", el("span.who", "Agent"), this.facts), this.body);
		this.reasoning = el("pre.said");
		this.thoughts = el("details.reasoning", el("summary", "Reasoning"), this.reasoning);
	}

	show(live, broken) {
		this.node.classList.toggle("streaming", !broken);
		this.node.classList.toggle("broken", broken);
		this.node.setAttribute("aria-busy", String(!broken));
		this.facts.textContent = broken ? "broken off; the agent does not remember this" : "…";
		if (live.reasoning) {
			this.reasoning.textContent = plain(live.reasoning.slice(-4000));
			if (!this.thoughts.isConnected) this.thoughts.open = !live.text;
			else if (live.text && !this.said) this.thoughts.open = false;
		}
		this.said = Boolean(live.text);
		if (live.text) this.text.show(live.text);
		const calls = live.calls.filter(Boolean).map((call) => el("section.call.running", el("p.head", el("span.mark", "…"), el("b", plain(call.name)), " ", el("span.title", oneLine(call.text.slice(-300), 300)))));
		const parts = [live.reasoning && this.thoughts, live.cut && el("span.dim", "… "), live.text && this.text.node, ...calls].filter(Boolean);
		const kept = [this.thoughts, this.text.node];
		for (const node of [...this.body.childNodes]) if (!kept.includes(node) || !parts.includes(node)) node.remove();
		parts.forEach((node, at) => this.body.childNodes[at] !== node && this.body.insertBefore(node, this.body.childNodes[at] ?? null));
	}
}

function callElement(call, act) {
	const state = call.state;
	const level = act.level(call);
	const whole = level === "whole";
	const shown = call.effective;
	const child = call.result?.meta?.["holdfast/child"]?.id;
	return el(
		`section.call.${state}${call.reads && level === "line" ? ".quiet" : ""}`,
		{ "aria-label": `Call ${plain(call.name)}, ${STATES[state]}`, "data-call": call.id },
		el("button.head", { type: "button", "aria-expanded": String(whole), onclick: () => act.toggle(call) },
			el("span.mark", { title: STATES[state] }, MARKS[state]), el("b", plain(call.name)), " ", el("span.title", callTitle(shown)),
			el("span.facts", call.attempts > 1 ? `attempt ${call.attempts} ` : "", ended(call), state === "running" ? el("span", { "data-since": call.started }) : call.result ? (call.duration ? seconds(call.duration) : "") : STATES[state])),
		call.asked ? null : decision(call, whole),
		call.given && edits(call),
		call.runner && !call.result && el("p.dim", `runs in the client ${plain(call.runner)}`),
		call.progress && progress(call),
		whole && el("div.given", callBody(shown)),
		call.result && (level !== "line" || state === "failed") ? result(call, act) : null,
		child && el("p", "Child: ", talkLink(short(String(child)), plain(child))),
	);
}

/** Return the mark of a call that failed: its exit code, or the kind of its error. */
function ended({ result }) {
	if (!result) return null;
	const { exitCode, timedOut } = result.meta ?? {};
	const said = timedOut ? "timed out" : exitCode ? `exit code ${exitCode}` : result.isError ? (result.error?.type ?? "failed") : "";
	return said ? el("span.ended", oneLine(said, 60), " ") : null;
}

/** Return the present progress of a running call: a message, or the end of a command's output. */
export function progress(call) {
	const text = call.progress.replace(/\n+$/, "");
	if (!text.includes("\n") && call.name !== "terminal") return el("p.progress", oneLine(written(text), 300));
	return el("pre.progress.output", terminal(text.split("\n").slice(-LIVE_LINES).map((line) => line.slice(-1000)).join("\n")));
}

/** Return what was decided about a call, in one line; of an opened call also why it was asked about. */
function decision({ decisions }, whole) {
	const asked = decisions.findLast((event) => event.decision === "ask" && !event.question);
	return decisions.map((event) => {
		if (event === asked && event !== decisions.at(-1)) return null;
		if (event.decision === "allow" && !event.reason && !event.risk) return null;
		const did = event.questionId ? { approve: "answered", reject: "not answered" } : { allow: "allowed", ask: "asked", deny: "denied", approve: "approved", reject: "rejected" };
		const words = event.question
			? ["asks: ", oneLine(event.question.message, 200)]
			: [did[event.decision] ?? event.decision, event.by ? ` by ${oneLine(event.by, 60)}` : "", event.arguments && !event.questionId ? ", with other arguments" : "", event.reason ? `: ${oneLine(event.reason, 300)}` : ""];
		const why = whole && asked && event !== asked && !event.questionId && asked.reason ? el("span.why", ` (asked because: ${oneLine(asked.reason, 300)})`) : null;
		return el(`p.decision.${/^[a-z]+$/.test(event.decision) ? event.decision : "other"}`, risk(event.risk || (event !== asked && !event.questionId && asked?.risk)), words, why);
	});
}

/** Return the elements of the content of a tool result. */
export const results = (found) => (found.content ?? []).map((block) => (block.type === "text" ? copyable(el("pre.output", terminal(block.text)), written(block.text), "output") : blocks([block])));

export const risk = (level) => (level ? el(`span.risk.${["low", "medium", "high"].includes(level) ? level : "unknown"}`, `${plain(level)} risk`) : null);

/** Return a call's result: an edit as a diff, a file with its lines' numbers, anything else as its content, shortened until the call is opened. */
function result(call, act) {
	const given = call.result;
	const meta = given.meta ?? {};
	const whole = act.level(call) === "whole";
	const found = [];
	if (typeof meta.diff === "string" && meta.diff) found.push(diff(meta.diff, whole ? 2000 : 40));
	const blank = found.length > 0 && !whole;
	for (const block of given.content ?? []) {
		if (block.type !== "text") found.push(...blocks([block]));
		else if (!blank && block.text) found.push(output(block.text, whole, call, act));
	}
	if (!(given.content ?? []).length && given.structuredContent !== undefined && given.structuredContent !== null) found.push(output(json(given.structuredContent), whole, call, act));
	const kept = meta["holdfast/blobs"];
	if (Array.isArray(kept) && act.whole) found.push(button("The whole output", () => act.whole(call.id), "quiet"));
	const facts = [];
	if (meta.running === true) facts.push("still running");
	if (given.error?.type && !call.name) facts.push(`error: ${oneLine(given.error.type, 60)}`);
	if (facts.length) found.push(el("p.dim", facts.join(", ")));
	return el(`div.result${given.isError || meta.exitCode ? ".bad" : ""}`, found);
}

function output(text, whole, call, act) {
	const file = whole && call.reads && text.length <= LONG_CHARACTERS && numberedLines(text);
	if (file) return code(file.text, languageOf(call.effective.arguments?.path), file.first);
	let shown = String(text).replace(/\r+\n/g, "\n").replace(/\n+$/, "");
	const all = shown;
	let left = 0;
	if (!whole) ({ text: shown, left } = clipped(shown, HEAD_LINES, TAIL_LINES));
	if (!whole && shown.length > 2000) {
		shown = `${shown.slice(0, 1200)}\n… ${shown.length - 2000} characters …\n${shown.slice(-800)}`;
		left = 1;
	}
	const long = shown.length > LONG_CHARACTERS;
	const pre = el("pre.output", terminal(long ? shown.slice(0, LONG_CHARACTERS) : shown));
	const more = long && button(`… ${shown.length - LONG_CHARACTERS} more characters`, (event) => {
		pre.replaceChildren(...terminal(all));
		event.currentTarget.remove();
	}, "quiet");
	return el("div", copyable(pre, () => written(all), "output"), more, left > 0 && act.toggle && call.name ? button("Show all", () => act.toggle(call), "quiet") : null);
}

function condensation(entry, act) {
	const { event } = entry;
	const hidden = (event.hidden ?? []).length;
	if (event.request !== undefined && event.request !== null && !hidden) return line(entry, "", "condensation was requested");
	if (event.failed) return line(entry, ".bad", ["not condensed: ", oneLine(event.failed, 300)]);
	if (event.compaction && !hidden) return line(entry, "", `condensed: ${event.model || "the provider"} compacted the history; other models are shown all of it`);
	const said = `condensed: ${hidden} events are hidden from the model, ${Object.keys(event.trimmed ?? {}).length} results are shortened`;
	if (!event.summary) return line(entry, "", said);
	return frame(entry, "condensation", "Condensed", act, fold(said, el("div.text", markdown(event.summary))));
}

function agent(entry) {
	const { event } = entry;
	return line(entry, "", [event.name ? plain(event.name) : "agent", `: ${event.model ? `${plain(event.model)}, ` : ""}${(event.tools ?? []).length} tools`]);
}
