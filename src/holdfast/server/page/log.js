// The log: entries in chunks. Only chunks near the visible part have elements.
import { $, button, el, fill } from "./dom.js";
import { LiveAnswer, progress, render } from "./entries.js";
import { Now } from "./now.js";

const CHUNK_ENTRIES = 8; // as many as can be built within one animation frame
const NEAR = "1500px 0px"; // the distance from the visible part within which chunks are built

/** The estimated height of entries that were not built yet. */
const pixels = (entries) => entries.reduce((sum, { group }) => sum + (group?.entries.length > 1 && !group.open ? 20 : 110), 0);

export class Log {
	constructor(act) {
		this.scroller = $("#scroller");
		this.node = $("#log");
		this.liveNode = $("#live");
		this.latest = $("#latest");
		this.opened = new Set(); // ids of calls that are shown in full
		this.lines = false; // true if all other calls are shown as one line
		this.act = { ...act, toggle: (call) => this.toggle(call), toggleGroup: (group) => this.toggleGroup(group), level: (call) => this.#level(call) };
		this.answer = null; // the answer that streams in
		this.activity = new Now(this.node);
		this.liveNode.after(this.activity.node);
		this.collapse = button("", () => this.toggleAll(), "quiet", { id: "collapse" });
		this.#name();
		this.latest.after(this.collapse);
		this.chunks = [];
		this.nodes = new Map(); // the elements of built entries, by entry
		this.bottom = true;
		this.unseen = 0;
		this.top = 0;
		this.watcher = new IntersectionObserver((found) => this.#seen(found), { root: this.scroller, rootMargin: NEAR });
		this.onscroll = () => this.#scrolled();
		this.scroller.addEventListener("scroll", this.onscroll, { passive: true });
		this.latest.onclick = () => this.toBottom();
		this.resized = new ResizeObserver(() => this.bottom && this.#stick());
		this.resized.observe(this.scroller);
		this.resized.observe(this.node);
	}

	close() {
		this.watcher.disconnect();
		this.resized.disconnect();
		this.scroller.removeEventListener("scroll", this.onscroll);
		this.node.replaceChildren();
		this.liveNode.hidden = true;
		this.latest.hidden = true;
		this.activity.close();
		this.collapse.remove();
	}

	/** Replace all entries, keeping the scroll position. */
	show(entries) {
		const kept = this.bottom ? null : this.#top();
		this.watcher.disconnect();
		this.chunks = [];
		this.nodes.clear();
		this.node.replaceChildren();
		this.top = this.scroller.scrollTop; // the empty log scrolled by itself
		this.append(entries);
		if (kept) this.goTo(kept.seq, kept.offset);
		else this.#stick();
	}

	append(entries) {
		if (!entries.length) return;
		for (let at = 0; at < entries.length; ) {
			let chunk = this.chunks.at(-1);
			if (!chunk || chunk.entries.length >= CHUNK_ENTRIES) chunk = this.#chunk();
			const some = entries.slice(at, at + CHUNK_ENTRIES - chunk.entries.length);
			at += some.length;
			const first = chunk.entries.length === 0;
			chunk.entries.push(...some);
			const last = at >= entries.length;
			if (!first && chunk.built) chunk.node.append(...some.map((entry) => this.#make(entry)));
			else if (last) this.#build(chunk);
			else this.#size(chunk, pixels(chunk.entries));
		}
		if (this.bottom) this.#stick();
		else {
			this.unseen += entries.length;
			this.#mark();
		}
	}

	update(entries) {
		for (const entry of entries) {
			const node = this.nodes.get(entry);
			if (!node) continue;
			const focused = node.contains(document.activeElement) ? document.activeElement.closest("[data-call]")?.dataset.call : undefined;
			const made = this.#make(entry);
			node.replaceWith(made);
			if (focused) $(`[data-call="${CSS.escape(focused)}"] .head`, made)?.focus({ preventScroll: true });
		}
		if (this.bottom) this.#stick();
	}

	/** Show the progress of a call, without touching the rest of its entry. */
	progressed(call) {
		const node = $(`[data-call="${CSS.escape(call.id)}"]`, this.node);
		if (!node) return;
		const shown = $(".progress", node);
		if (shown) shown.replaceWith(progress(call));
		else this.update([call.entry]);
		if (this.bottom) this.#stick();
	}

	/** Show the answer that streams in, or the one that broke off. */
	live(live, broken = null) {
		const some = [live, broken].find((one) => one && (one.text || one.reasoning || one.calls.length));
		this.liveNode.hidden = !some;
		if (!some) this.answer = null;
		if (some && !this.answer) this.answer = new LiveAnswer();
		if (some) this.answer.show(some, some !== live);
		if (this.liveNode.firstChild !== (this.answer?.node ?? null)) fill(this.liveNode, this.answer?.node);
		if (this.bottom) this.#stick();
	}

	/** Show what happens now. */
	now(fold) {
		this.activity.show(fold);
		if (this.bottom) this.#stick();
	}

	#level(call) {
		if (this.opened.has(call.id)) return "whole";
		return this.lines || (call.reads && call.state === "done") ? "line" : "part";
	}

	#name() {
		this.collapse.textContent = this.lines ? "Show results" : "Collapse all";
		this.collapse.title = this.lines ? "Show the results of calls again (c)" : "Show each call as one line (c)";
	}

	/** Show each call as one line, or with its result again. */
	toggleAll() {
		this.lines = !this.lines;
		this.opened.clear();
		this.#name();
		const all = this.chunks.flatMap((chunk) => chunk.entries);
		for (const { group } of all) if (group) group.open = false;
		this.show(all);
	}

	toggleGroup(group) {
		group.open = !group.open;
		this.#keeping(group.entries);
		$(`[data-group="${group.entries[0].seq}"]`, this.node)?.focus({ preventScroll: true });
	}

	toggle(call) {
		if (!this.opened.delete(call.id)) this.opened.add(call.id);
		this.#keeping([call.entry]);
	}

	/** Update entries without moving them. */
	#keeping(entries) {
		const bottom = this.bottom;
		this.bottom = false;
		this.update(entries);
		this.bottom = bottom && this.#below() < 40;
	}

	toBottom() {
		this.bottom = true;
		this.top = this.scroller.scrollTop;
		this.#stick();
		this.#mark();
	}

	/** Scroll so that an event is `offset` pixels below the top. */
	goTo(seq, offset = 8) {
		const chunk = this.chunks.findLast((one) => one.entries[0].seq <= seq) ?? this.chunks[0];
		if (!chunk) return;
		this.bottom = false;
		this.#build(chunk);
		const entry = chunk.entries.findLast((one) => one.seq <= seq) ?? chunk.entries[0];
		if (entry.group && !entry.group.open) this.toggleGroup(entry.group);
		const node = this.nodes.get(entry);
		this.scroller.scrollTop += node.getBoundingClientRect().top - this.scroller.getBoundingClientRect().top - offset;
		return node;
	}

	#chunk() {
		const before = this.chunks.at(-1);
		const node = el("div.chunk");
		const chunk = { entries: [], node, built: false };
		node.chunk = chunk;
		this.chunks.push(chunk);
		this.node.append(node);
		this.watcher.observe(node);
		if (before && !before.built) this.#size(before, pixels(before.entries));
		return chunk;
	}

	#size(chunk, height) {
		chunk.node.style.height = `${Math.max(1, Math.round(height))}px`;
	}

	#make(entry) {
		const node = render(entry, this.act);
		this.nodes.set(entry, node);
		return node;
	}

	#build(chunk) {
		if (chunk.built) return;
		chunk.built = true;
		chunk.node.style.height = "";
		chunk.node.append(...chunk.entries.map((entry) => this.#make(entry)));
	}

	#drop(chunk, height) {
		if (!chunk.built || chunk === this.chunks.at(-1) || chunk.node.contains(document.activeElement)) return;
		const selection = getSelection();
		if (!selection.isCollapsed && selection.containsNode(chunk.node, true)) return;
		chunk.built = false;
		this.#size(chunk, height);
		chunk.node.replaceChildren();
		for (const entry of chunk.entries) this.nodes.delete(entry);
	}

	#seen(found) {
		for (const one of found) {
			const { chunk } = one.target;
			if (one.isIntersecting) this.#build(chunk);
			else this.#drop(chunk, one.boundingClientRect.height);
		}
		if (this.bottom) this.#stick();
	}

	#below() {
		return this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight;
	}

	#scrolled() {
		// Only scrolling up leaves the bottom; content that grows or shrinks does not.
		const up = this.scroller.scrollTop < this.top;
		this.top = this.scroller.scrollTop;
		const bottom = this.#below() < 40 || (this.bottom && !up);
		if (bottom === this.bottom) return;
		this.bottom = bottom;
		if (bottom) this.unseen = 0;
		this.#mark();
	}

	#stick() {
		this.#scrolled(); // the event of a scroll that just happened comes later
		if (!this.bottom) return;
		this.scroller.scrollTop = this.scroller.scrollHeight;
		this.top = this.scroller.scrollTop;
	}

	#mark() {
		this.latest.hidden = this.bottom;
		if (this.bottom) this.unseen = 0;
		this.latest.textContent = this.unseen ? `↓ ${this.unseen} new` : "↓ Latest";
	}

	#top() {
		const above = this.scroller.getBoundingClientRect().top;
		for (const chunk of this.chunks) {
			if (chunk.node.getBoundingClientRect().bottom < above) continue;
			for (const entry of chunk.entries) {
				const box = this.nodes.get(entry)?.getBoundingClientRect();
				if (box && box.bottom > above) return { seq: entry.seq, offset: box.top - above };
			}
			return { seq: chunk.entries[0].seq, offset: 8 };
		}
		return null;
	}
}
