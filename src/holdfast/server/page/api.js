// What is said to the server, and a conversation's events as they come. The key is in this tab's sessionStorage, and nowhere else.
import { parse } from "./text.js";

const KEY = "holdfast.key";
let onRefused = () => {};

export const key = () => sessionStorage.getItem(KEY) ?? "";
export const keep = (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY));
/** `found(message)` is called when the key is let in no more. */
export const whenRefused = (found) => (onRefused = found);

/** An answer that is no success: its HTTP status, 0 where there was none, and the error's type. */
export class Failure extends Error {
	constructor(status, type, message) {
		super(message);
		this.status = status;
		this.type = type;
	}
}

async function failure(response) {
	let told = {};
	try {
		told = (await response.json()).error ?? {};
	} catch {}
	const found = new Failure(response.status, told.type ?? "", told.message ?? `The server answered ${response.status}.`);
	if (response.status === 401) onRefused(found.message);
	return found;
}

/** Ask the API. Throws `Failure`. What changes something takes a `once`: sent again under it, it is not done twice. */
export async function ask(method, path, body, { once, signal, with: other } = {}) {
	const headers = { Authorization: `Bearer ${other ?? key()}` };
	if (body !== undefined) headers["Content-Type"] = "application/json";
	if (once) headers["Idempotency-Key"] = once;
	let response;
	try {
		response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal, cache: "no-store" });
	} catch (error) {
		if (error.name === "AbortError") throw error;
		throw new Failure(0, "", "The server does not answer.");
	}
	if (!response.ok) throw other === undefined ? await failure(response) : new Failure(response.status, "", "");
	if (response.status === 204) return null;
	return parse(await response.text());
}

export const place = (id, ...more) => ["/api/conversations", encodeURIComponent(id), ...more].join("/");
export const once = () => crypto.randomUUID?.() ?? String(Math.random()).slice(2);

/**
 * The events of a conversation after `after`, until `signal`; it comes again by itself when the connection breaks.
 * `on.events(list, notes)` gets those that came at once, in order, and what passes; `on.state("open" | "lost" | "gone", message)` how it stands.
 */
export async function stream(id, after, on, signal) {
	let wait = 250;
	while (!signal.aborted) {
		// What breaks without a word is found out: the server says something every ten seconds.
		const attempt = new AbortController();
		const stop = () => attempt.abort();
		signal.addEventListener("abort", stop);
		let silence = setTimeout(stop, 35_000);
		try {
			const response = await fetch(place(id, `stream?after_seq=${after}`), { headers: { Authorization: `Bearer ${key()}` }, signal: attempt.signal, cache: "no-store" });
			if (!response.ok) {
				const error = await failure(response);
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
		on.state("lost", "The connection is lost; trying again.");
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
