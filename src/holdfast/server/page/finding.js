// Finds texts: in the shown conversation, and in the contents of all conversations.
import { ask } from "./api.js";
import { openDialog } from "./deciding.js";
import { $, button, el, fill } from "./dom.js";
import { count, oneLine } from "./text.js";

const MOST = 50; // hits that are shown at once

/** Open the search dialog for a conversation. The browser's own search misses distant entries, which have no elements. */
export function find(talk) {
	const input = el("input", { id: "find", type: "search", autocomplete: "off", "aria-label": "Text" });
	const found = el("ul.found", { "aria-live": "polite" });
	const look = () => {
		const wanted = input.value.trim().toLowerCase();
		const hits = [];
		for (let index = talk.fold.entries.length - 1; wanted && index >= 0 && hits.length < MOST; index--) {
			const entry = talk.fold.entries[index];
			const said = words(entry);
			const at = said.toLowerCase().indexOf(wanted);
			if (at >= 0) hits.push({ entry, said: said.slice(Math.max(0, at - 40), at + 80) });
		}
		fill(found, hits.map(({ entry, said }) => el("li", button([el("b", `#${entry.seq} `), oneLine(said)], () => {
			dialog.close();
			lead(talk, entry.seq);
		}, "quiet"))), wanted && !hits.length && el("li.dim", "Not found."));
	};
	input.oninput = look;
	const dialog = openDialog("Find in this conversation", [input, found, el("p.buttons", button("In all conversations…", () => {
		dialog.close();
		findAll(input.value.trim());
	}, "quiet"))]);
	input.focus();
}

/** Lead the view and the focus to the entry of an event; once more when all events are loaded if they are not yet. */
export function lead(talk, seq) {
	if (!talk.whole) talk.seq = seq;
	const node = talk.log.goTo(seq, 60);
	node?.setAttribute("tabindex", "-1");
	node?.focus({ preventScroll: true });
}

function words({ event, calls = [] }) {
	const texts = (given) => (given?.content ?? []).map((block) => block.text ?? "");
	return [event.text, event.message, event.summary, ...texts(event), ...texts(event.result), ...calls.flatMap((call) => [call.name, JSON.stringify(call.arguments), ...texts(call.result)])].join("\n");
}

/** Open the search in the contents of all conversations. The server reads them step by step; closing the dialog ends the search. */
export function findAll(wanted = "") {
	const input = el("input", { id: "find-all", type: "search", autocomplete: "off", value: wanted, "aria-label": "Text" });
	const found = el("ul.found");
	const state = el("p.dim", { role: "status" });
	const more = button("More", () => go(true), "", { hidden: true });
	let run = new AbortController();
	let cursor = null;
	let read = [0, 0];

	const go = async (on = false) => {
		run.abort();
		run = new AbortController();
		const { signal } = run;
		const text = input.value.trim();
		if (!on) {
			found.replaceChildren();
			[cursor, read] = [null, [0, 0]];
		}
		more.hidden = true;
		if (!text) return fill(state);
		const most = found.children.length + MOST;
		try {
			do {
				const step = await ask("GET", `/api/search?${new URLSearchParams({ q: text, ...(cursor ? { cursor } : {}) })}`, undefined, { signal });
				cursor = step.next;
				read = [read[0] + step.conversations, read[1] + step.events];
				found.append(...step.hits.map((hit) => el("li", el("a.hit", { href: `#/c/${encodeURIComponent(hit.id)}/${hit.seq}`, onclick: () => dialog.close() }, el("b", oneLine(hit.title || hit.id, 60)), el("span.dim", ` #${hit.seq} `), oneLine(hit.text, 220)))));
				const told = `${count(read[0])} conversations, ${count(read[1])} events read`;
				fill(state, cursor ? `Searching… ${told}` : `${found.children.length ? "" : "Not found. "}${told}.`);
			} while (cursor && found.children.length < most);
			more.hidden = !cursor;
			if (cursor) fill(state, `${count(read[0])} conversations, ${count(read[1])} events read; there are older ones.`);
		} catch (error) {
			if (error.name !== "AbortError") fill(state, el("span.bad", error.message));
		}
	};
	const dialog = openDialog("Find in all conversations", el("form", { onsubmit: (event) => (event.preventDefault(), go()) },
		el("p.row", input, el("button.primary", { type: "submit" }, "Find")), state, found, el("p.buttons", more)), { wide: true, onclose: () => run.abort() });
	input.focus();
	if (wanted) go();
}
