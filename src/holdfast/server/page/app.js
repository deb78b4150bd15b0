// The page: the shown conversation, the list beside it, the key, and keyboard shortcuts.
import { ask, isRemembered, keep, key, once, place, stream, takeLink, whenRefused } from "./api.js";
import { attach, attached, detach, show } from "./attach.js";
import { begin, endBegin } from "./begin.js";
import { Deciding, openDialog } from "./deciding.js";
import { $, announce, button, el, fill, talkLink, talkPlace, toast } from "./dom.js";
import { results } from "./entries.js";
import { find, findAll, lead } from "./finding.js";
import { Fold } from "./fold.js";
import { Log } from "./log.js";
import { askKey, help, makeFork } from "./making.js";
import { connectNotices, entitle, forgetWaiting, watch } from "./notices.js";
import { chip, Panel, undriven } from "./panel.js";
import { clock, count, counted, money, oneLine, statusName } from "./text.js";

const LIST_MILLISECONDS = 4000; // the period in which the list is refreshed
const HIDDEN_MILLISECONDS = 20_000; // a tab hidden for this long closes its stream, because browsers allow only six connections to a server
const TAIL_EVENTS = 300; // the newest events, shown before all are loaded

const wide = matchMedia("(min-width: 1100px)");

class Talk {
	constructor(id, seq = 0) {
		this.id = id;
		this.seq = seq; // the event that is shown first, 0 for the newest
		this.info = null;
		this.fold = new Fold();
		this.whole = false; // true once all events are loaded
		this.ended = new AbortController();
		this.streaming = null;
		this.log = new Log({ fork: (seq) => this.fork(seq), whole: (callId) => this.output(callId) });
		this.deciding = new Deciding((what, body, done, failed) => this.tell(what, body, done, failed));
		this.panel = new Panel(this);
		this.frame = 0;
		this.draft = sessionStorage.getItem(`holdfast.draft.${id}`) ?? "";
	}

	/** True if the conversation is running but not driven, such as a fork of a running conversation. */
	get undriven() {
		return this.fold.status === "running" && undriven(this.info) && this.fold.last <= this.info.lastSeq;
	}

	get readOnly() {
		return Boolean(this.info?.spawnedBy);
	}

	/** Return a text that changes with the forks in the list. */
	forks() {
		return list.items.filter((item) => item.parent).map((item) => `${item.id} ${item.status} ${item.lastSeq} ${item.title}`).join("\n");
	}

	async open() {
		$("#empty").hidden = true;
		$("#talk").hidden = false;
		fill($("#title"), oneLine(this.id, 80));
		fill($("#facts"), "loading…");
		fill($("#controls"));
		text.value = this.draft;
		show(this.id);
		grow();
		try {
			this.info = await ask("GET", place(this.id));
			const last = this.info.lastSeq ?? 0;
			if (last > 2 * TAIL_EVENTS) {
				// Show the newest events at once, then load all of them without moving the view.
				this.fold.take((await ask("GET", place(this.id, `events?after_seq=${last - TAIL_EVENTS}&limit=1000`))).events);
				this.log.show(this.fold.entries);
				this.render();
				await this.#all();
			} else {
				await this.#all();
			}
		} catch (error) {
			if (this.ended.signal.aborted) return;
			fill($("#facts"), el("span.bad", error.message));
			if (error.status === 0) setTimeout(() => current === this && this.open(), 2000);
			return;
		}
		this.connect();
	}

	async #all() {
		const fold = new Fold();
		for (;;) {
			const page = await ask("GET", place(this.id, `events?after_seq=${fold.last}&limit=1000`), undefined, { signal: this.ended.signal });
			fold.take(page.events);
			if (!page.events.length || fold.last >= page.lastSeq) break;
			if (!this.fold.entries.length || page.lastSeq > 2000) fill($("#facts"), `loading, ${Math.round((100 * fold.last) / page.lastSeq)} %`);
		}
		if (this.ended.signal.aborted) return;
		this.fold = fold;
		this.whole = true;
		this.log.show(fold.entries);
		this.render();
		if (this.seq) lead(this, this.seq);
		this.seq = 0;
	}

	connect() {
		if (this.streaming || this.ended.signal.aborted) return;
		this.streaming = new AbortController();
		stream(this.id, this.fold.last, { events: (events, notes) => this.take(events, notes), state: (state, message) => this.state(state, message) }, this.streaming.signal);
	}

	disconnect() {
		this.streaming?.abort();
		this.streaming = null;
	}

	close() {
		this.ended.abort();
		this.disconnect();
		cancelAnimationFrame(this.frame);
		this.log.close();
		this.deciding.close();
		this.panel.close();
		banner("");
	}

	take(events, notes) {
		const before = this.fold.entries.length;
		const status = this.fold.status;
		const touched = this.fold.take(events);
		const answered = events.some((event) => event.type === "assistant");
		let live = answered;
		const progressed = new Set();
		this.log.activity.arrived(events);
		for (const { kind, data } of notes) {
			if (kind === "delta" && answered) {
				this.fold.cut(); // the delta may belong to this answer or to the next one
				continue;
			}
			const found = this.fold.note(kind, data);
			if (found === "live") live = true;
			else if (found) progressed.add(found);
		}
		const fresh = this.fold.entries.slice(before);
		for (const entry of fresh) touched.delete(entry);
		if (touched.size) this.log.update(touched);
		this.log.append(fresh);
		for (const call of progressed) this.log.progressed(call);
		if (live || events.length) this.streamed = true;
		this.said(events);
		if (this.fold.status !== status) this.changed();
		this.frame ||= requestAnimationFrame(() => {
			this.frame = 0;
			this.render();
		});
	}

	said(events) {
		for (const event of events) {
			if (event.type === "assistant" && event.text) announce(`Agent: ${oneLine(event.text, 300)}`);
			else if (event.type === "status" && event.status !== "running") announce(statusName(event.status));
			else if (event.type === "error") announce(`Error: ${oneLine(event.message, 200)}`, true);
		}
	}

	async changed() {
		list.soon();
		try {
			this.info = await ask("GET", place(this.id));
		} catch {}
		if (current === this) this.render();
	}

	async state(state, message) {
		if (state === "gone") {
			this.streaming = null;
			if (key()) toast(message, true);
			return;
		}
		banner(state === "lost" ? message : "", true);
		if (state === "open") {
			if (this.lost) {
				// The server at this address may have another store by now.
				const info = await ask("GET", place(this.id)).catch(() => null);
				if (info && (info.lastSeq ?? 0) < this.fold.last) navigate();
				else if (info) this.info = info;
				announce("Connected again");
			}
			this.lost = false;
			if (this.fold.live) this.fold.cut();
			this.render();
		} else {
			this.lost = true;
		}
	}

	render() {
		const { fold, info } = this;
		this.log.live(fold.live, fold.broken);
		this.log.now(this.undriven ? null : fold);
		this.deciding.show(fold);
		this.panel.show();
		const title = info?.title || this.id;
		fill($("#title"), oneLine(title, 120));
		const tokens = fold.usage.inputTokens + fold.usage.outputTokens;
		fill($("#facts"), chip(fold.status, this.undriven), this.whole ? [tokens ? ` ${count(tokens)} tokens` : "", fold.cost ? ` · ${money(fold.cost)}` : "", fold.steps ? ` · ${counted(fold.steps, "step")}` : ""] : " loading…",
			info?.error ? el("span.bad", ` ${oneLine(info.error, 200)}`) : null);
		const running = fold.status === "running" && !this.undriven;
		const stopped = this.undriven || fold.status === "paused" || fold.status === "error" || fold.status === "stuck";
		const name = `${fold.status} ${this.readOnly} ${this.undriven}`;
		if (name !== this.controls) {
			this.controls = name;
			const within = $("#controls").contains(document.activeElement);
			fill($("#controls"), this.readOnly ? null : [
				running && button("Pause", () => this.pause(), "", { title: "Pause after the running step (p)" }),
				stopped && button("Resume", () => this.pause(), "", { title: "Continue (p)" }),
				(running || fold.status === "waiting_for_confirmation") && button("Stop", () => this.interrupt(), "danger", { title: "Cancel running work now (x)" }),
			]);
			if (within) ($("#controls button") ?? text).focus();
			$("#composer").hidden = this.readOnly;
			$("#reader").hidden = !this.readOnly;
			if (this.readOnly) fill($("#reader"), "A call of ", talkLink(this.info.spawnedBy.split(":")[0]), " spawned this conversation. Send messages there; decide waiting calls here.");
		}
		entitle(`${oneLine(title, 60)} - Holdfast`, fold.pending.length || fold.questions.length ? this.id : "");
	}

	/** Send a command. Returns true if the server accepted it; otherwise `failed` receives the reason (default: a toast). */
	async tell(what, body, done, failed = (message) => toast(message, true)) {
		try {
			await ask("POST", place(this.id, what), body, { once: ["start", "run", "close"].includes(what) ? undefined : once() });
			if (done) toast(done);
			this.changed();
			return true;
		} catch (error) {
			failed(error.message);
			return false;
		}
	}

	pause() {
		if (this.readOnly) return;
		const { status } = this.fold;
		if (this.undriven) this.tell("run", undefined, "The conversation continues.");
		else if (status === "running") this.tell("pause", undefined, "The conversation pauses after the running step.");
		else if (["paused", "error", "stuck"].includes(status)) this.tell(this.info?.started ? "resume" : "run", undefined, "The conversation continues.");
	}

	interrupt() {
		if (!this.readOnly) this.tell("interrupt", undefined, "Interrupted.");
	}

	async send(said, files, name) {
		const content = [...files, ...(said.trim() ? [{ type: "text", text: said }] : [])];
		await ask("POST", place(this.id, "messages"), { content, eventId: name }, { once: name });
		// A conversation that is not started must be run explicitly. A paused one stays paused.
		if (!this.info?.started && !["paused", "waiting_for_confirmation"].includes(this.fold.status)) await ask("POST", place(this.id, "run"));
	}

	fork(seq) {
		const event = this.fold.entries.find((entry) => entry.seq === seq)?.event;
		const said = event?.type === "message" && (event.sender ?? "user") === "user" ? event.content.map((block) => block.text ?? "").join("\n").trim() : null;
		makeFork(this.id, seq, (id) => go(id), said);
	}

	async remove() {
		if (!confirm("Delete this conversation? This deletes its journal, and its workspace if no other conversation uses it.")) return;
		try {
			await ask("DELETE", place(this.id));
			location.hash = "#/";
			list.soon();
		} catch (error) {
			toast(error.message, true);
		}
	}

	async output(callId) {
		try {
			const result = await ask("GET", place(this.id, "outputs", encodeURIComponent(callId)));
			openDialog("The whole output", el("div.result", results(result)), { wide: true });
		} catch (error) {
			toast(error.message, true);
		}
	}

	openPanel() {
		this.panel.node.hidden = false;
		$("#panel-open").setAttribute("aria-expanded", "true");
		this.panel.show();
		if (!wide.matches) $("[aria-selected=true]", this.panel.node).focus();
	}

	closePanel() {
		const within = this.panel.node.contains(document.activeElement);
		this.panel.node.hidden = true;
		$("#panel-open").setAttribute("aria-expanded", "false");
		if (within) $("#panel-open").focus();
	}
}

const list = {
	items: [],
	more: false,
	pages: 1,
	timer: 0,
	shown: "",
	asking: null,

	/** Refresh the list after `wait` milliseconds, then periodically while the tab is visible. */
	soon(wait = 0) {
		clearTimeout(this.timer);
		this.timer = setTimeout(() => this.load(), wait);
	},

	async load() {
		if (!key()) return;
		const status = $("#status").value;
		const searching = Boolean($("#search").value.trim());
		if (searching) this.pages = Math.max(this.pages, 5);
		this.asking?.abort();
		const { signal } = (this.asking = new AbortController());
		try {
			const items = [];
			let next = "";
			for (let page = 0; page < this.pages && next !== null; page++) {
				const found = await ask("GET", `/api/conversations?limit=200${status && `&status=${status}`}${next && `&cursor=${next}`}`, undefined, { signal });
				items.push(...found.items);
				next = found.next ?? null;
			}
			const waits = (item) => (item.status === "waiting_for_confirmation" ? 0 : 1);
			this.items = items.sort((one, other) => waits(one) - waits(other) || (one.updated < other.updated ? 1 : -1));
			this.more = next !== null;
			this.render();
			current?.panel.show(); // it shows forks
			if (!current || !current.lost) banner("");
			await watch(this.items, !status && !this.more, go);
		} catch (error) {
			if (error.name === "AbortError" || error.status === 401) return;
			if (error.status === 0) banner("The server does not answer. Reconnecting…", true);
		}
		this.soon(document.hidden ? 4 * LIST_MILLISECONDS : LIST_MILLISECONDS);
	},

	/** Return the conversations that fit the search, each fork below its origin, and how deep each is. */
	tree() {
		const items = this.found();
		const ids = new Set(items.map((item) => item.id));
		const below = Map.groupBy(items, (item) => (ids.has(item.parent) && item.parent !== item.id ? item.parent : ""));
		const rows = [];
		const add = (item, depth) => {
			rows.push({ item, depth });
			for (const one of below.get(item.id) ?? []) add(one, depth + 1);
		};
		// A family stands where its first member would.
		const parents = new Map(items.map((one) => [one.id, one]));
		const root = (item) => {
			while (ids.has(item.parent) && item.parent !== item.id) item = parents.get(item.parent);
			return item;
		};
		for (const item of new Set(below.size > 1 ? items.map(root) : items)) add(item, 0);
		return rows;
	},

	found() {
		const wanted = $("#search").value.trim().toLowerCase();
		return wanted ? this.items.filter((item) => `${item.title ?? ""}\n${(item.tags ?? []).join("\n")}\n${item.id}`.toLowerCase().includes(wanted)) : this.items;
	},

	render() {
		const rows = this.tree();
		const wanted = $("#search").value.trim();
		const name = JSON.stringify([rows.map(({ item, depth }) => [item.id, item.status, item.driven, item.title, item.tags, item.updated, depth]), current?.id, this.more, wanted]);
		if (name === this.shown) return;
		this.shown = name;
		const node = $("#list");
		const focused = node.contains(document.activeElement) ? document.activeElement.dataset.id : null;
		fill(node, rows.map(({ item, depth }) => el("li", el(`a.item${depth ? `.fork-${Math.min(depth, 3)}` : ""}`, { href: talkPlace(item.id), "data-id": item.id, "aria-current": item.id === current?.id ? "page" : null },
			el("span.name", oneLine(item.title || item.id, 90)), el("span.meta", chip(item.status, undriven(item)), (item.tags ?? []).slice(0, 3).map((tag) => el("span.chip", oneLine(tag, 30))), el("time", { datetime: item.updated }, clock(item.updated)))))),
			!rows.length && el("li.dim", this.items.length || $("#status").value ? "No conversation matches." : "There are no conversations yet."),
			wanted && el("li", button(`Find “${oneLine(wanted, 30)}” in the contents`, () => findAll(wanted), "quiet")));
		if (focused) $(`[data-id="${CSS.escape(focused)}"]`, node)?.focus();
		$("#more").hidden = !this.more;
	},
};

let current = null;

function navigate() {
	if (takeLink()) return enter();
	const match = /^#\/c\/([^/]+)(?:\/(\d{1,15}))?$/.exec(location.hash);
	current?.close();
	current = null;
	if ($("#dialog").open && key()) $("#dialog").close();
	const open = Boolean(match);
	document.body.classList.toggle("talking", open || location.hash === "#/new");
	if (!open) {
		$("#talk").hidden = true;
		$("#empty").hidden = false;
		$("#panel").hidden = true;
		entitle("Holdfast");
		if (key()) {
			begin(go); // draws the form at once; what the server offers comes later
			if (location.hash === "#/new") $("#begin-text")?.focus();
		}
	} else if (key()) {
		let id = match[1];
		try {
			id = decodeURIComponent(id);
		} catch {}
		current = new Talk(id, Number(match[2] ?? 0));
		if (wide.matches) current.openPanel();
		else current.closePanel();
		current.open();
	}
	list.render();
}

const go = (id) => {
	location.hash = talkPlace(id);
	list.soon();
};

function banner(message, bad = false) {
	const node = $("#banner");
	if (node.hidden === !message && node.textContent === message) return;
	node.hidden = !message;
	node.textContent = message;
	node.classList.toggle("bad", bad);
}

const text = $("#composer-text");
const coarse = matchMedia("(pointer: coarse)");

function grow() {
	text.style.height = "auto";
	text.style.height = `${Math.min(text.scrollHeight + 2, innerHeight * 0.4)}px`;
}

text.addEventListener("input", () => {
	grow();
	if (current) sessionStorage.setItem(`holdfast.draft.${current.id}`, text.value);
});
text.addEventListener("keydown", (event) => {
	if (event.key === "Enter" && !event.isComposing && (event.ctrlKey || event.metaKey || (!event.shiftKey && !coarse.matches))) {
		event.preventDefault();
		$("#composer").requestSubmit();
	}
});

let sending = null; // a message that was not accepted yet, with the id under which it is repeated
$("#composer").addEventListener("submit", async (event) => {
	event.preventDefault();
	const talk = current;
	const said = text.value;
	const files = talk ? attached(talk.id) : [];
	if (!talk || !(said.trim() || files.length) || talk.sending) return;
	if (sending?.said !== said || sending.id !== talk.id || sending.files !== files) sending = { said, files, id: talk.id, name: once() };
	talk.sending = true;
	text.value = "";
	grow();
	talk.log.toBottom();
	try {
		await talk.send(said, files, sending.name);
		sending = null;
		for (const one of files) detach(talk.id, one);
		if (current !== talk) show(current?.id);
		sessionStorage.removeItem(`holdfast.draft.${talk.id}`);
		talk.changed();
	} catch (error) {
		if (current === talk && !text.value) text.value = said;
		grow();
		toast(error.message, true);
	}
	talk.sending = false;
});

async function take(event, files) {
	const { id } = current ?? {};
	if (!files.length || !id || current.readOnly) return;
	event.preventDefault();
	await attach(id, files);
	if (current?.id === id) show(id);
}
text.addEventListener("paste", (event) => {
	// An office program puts a picture of the text beside the text.
	if (!event.clipboardData.types.includes("text/plain")) take(event, event.clipboardData.files);
});
$("#talk").addEventListener("dragover", (event) => event.dataTransfer.types.includes("Files") && event.preventDefault());
$("#talk").addEventListener("drop", (event) => take(event, event.dataTransfer.files));
$("#attach").onclick = () => $("#files").click();
$("#files").onchange = (event) => {
	take(event, [...event.target.files]).then(() => text.focus());
	event.target.value = "";
};

const singles = () => localStorage.getItem("holdfast.singles") !== "off";
const KEYS = {
	n: () => start(),
	"/": () => $("#search").focus(),
	m: () => current && text.focus(),
	a: () => current?.deciding.review(),
	p: () => current?.pause(),
	x: () => current?.interrupt(),
	d: () => current && (current.panel.open ? current.closePanel() : current.openPanel()),
	g: () => current?.log.toBottom(),
	f: () => (current ? find(current) : findAll()),
	c: () => current?.log.toggleAll(),
	j: () => step(1),
	k: () => step(-1),
	"?": () => openHelp(),
};

function openHelp() {
	help(singles(), (on) => localStorage.setItem("holdfast.singles", on ? "on" : "off"));
}

function step(by) {
	const items = list.tree().map(({ item }) => item);
	const at = items.findIndex((item) => item.id === current?.id);
	const next = items[Math.max(0, Math.min(items.length - 1, at < 0 ? 0 : at + by))];
	if (next && next.id !== current?.id) go(next.id);
}

document.addEventListener("keydown", (event) => {
	if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || $("#dialog").open) return;
	const field = event.target.closest?.("input, textarea, select, [contenteditable]");
	if (event.key === "Escape") {
		if (field) field.blur();
		else if (current?.panel.open && !wide.matches) current.closePanel();
		return;
	}
	if (field || !singles() || !KEYS[event.key]) return;
	event.preventDefault();
	KEYS[event.key]();
});

/** Show the start of a conversation. */
function start() {
	if (location.hash === "#/new") $("#begin-text")?.focus();
	location.hash = "#/new";
}

function login(why) {
	current?.disconnect();
	$("#account").hidden = true;
	askKey(why, enter);
}

/** Show what the key may see. */
function enter() {
	$("#account").hidden = false;
	$("#remember").checked = isRemembered();
	endBegin();
	forgetWaiting();
	list.soon();
	navigate();
}

whenRefused(() => {
	if (!key()) return;
	keep("");
	login("The server no longer accepts this key. It may have been revoked.");
});

let hiding = 0;
document.addEventListener("visibilitychange", () => {
	clearTimeout(hiding);
	if (document.hidden) {
		hiding = setTimeout(() => current?.disconnect(), HIDDEN_MILLISECONDS);
	} else {
		if (current?.whole && key()) current.connect();
		list.soon();
	}
});

$("#status").append(...["", "waiting_for_confirmation", "running", "finished", "paused", "error", "stuck", "idle"].map((one) => el("option", { value: one }, statusName(one) || "all")));
addEventListener("hashchange", navigate);
$("#new-open").onclick = start;
$("#remember").onchange = (event) => keep(key(), event.target.checked);
connectNotices($("#notify"));
$("#help-open").onclick = openHelp;
$("#panel-open").onclick = () => current && (current.panel.open ? current.closePanel() : current.openPanel());
$("#search").onkeydown = (event) => {
	if (event.key === "Enter" && event.target.value.trim()) findAll(event.target.value.trim());
};
$("#search").oninput = () => (list.more ? list.soon(200) : list.render());
$("#status").onchange = () => list.soon();
$("#more").onclick = () => {
	list.pages++;
	list.soon();
};
$("#leave").onclick = () => {
	keep("");
	location.hash = "#/";
	endBegin();
	forgetWaiting();
	login("");
};
$(".skip").onclick = (event) => {
	event.preventDefault();
	(current ? text : ($("#begin-text") ?? $("#search"))).focus();
};
addEventListener("resize", grow);

if (takeLink() || key()) {
	enter();
} else {
	login("");
}
