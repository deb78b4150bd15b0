// Formatting for display: texts, numbers, times, JSON, calls, diffs, Markdown.
import { el, link } from "./dom.js";

// CSI sequences, OSC and similar sequences, and single escapes.
const ANSI = /\u001b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[ -/]*[0-~])|\u009b[0-?]*[ -/]*[@-~]/g;
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;
// Invisible and direction-changing characters, with which a command can look like another one.
const HIDDEN = /[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff]|\udb40[\udc00-\udfff]/g;
const JOINS = /(\p{Extended_Pictographic}\ufe0f?)\u200d(?=\p{Extended_Pictographic})/gu;

const escaped = (found) => [...found].map((one) => `\\u{${one.codePointAt(0).toString(16)}}`).join("");

/** Return a text for display. Control characters and those that hide or reverse text become escapes such as `\u{202e}`; joiners within emoji stay. Nothing is omitted. */
export function plain(text) {
	const found = String(text ?? "").replace(CONTROL, escaped);
	return found.search(HIDDEN) < 0 ? found : found.replace(JOINS, "$1\ue000").replace(HIDDEN, escaped).replace(/\ue000/g, "\u200d");
}

/** Return a program's output as a terminal would show it: without escape sequences, and overwritten lines in their last form. Never use it for commands. */
export const written = (text) => plain(String(text ?? "").replace(ANSI, "").replace(/\r+\n/g, "\n").replace(/[^\n]*\r(?=[^\n])/g, "").replace(/\r/g, ""));

export const oneLine = (text, most = 200) => {
	const found = plain(text).replace(/\s+/g, " ").trim();
	return found.length > most ? found.slice(0, most - 1) + "…" : found;
};

/** Return the first `head` and the last `tail` lines of a text, and the number of omitted lines. */
export function clipped(text, head, tail = 0) {
	const lines = text.split("\n");
	if (lines.length <= head + tail + 1) return { text, left: 0 };
	const left = lines.length - head - tail;
	return { text: [...lines.slice(0, head), `… ${left} lines …`, ...(tail ? lines.slice(-tail) : [])].join("\n"), left };
}

// Created once, because creating a formatter is slow.
const COMPACT = new Intl.NumberFormat("en", { notation: "compact" });
const TIME = { hour: "2-digit", minute: "2-digit" };
const TODAY = new Intl.DateTimeFormat([], TIME);
const DAY = new Intl.DateTimeFormat([], { day: "numeric", month: "short", ...TIME });
export const count = (number) => COMPACT.format(number);

export const money = (dollars) => (dollars === 0 ? "$0" : dollars < 0.01 ? `$${dollars.toFixed(4)}` : `$${dollars.toFixed(2)}`);

export const seconds = (given) =>
	given < 1 ? `${Math.round(given * 1000)} ms` : given < 60 ? `${given.toFixed(1)} s` : `${Math.floor(given / 60)} min ${Math.round(given % 60)} s`;

export function clock(iso) {
	const when = new Date(iso);
	if (Number.isNaN(when.getTime())) return "";
	return (when.toDateString() === new Date().toDateString() ? TODAY : DAY).format(when);
}

export function bytes(base64) {
	return `${count(Math.floor((String(base64).replace(/=+$/, "").length * 3) / 4))} bytes`;
}

export const statusName = (status) => (status === "waiting_for_confirmation" ? "waiting for you" : status);

const unsafe = (key, value, context) =>
	typeof value === "number" && !Number.isSafeInteger(value) && context && /^-?\d+$/.test(context.source) && JSON.rawJSON
		? JSON.rawJSON(context.source)
		: value;

/** Parse JSON without rounding long integers, so that the approved arguments are those shown. */
export const parse = (text) => (/\d{16}/.test(text) ? JSON.parse(text, unsafe) : JSON.parse(text));

/** Return a value as JSON, with invisible characters escaped. */
export const json = (value) => JSON.stringify(value, null, 2).replace(HIDDEN, (found) => [...Array(found.length).keys()].map((at) => `\\u${found.charCodeAt(at).toString(16).padStart(4, "0")}`).join(""));

/** Parse a JSON object that the user typed. Throws an Error that describes the problem. */
export function typed(text) {
	const found = parse(text);
	if (found === null || typeof found !== "object" || Array.isArray(found)) throw new Error('Enter a JSON object, such as {"path": "a.txt"}.');
	const twice = doubled(text);
	if (twice !== null) throw new Error(`The key "${twice}" appears twice. Remove one of them.`);
	return found;
}

/** Return a key that an object in this valid JSON has twice, or null. */
function doubled(text) {
	const open = [];
	for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]/g)) {
		const here = open.at(-1);
		if (token === "{") open.push({ keys: new Set(), key: true });
		else if (token === "[") open.push(null);
		else if (token === "}" || token === "]") open.pop();
		else if (token === ",") here && (here.key = true);
		else if (token !== ":" && here && here.key) {
			const key = JSON.parse(token);
			if (here.keys.has(key)) return key;
			here.keys.add(key);
			here.key = false;
		}
	}
	return null;
}

const TITLE_KEYS = ["command", "pattern", "query", "url", "path", "file_path", "text", "task", "agent", "name"];

/** Return a call in one line: `$ command` for a shell, otherwise its most informative argument and the short ones. */
export function callTitle(call) {
	const given = call.arguments ?? {};
	if (call.name === "terminal" && typeof given.command === "string") return `$ ${oneLine(given.command)}`;
	if (call.name === "plan" && Array.isArray(given.steps)) return `${given.steps.length} steps`;
	const telling = TITLE_KEYS.find((key) => typeof given[key] === "string") ?? Object.keys(given).find((key) => typeof given[key] === "string");
	const parts = telling ? [oneLine(given[telling], 120)] : [];
	for (const [key, value] of Object.entries(given)) {
		if (key === telling || typeof value === "object" || ["old", "new", "content"].includes(key)) continue;
		const said = oneLine(value, 60);
		if (said.length <= 40 && !String(value).includes("\n")) parts.push(`${plain(key)}=${said}`);
	}
	return parts.join(" ");
}

/** Return everything that a call would do: a command, an edit as a diff, and every other argument. */
export function callBody(call) {
	const left = { ...(call.arguments ?? {}) };
	const found = [];
	if (call.invalid) found.push(el("p.bad", `The arguments cannot be read: ${plain(call.invalid)}`), el("pre.output", plain(call.raw)));
	if (call.name === "terminal" && typeof left.command === "string") {
		found.push(el("pre.output.command", "$ " + plain(left.command)));
		delete left.command;
	}
	let edit = null;
	if (typeof left.old === "string" && typeof left.new === "string") {
		edit = diff(changes(left.old, left.new));
		delete left.old;
		delete left.new;
	} else if (call.name === "write_file" && typeof left.content === "string") {
		edit = left.content && diff(linesOf(left.content).map((line) => "+" + line).join("\n"));
		delete left.content;
	}
	const rest = Object.entries(left);
	if (rest.length) {
		found.push(
			el("dl.arguments", rest.map(([key, value]) => [
				el("dt", plain(key)),
				el("dd", typeof value === "string" ? el("pre", plain(value)) : el("pre", plain(json(value)))),
			])),
		);
	}
	if (edit) found.push(edit);
	return found;
}

/** Return the lines of a text; an empty text has none. */
const linesOf = (text) => (text ? text.replace(/\n$/, "").split("\n") : []);

/** Return the diff of two texts. Common lines at the beginning and end are cut to three. */
function changes(old, now) {
	const whole = old.endsWith("\n") === now.endsWith("\n") || !old || !now; // otherwise the final newline is the change
	const before = whole ? linesOf(old) : old.split("\n");
	const after = whole ? linesOf(now) : now.split("\n");
	let begin = 0;
	while (begin < before.length && begin < after.length && before[begin] === after[begin]) begin++;
	let end = 0;
	while (end < before.length - begin && end < after.length - begin && before[before.length - 1 - end] === after[after.length - 1 - end]) end++;
	return [
		...before.slice(Math.max(0, begin - 3), begin).map((line) => " " + line),
		...before.slice(begin, before.length - end).map((line) => "-" + line),
		...after.slice(begin, after.length - end).map((line) => "+" + line),
		...after.slice(after.length - end, after.length - end + 3).map((line) => " " + line),
	].join("\n");
}

/** Return a unified diff with coloured lines; the sign of each line stays. */
export function diff(text, most = 400) {
	const lines = plain(text).replace(/\n$/, "").split("\n");
	const shown = lines.slice(0, most).map((line) => {
		const kind = line.startsWith("+++") || line.startsWith("---") || line.startsWith("@@") ? ".place" : line[0] === "+" ? ".add" : line[0] === "-" ? ".remove" : "";
		return el(`span.line${kind}`, line || " ");
	});
	if (lines.length > most) shown.push(el("span.line.place", `… ${lines.length - most} more lines`));
	return el("pre.diff", shown);
}

const INLINE = /(`+)([^`](?:.*?[^`])?)\1(?!`)|\*\*(\S(?:.*?\S)?)\*\*|\[([^\]\n]{1,500})\]\(([^()\s]{1,2000})\)|(https?:\/\/[^\s<>"'`)\]]+)/g;

function inline(text) {
	const found = [];
	let at = 0;
	for (const match of text.matchAll(INLINE)) {
		if (match.index > at) found.push(text.slice(at, match.index));
		at = match.index + match[0].length;
		if (match[2] !== undefined) found.push(el("code", match[2]));
		else if (match[3] !== undefined) found.push(el("strong", match[3]));
		// The address is shown beside the label, because a label can claim anything.
		else if (match[5] !== undefined) found.push(match[4] === match[5] ? link(match[5]) : [match[4], " (", link(match[5]), ")"]);
		else found.push(link(match[6].replace(/[.,;:!?]+$/, "")), match[6].match(/[.,;:!?]*$/)[0]);
	}
	if (at < text.length) found.push(text.slice(at));
	return found;
}

/** Return Markdown as nodes: fenced code, headings, lists, paragraphs, and tables as written. Images are not loaded. */
export function markdown(given) {
	const text = plain(given);
	const found = [];
	if (text.length > 200_000) return [el("pre.said", text)];
	const lines = text.split("\n");
	let index = 0;
	while (index < lines.length) {
		const line = lines[index];
		const fence = /^\s{0,3}(```+|~~~+)\s*([\w+#.-]*)/.exec(line);
		if (fence) {
			const body = [];
			for (index++; index < lines.length && !lines[index].trim().startsWith(fence[1]); index++) body.push(lines[index]);
			index++;
			found.push(fence[2] === "diff" ? diff(body.join("\n")) : el("pre.code", el("code", body.join("\n"))));
		} else if (!line.trim()) {
			index++;
		} else if (/^#{1,6}\s/.test(line)) {
			found.push(el("p.heading", inline(line.replace(/^#+\s+/, ""))));
			index++;
		} else if (/^\s*([-*+]|\d{1,4}[.)])\s/.test(line)) {
			const ordered = /^\s*\d/.test(line);
			const items = [];
			const start = ordered ? Number.parseInt(line, 10) : undefined;
			while (index < lines.length) {
				const item = /^(\s*)([-*+]|\d{1,4}[.)])\s+(.*)$/.exec(lines[index]);
				if (item && /\d/.test(item[2]) === ordered) items.push({ deep: item[1].length > 1, lines: [item[3]] });
				else if (lines[index].trim() && /^\s{2,}/.test(lines[index]) && !item) items.at(-1).lines.push(lines[index].trim());
				else if (item && item[1].length) items.push({ deep: item[1].length > 1, lines: [item[3]] });
				else break;
				index++;
			}
			found.push(el(ordered ? "ol" : "ul", { start }, items.map((item) => el(item.deep ? "li.deep" : "li", inline(item.lines.join(" "))))));
		} else if (/^\s*\|.*\|\s*$/.test(line)) {
			const body = [];
			for (; /^\s*\|/.test(lines[index]); index++) body.push(lines[index].trim());
			found.push(el("pre.code", body.join("\n")));
		} else {
			const body = [];
			for (; index < lines.length && lines[index].trim() && !/^\s{0,3}(```|~~~|#{1,6}\s|>)/.test(lines[index]) && (!body.length || !/^\s*([-*+]|\d{1,4}[.)])\s/.test(lines[index])); index++) {
				body.push(lines[index]);
			}
			if (!body.length) body.push(lines[index++].replace(/^\s*>\s?/, "│ "));
			found.push(el("p", body.flatMap((one, number) => (number ? [el("br"), ...inline(one)] : inline(one)))));
		}
	}
	return found;
}
