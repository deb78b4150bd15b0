// Code with line numbers and colours, and buttons that copy.
import { announce, button, el } from "./dom.js";
import { plain } from "./text.js";

const COLOURED_CHARACTERS = 20_000; // colours of more would take longer than an animation frame
const LONG_LINE = 2_000; // longer lines, such as minified code, have no colours
const NUMBERED_LINES = 4; // shorter code has no line numbers
const AHEAD = "400px"; // the distance from the visible part within which code gets its colours

const GRAMMARS = new Set("bash c cpp csharp css dockerfile go ini java javascript json kotlin lua makefile markdown php python ruby rust sql swift typescript xml yaml".split(" "));
const ALIASES = { py: "python", pyi: "python", js: "javascript", mjs: "javascript", cjs: "javascript", jsx: "javascript", node: "javascript", ts: "typescript", tsx: "typescript", sh: "bash", zsh: "bash", shell: "bash", console: "bash", "shell-session": "bash", html: "xml", svg: "xml", xhtml: "xml", htm: "xml", vue: "xml", yml: "yaml", toml: "ini", cfg: "ini", conf: "ini", md: "markdown", rs: "rust", rb: "ruby", kt: "kotlin", kts: "kotlin", cs: "csharp", "c#": "csharp", h: "c", cc: "cpp", cxx: "cpp", hpp: "cpp", "c++": "cpp", hh: "cpp", golang: "go", jsonl: "json", json5: "json", mk: "makefile", make: "makefile", docker: "dockerfile", containerfile: "dockerfile", postgresql: "sql", sqlite: "sql", scss: "css", less: "css", jsonc: "json", pyw: "python" };

/** Return the grammar for a language's name or a file's name or path, or "" if there is none. */
export function languageOf(name) {
	const last = String(name ?? "").trim().toLowerCase().split(/[\\/]/).at(-1);
	const found = [last, last.split(".").at(-1)].map((one) => (Object.hasOwn(ALIASES, one) ? ALIASES[one] : one)).find((one) => GRAMMARS.has(one));
	return found ?? "";
}

// Scopes of highlight.js, by their first word. Other scopes have no colour.
const KINDS = { keyword: "word", literal: "number", number: "number", symbol: "number", string: "string", regexp: "string", char: "string", comment: "comment", quote: "comment", doctag: "comment", title: "title", section: "title", name: "title", "selector-tag": "title", "selector-class": "title", "selector-id": "title", type: "kind", class: "kind", built_in: "kind", attr: "name", attribute: "name", property: "name", variable: "name", "template-variable": "name", meta: "meta", addition: "string", deletion: "word", bullet: "number", code: "string", link: "string", tag: "meta" };
const kindOf = (scope) => KINDS[scope.split(".")[0]] ?? "";

/** Collects highlight.js' output as pieces `[text, kind]`, so that no HTML is made. */
class Pieces {
	constructor() {
		this.found = [];
		this.open = [];
	}
	get root() {
		return this;
	}
	addText(text) {
		if (text) this.found.push([text, this.open.findLast(Boolean) ?? ""]);
	}
	openNode(scope) {
		this.open.push(kindOf(scope));
	}
	closeNode() {
		this.open.pop();
	}
	startScope(scope) {
		this.openNode(scope);
	}
	endScope() {
		this.closeNode();
	}
	__addSublanguage({ found }) {
		for (const piece of found) this.found.push(piece);
	}
	finalize() {
		return true;
	}
	toHTML() {
		return "";
	}
}

let engine = null;
const grammars = new Map(); // promises of loaded grammars

function load(language) {
	engine ??= import("./vendor/highlight.js").then(({ default: found }) => (found.configure({ __emitter: Pieces }), found));
	if (!grammars.has(language)) {
		grammars.set(language, Promise.all([engine, import(`./vendor/highlight-${language}.js`)]).then(([found, { default: grammar }]) => (found.registerLanguage(language, grammar), found)));
	}
	return grammars.get(language);
}

/** Return the coloured lines of a code: for each line its pieces `[text, kind]`. Long code is coloured up to a limit. */
export async function coloured(text, language) {
	const highlighter = await load(language);
	let end = text.length;
	if (end > COLOURED_CHARACTERS) end = Math.max(0, text.lastIndexOf("\n", COLOURED_CHARACTERS));
	const long = text.slice(0, end).split("\n").some((line) => line.length > LONG_LINE);
	const pieces = long ? [] : highlighter.highlight(text.slice(0, end), { language, ignoreIllegals: true })._emitter.found;
	const lines = [[]];
	for (const [piece, kind] of long ? [[text, ""]] : [...pieces, [text.slice(end), ""]]) {
		piece.split("\n").forEach((part, number) => {
			if (number) lines.push([]);
			if (part) lines.at(-1).push([part, kind]);
		});
	}
	return lines;
}

const jobs = new WeakMap(); // what to do when an element comes near
const idle = globalThis.requestIdleCallback ?? ((work) => setTimeout(work, 1));
const watcher = new IntersectionObserver((found) => {
	for (const { isIntersecting, target } of found) {
		if (!isIntersecting) continue;
		watcher.unobserve(target);
		idle(() => target.isConnected && jobs.get(target)?.(), { timeout: 500 });
	}
}, { rootMargin: AHEAD });

/** Do something with an element once it comes near the visible part, when the browser is idle. */
export function whenNear(node, job) {
	jobs.set(node, job);
	watcher.observe(node);
	return node;
}

/** Make an element that scrolls sideways reachable with the keyboard. */
export const reachable = (node, label) => {
	if (node.scrollWidth <= node.clientWidth + 1) return;
	node.tabIndex = 0;
	node.setAttribute("role", "region");
	node.setAttribute("aria-label", label);
};

export const spans = (pieces) => pieces.map(([text, kind]) => (kind ? el(`span.c-${kind}`, text) : text));

/** Return code as an element with its lines' numbers, from `first`, and a button that copies it. */
export function code(given, language = "", first = 1) {
	const text = plain(String(given ?? "").replace(/\r\n/g, "\n")).replace(/\n$/, "");
	const lines = text.split("\n").length;
	const body = el("code", text);
	const numbered = lines >= NUMBERED_LINES || first > 1;
	const pre = el("pre.code", numbered && el("span.numbers", { "aria-hidden": "true" }, Array.from({ length: lines }, (_, at) => first + at).join("\n")), body);
	whenNear(pre, async () => {
		reachable(pre, "Code");
		if (!GRAMMARS.has(language)) return;
		const made = await coloured(text, language);
		body.replaceChildren(...made.flatMap((pieces, number) => [number ? "\n" : "", ...spans(pieces)]));
	});
	return copyable(pre, text, "code");
}

/** Return a text's numbered lines, as tools print files, as `{ text, first }`, or null if these are not lines in order. */
export function numberedLines(text) {
	const found = [];
	let first = 0;
	for (const line of text.replace(/\n$/, "").split("\n")) {
		const match = /^ *(\d+)\t(.*)$/s.exec(line);
		if (!match || (found.length && Number(match[1]) !== first + found.length)) return null;
		if (!found.length) first = Number(match[1]);
		found.push(match[2]);
	}
	return { text: found.join("\n"), first };
}

/** Return an element with a button that copies a text, or what a function returns. */
export function copyable(node, text, what) {
	return el("div.copyable", node, copyButton(text, what));
}

export function copyButton(text, what) {
	const node = button("Copy", async () => {
		const done = await copy(typeof text === "function" ? text() : text);
		node.textContent = done ? "Copied" : "Not copied";
		announce(done ? `Copied the ${what}` : "The browser does not allow this page to copy");
		setTimeout(() => (node.textContent = "Copy"), 1500);
	}, "quiet.copy", { "aria-label": `Copy the ${what}`, title: `Copy the ${what}` });
	return node;
}

async function copy(text) {
	try {
		await navigator.clipboard.writeText(text);
		return true;
	} catch {
		// Without TLS, browsers have no clipboard but on this machine.
		const area = el("textarea.hidden", { value: text, "aria-hidden": "true" });
		const focused = document.activeElement;
		(focused?.closest("dialog") ?? document.body).append(area);
		area.select();
		const done = document.execCommand("copy");
		area.remove();
		focused?.focus();
		return done;
	}
}
