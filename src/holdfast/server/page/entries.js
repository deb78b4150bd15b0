// Renders entries of the log: messages, answers with their calls, and other events.
import { button, el, fold, link, talkLink } from "./dom.js";
import { bytes, callBody, callTitle, clipped, clock, count, diff, json, markdown, money, oneLine, plain, seconds, statusName, written } from "./text.js";

const MARKS = { done: "✓", failed: "✗", waiting: "?", asking: "?", running: "…", called: "…" };
const STATES = { done: "done", failed: "failed", waiting: "waits for you", asking: "asks you", running: "running", called: "called" };
const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const HEAD_LINES = 6;
const TAIL_LINES = 10;
const LONG_CHARACTERS = 20_000; // the part of a result that is shown at once

/** Return the element of an entry. `opened` holds the ids of calls that are shown in full. `act` holds the actions: fork, whole, toggle. */
export function render(entry, opened, act) {
	const { event } = entry;
	switch (entry.kind) {
		case "message":
			return frame(entry, event.sender === "holdfast" ? "message.own" : "message.user", who(event), act, blocks(event.content, event.sender === "holdfast"));
		case "answer":
			return frame(entry, "answer", ["Agent", event.route ? ` (${oneLine(event.route, 60)})` : ""], act, answer(entry, opened, act), facts(event));
		case "result":
			return frame(entry, "answer", "Result of an earlier call", act, result({ name: "", result: event.result, id: event.callId }, opened, act));
		case "status":
			return line(entry, event.status === "stuck" || event.status === "error" ? ".bad" : "", [statusName(plain(event.status)), event.reason ? `: ${oneLine(event.reason, 300)}` : ""]);
		case "error":
			return frame(entry, "error", ["Error: ", plain(event.error)], act, el("p", plain(event.message)));
		case "condensation":
			return condensation(entry, opened, act);
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

function frame(entry, kind, name, act, body, extra) {
	const number = entry.seq;
	return el(
		`article.entry.${kind}`,
		{ "aria-label": `Event ${number}`, "data-seq": number },
		el("header", el("span.who", name), extra, el("time", { datetime: entry.time }, clock(entry.time)),
			button("fork", () => act.fork(number), "quiet.fork", { "aria-label": `Fork from event ${number}`, title: `#${number}` })),
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
				return typeof block.resource?.text === "string" ? el("pre.output", plain(block.resource.text)) : el("p.dim", `resource ${plain(block.resource?.uri)}`);
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
	return el("img", { src: `data:${type};base64,${block.data}`, alt: "picture", loading: "lazy" });
}

function answer(entry, opened, act) {
	const { event } = entry;
	const found = [];
	if (event.reasoning) found.push(fold("Reasoning", el("pre.said", plain(event.reasoning))));
	found.push(...texts(event), ...details(event.details ?? {}));
	for (const call of entry.calls) found.push(callElement(call, opened, act));
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

export function liveAnswer(live) {
	return el("article.entry.answer.streaming", { "aria-busy": "true" },
		el("header", el("span.who", "Agent"), el("span.facts", "…")),
		live.reasoning && el("details.reasoning", { open: !live.text }, el("summary", "Reasoning"), el("pre.said", plain(live.reasoning.slice(-4000)))),
		live.text && el("div.text", { dir: "auto" }, live.cut ? "… " : null, live.text.length > 30_000 ? el("pre.said", plain(live.text)) : markdown(live.text)),
		live.calls.filter(Boolean).map((call) => el("section.call.running", el("p.head", el("span.mark", "…"), el("b", plain(call.name)), " ", el("span.title", oneLine(call.text.slice(-300), 300))))),
	);
}

function callElement(call, opened, act) {
	const state = call.state;
	const whole = opened.has(call.id);
	const shown = call.effective;
	const child = call.result?.meta?.["holdfast/child"]?.id;
	return el(
		`section.call.${state}`,
		{ "aria-label": `Call ${plain(call.name)}, ${STATES[state]}`, "data-call": call.id },
		el("button.head", { type: "button", "aria-expanded": String(whole), onclick: () => act.toggle(call) },
			el("span.mark", { title: STATES[state] }, MARKS[state]), el("b", plain(call.name)), " ", el("span.title", callTitle(shown)),
			el("span.facts", call.attempts > 1 ? `attempt ${call.attempts} ` : "", call.result ? (call.duration ? seconds(call.duration) : "") : STATES[state])),
		call.decisions.map(decision),
		call.runner && !call.result && el("p.dim", `runs in the client ${plain(call.runner)}`),
		call.progress && el("p.progress", oneLine(call.progress, 300)),
		whole && el("div.given", callBody(shown)),
		call.result ? result(call, opened, act) : null,
		child && el("p", "Child: ", talkLink(short(String(child)), plain(child))),
	);
}

function decision(event) {
	if (event.decision === "allow" && !event.reason && !event.risk) return null;
	const did = event.questionId ? { approve: "answered", reject: "not answered" } : { allow: "allowed", ask: "asked", deny: "denied", approve: "approved", reject: "rejected" };
	const words = event.question
		? ["asks: ", oneLine(event.question.message, 200)]
		: [did[event.decision] ?? event.decision, event.by ? ` by ${oneLine(event.by, 60)}` : "", event.arguments && !event.questionId ? ", with other arguments" : "", event.reason ? `: ${oneLine(event.reason, 300)}` : ""];
	return el(`p.decision.${/^[a-z]+$/.test(event.decision) ? event.decision : "other"}`, risk(event.risk), words);
}

/** Return the elements of the content of a tool result. */
export const results = (found) => (found.content ?? []).map((block) => (block.type === "text" ? el("pre.output", written(block.text)) : blocks([block])));

export const risk = (level) => (level ? el(`span.risk.${["low", "medium", "high"].includes(level) ? level : "unknown"}`, `${plain(level)} risk`) : null);

/** Return a call's result: an edit as a diff, anything else as its content, shortened until the call is opened. */
function result(call, opened, act) {
	const given = call.result;
	const meta = given.meta ?? {};
	const whole = opened.has(call.id);
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
	if (given.error?.type) facts.push(`error: ${oneLine(given.error.type, 60)}`);
	if (facts.length) found.push(el("p.dim", facts.join(", ")));
	return el(`div.result${given.isError || meta.exitCode ? ".bad" : ""}`, found);
}

function output(text, whole, call, act) {
	let shown = written(text).replace(/\n+$/, "");
	let left = 0;
	if (!whole) ({ text: shown, left } = clipped(shown, HEAD_LINES, TAIL_LINES));
	if (!whole && shown.length > 2000) {
		shown = `${shown.slice(0, 1200)}\n… ${shown.length - 2000} characters …\n${shown.slice(-800)}`;
		left = 1;
	} else if (shown.length > LONG_CHARACTERS) {
		const all = shown;
		const pre = el("pre.output", all.slice(0, LONG_CHARACTERS));
		return el("div", pre, button(`… ${all.length - LONG_CHARACTERS} more characters`, (event) => {
			pre.textContent = all;
			event.currentTarget.remove();
		}, "quiet"));
	}
	return el("div", el("pre.output", shown), left > 0 && act.toggle && call.name ? button("Show all", () => act.toggle(call), "quiet") : null);
}

function condensation(entry, opened, act) {
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
