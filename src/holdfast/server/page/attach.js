// Files that the user attaches to the next message of a conversation: chosen, pasted or dropped.
import { $, button, el, fill, toast } from "./dom.js";
import { bytes, oneLine } from "./text.js";

const MAX_BYTES = 20e6; // of all files of a message; base64 makes them a third larger, and the server accepts 32 MB

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

const waiting = new Map(); // a conversation's id -> its blocks
const NONE = [];

/** Return the attached files of a conversation as blocks: the same list until they change. */
export const attached = (id) => waiting.get(id) ?? NONE;

/** Attach files to the next message of a conversation. */
export async function attach(id, files) {
	for (const file of files) {
		try {
			const block = await read(file);
			const blocks = [...attached(id), block];
			if (blocks.reduce((sum, one) => sum + one.data.length, 0) > MAX_BYTES * 4 / 3) throw Error("A message may have files of 20 MB together.");
			waiting.set(id, blocks);
		} catch (error) {
			toast(`${oneLine(file.name, 80)}: ${error.message}`, true);
		}
	}
}

/** Forget the attached files of a conversation, or one of them. */
export function detach(id, one) {
	waiting.set(id, one ? attached(id).filter((other) => other !== one) : []);
	show(id);
}

/** Forget all attached files of a conversation. */
export function forget(id) {
	waiting.delete(id);
	show(id);
}

/** Show the attached files of a conversation above the message field; those of the conversation that is to begin, in its form. */
export function show(id) {
	const files = attached(id);
	const node = $(id === "new" ? "#begin-files" : "#attached");
	if (!node) return;
	node.hidden = !files.length;
	fill(node, files.map((one) => {
		const name = oneLine(one.name, 80);
		return el("li", PICTURES.has(one.mimeType) && el("img", { src: `data:${one.mimeType};base64,${one.data}`, alt: "" }), `${name} (${bytes(one.data)}) `, button("×", () => detach(id, one), "quiet", { "aria-label": `Remove ${name}` }));
	}));
}

async function read(file) {
	if (!file.size) throw Error("The file is empty.");
	if (file.size > MAX_BYTES) throw Error("A message may have files of 20 MB together.");
	let mimeType = file.type;
	if (!mimeType) {
		const bytes = await file.arrayBuffer();
		try {
			new TextDecoder("utf-8", { fatal: true }).decode(bytes);
		} catch {
			throw Error("The type of this file is unknown.");
		}
		mimeType = "text/plain";
	}
	const url = await new Promise((done, failed) => {
		const reader = new FileReader();
		reader.onload = () => done(reader.result);
		reader.onerror = () => failed(reader.error);
		reader.readAsDataURL(file);
	});
	return { type: "file", data: url.slice(url.indexOf(",") + 1), mimeType, name: file.name };
}
