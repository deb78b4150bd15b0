// What a call of a tool would do: in one line, and in full.
import { code, copyable, languageOf } from "./code.js";
import { added, changes } from "./diff.js";
import { el } from "./dom.js";
import { json, oneLine, plain } from "./text.js";

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
		found.push(copyable(el("pre.output.command", "$ " + plain(left.command)), plain(left.command), "command"));
		delete left.command;
	}
	let edit = null;
	if (typeof left.old === "string" && typeof left.new === "string") {
		edit = changes(left.old, left.new, left.path ?? left.file_path);
		delete left.old;
		delete left.new;
	} else if (call.name === "write_file" && typeof left.content === "string") {
		edit = left.content && added(left.content, left.path);
		delete left.content;
	}
	const rest = Object.entries(left);
	if (rest.length) {
		found.push(
			el("dl.arguments", rest.map(([key, value]) => [
				el("dt", plain(key)),
				el("dd", argument(key, value)),
			])),
		);
	}
	if (edit) found.push(edit);
	return found;
}

function argument(key, value) {
	if (typeof value !== "string") return el("pre", plain(json(value)));
	// A script of several lines, as of `run_code`.
	return key === "code" && value.includes("\n") ? code(value, languageOf("python")) : el("pre", plain(value));
}

/** Return what an approver changed in a call's arguments: the model's and the approver's, argument by argument. */
export function edits(call) {
	const [old, now] = [call.arguments, call.given];
	const keys = [...new Set([...Object.keys(old), ...Object.keys(now)])].filter((key) => json(old[key] ?? null) !== json(now[key] ?? null));
	const text = (value) => (value === undefined ? "" : typeof value === "string" ? value : json(value));
	return el("div.edited", el("p.dim", keys.length ? "The approver changed the model's arguments:" : "The approver confirmed the model's arguments."),
		keys.map((key) => [el("p.key", plain(key)), changes(text(old[key]), text(now[key]))]));
}
