// The log: entries in chunks. Only chunks near the visible part have elements.
import { $, el, fill } from "./dom.js";
import { liveAnswer, render } from "./entries.js";

const CHUNK_ENTRIES = 8; // as many as can be built within one animation frame
const NEAR = "1500px 0px"; // the distance from the visible part within which chunks are built
const ENTRY_PIXELS = 110; // the estimated height of an entry that was not built yet

export class Log {
	constructor(act) {
		this.scroller = $("#scroller");
		this.node = $("#log");
		this.liveNode = $("#live");
		this.latest = $("#latest");
		this.opened = new Set();
		this.act = { ...act, toggle: (call) => this.toggle(call) };
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
			else this.#size(chunk, chunk.entries.length * ENTRY_PIXELS);
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

	live(live) {
		const shown = live && (live.text || live.reasoning || live.calls.length);
		this.liveNode.hidden = !shown;
		fill(this.liveNode, shown ? liveAnswer(live) : null);
		if (this.bottom) this.#stick();
	}

	toggle(call) {
		if (!this.opened.delete(call.id)) this.opened.add(call.id);
		const bottom = this.bottom;
		this.bottom = false; // keeps the opened call in place
		this.update([call.entry]);
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
		if (before && !before.built) this.#size(before, before.entries.length * ENTRY_PIXELS);
		return chunk;
	}

	#size(chunk, height) {
		chunk.node.style.height = `${Math.max(1, Math.round(height))}px`;
	}

	#make(entry) {
		const node = render(entry, this.opened, this.act);
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
