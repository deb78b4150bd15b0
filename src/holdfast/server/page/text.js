// Formatting for display: texts, numbers, times, JSON.

// CSI sequences, OSC and similar sequences, and single escapes.
export const ANSI = /\u001b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[ -/]*[0-~])|\u009b[0-?]*[ -/]*[@-~]/g;
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

/** Return a number with its noun: "1 step", "2 steps". */
export const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

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
