// Requests to the server, and the stream of a conversation's events. The key is in this tab's sessionStorage, and in localStorage only if the user wants it to be remembered.
import { parse } from "./text.js";

const KEY = "holdfast.key";
let onRefused = () => {};

export const key = () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "";
export const isRemembered = () => localStorage.getItem(KEY) !== null;

/** Keep the key for this tab, and in this browser if it is to be remembered. "" forgets it everywhere. */
export function keep(value, remembered = isRemembered()) {
	if (value) sessionStorage.setItem(KEY, value);
	else sessionStorage.removeItem(KEY);
	if (value && remembered) localStorage.setItem(KEY, value);
	else localStorage.removeItem(KEY);
}

/** Take the key out of a sign-in link (`#key=...`) and out of the address. Returns true if there was one. */
export function takeLink() {
	const match = /^#key=(.+)$/.exec(location.hash);
	if (!match) return false;
	history.replaceState(null, "", `${location.pathname}#/`);
	let given = match[1];
	try {
		given = decodeURIComponent(given);
	} catch {}
	if (!/^[!-~]+$/.test(given)) return false;
	keep(given);
	return true;
}

/** Set the function that is called with a message when the server refuses the key. */
export const whenRefused = (handler) => (onRefused = handler);

/** A failed request: the HTTP status (0 if there was no answer) and the error's type. */
export class Failure extends Error {
	constructor(status, type, message) {
		super(message);
		this.status = status;
		this.type = type;
	}
}

/** Throw if the key is not `used` any more: an answer to an earlier key is not shown to the present one, and its refusal does not sign the present one out. */
function checkKey(used) {
	if (used !== key()) throw new Failure(401, "key_changed", "The key was changed before the server answered.");
}

async function failure(response, used) {
	let error = {};
	try {
		error = (await response.json()).error ?? {};
	} catch {}
	checkKey(used);
	const found = new Failure(response.status, error.type ?? "", error.message ?? `The server answered ${response.status}.`);
	if (response.status === 401) onRefused(found.message);
	return found;
}

/** Send a request to the API. Throws `Failure`. Changing requests pass an idempotency key as `once`, so that a repetition is not executed twice. */
export async function ask(method, path, body, { once, signal, with: other } = {}) {
	const used = key();
	const headers = { Authorization: `Bearer ${other ?? used}` };
	if (body !== undefined) headers["Content-Type"] = "application/json";
	if (once) headers["Idempotency-Key"] = once;
	let response;
	try {
		response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal, cache: "no-store" });
	} catch (error) {
		if (error.name === "AbortError") throw error;
		throw new Failure(0, "", "The server does not answer.");
	}
	if (!response.ok) throw other === undefined ? await failure(response, used) : new Failure(response.status, "", "");
	const text = await response.text();
	if (other === undefined) checkKey(used);
	return response.status === 204 ? null : parse(text);
}

/** Fetch a file. Throws `Failure`. */
export async function download(path) {
	const used = key();
	let response;
	let file;
	try {
		response = await fetch(path, { headers: { Authorization: `Bearer ${used}` }, cache: "no-store" });
		if (response.ok) file = await response.blob();
	} catch {
		throw new Failure(0, "", "The server does not answer.");
	}
	if (!file) throw await failure(response, used);
	checkKey(used);
	return file;
}

export const place = (id, ...more) => ["/api/conversations", encodeURIComponent(id), ...more].join("/");
export const once = () => crypto.randomUUID?.() ?? String(Math.random()).slice(2);

/**
 * Stream the events of a conversation after `after` until `signal`. Reconnects when the connection breaks.
 * `on.events(list, notes)` receives events in order and transient notes. `on.state("open" | "lost" | "gone", message)` receives the state of the connection.
 */
export async function stream(id, after, on, signal) {
	let wait = 250;
	while (!signal.aborted) {
		// Detects a connection that broke silently: the server sends something every ten seconds.
		const attempt = new AbortController();
		const stop = () => attempt.abort();
		signal.addEventListener("abort", stop);
		let silence = setTimeout(stop, 35_000);
		const used = key();
		try {
			const response = await fetch(place(id, `stream?after_seq=${after}`), { headers: { Authorization: `Bearer ${used}` }, signal: attempt.signal, cache: "no-store" });
			if (!response.ok) {
				const error = await failure(response, used);
				if (error.status === 404 || error.status === 401 || error.status === 403) {
					on.state("gone", error.message);
					return;
				}
				throw error;
			}
			on.state("open", "");
			wait = 250;
			const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
			let rest = "";
			for (;;) {
				const { value, done } = await reader.read();
				if (done) break;
				clearTimeout(silence);
				silence = setTimeout(stop, 35_000);
				const parts = (rest + value).split("\n\n");
				rest = parts.pop();
				const events = [];
				const notes = [];
				for (const part of parts) {
					const found = read(part);
					if (found === null) continue;
					if (found.seq === null) notes.push(found);
					else if (found.seq > after) {
						after = found.seq;
						events.push(found.data);
					}
				}
				if (signal.aborted) return;
				if (events.length || notes.length) on.events(events, notes);
			}
		} catch (error) {
			if (signal.aborted) return;
			if (!(error instanceof Failure) && error.name !== "AbortError" && error.name !== "TypeError") console.error(error);
		} finally {
			clearTimeout(silence);
			signal.removeEventListener("abort", stop);
			attempt.abort();
		}
		if (signal.aborted) return;
		on.state("lost", "The connection is lost. Reconnecting…");
		await new Promise((resolve) => setTimeout(resolve, wait * (0.75 + Math.random() / 2)));
		wait = Math.min(5000, wait * 2);
	}
}

function read(part) {
	let seq = null;
	let kind = "";
	let data = "";
	for (const line of part.split("\n")) {
		if (line.startsWith("id: ")) seq = Number(line.slice(4));
		else if (line.startsWith("event: ")) kind = line.slice(7);
		else if (line.startsWith("data: ")) data = line.slice(6);
	}
	if (!data) return null;
	try {
		return { seq, kind, data: parse(data) };
	} catch {
		return seq === null ? null : { seq, kind, data: { type: "unknown", seq } };
	}
}
