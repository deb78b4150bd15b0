// The log: entries in chunks, of which those near to what is seen are elements.
import { $, el, fill } from "./dom.js";
import { liveAnswer, render } from "./entries.js";

const CHUNK = 8; // entries: what one frame can make
const NEAR = "1500px 0px"; // how far around what is seen chunks are made
const GUESS = 110; // pixels of an entry that nobody has seen yet

export class Log {
	constructor(act) {
		this.scroller = $("#scroller");
		this.node = $("#log");
		this.liveNode = $("#live");
		this.latest = $("#latest");
		this.opened = new Set();
		this.act = { ...act, toggle: (call) => this.toggle(call) };
		this.chunks = [];
		this.nodes = new Map(); // entry: its element, as far as there is one
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

	/** Show these entries in place of all others, at the same place if there is one: `seq` at the top. */
	show(entries) {
		const kept = this.bottom ? null : this.#top();
		this.watcher.disconnect();
		this.chunks = [];
		this.nodes.clear();
		this.node.replaceChildren();
		this.append(entries);
		if (kept) this.goTo(kept.seq, kept.offset);
		else this.#stick();
	}

	append(entries) {
		if (!entries.length) return;
		for (let at = 0; at < entries.length; ) {
			let chunk = this.chunks.at(-1);
			if (!chunk || chunk.entries.length >= CHUNK) chunk = this.#chunk();
			const some = entries.slice(at, at + CHUNK - chunk.entries.length);
			at += some.length;
			const first = chunk.entries.length === 0;
			chunk.entries.push(...some);
			const last = at >= entries.length;
			if (!first && chunk.built) chunk.node.append(...some.map((entry) => this.#make(entry)));
			else if (last) this.#build(chunk);
			else this.#size(chunk, chunk.entries.length * GUESS);
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
		this.bottom = false; // what is opened stays where it is
		this.update([call.entry]);
		this.bottom = bottom && this.#below() < 40;
	}

	toBottom() {
		this.bottom = true;
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
		if (before && !before.built) this.#size(before, before.entries.length * GUESS);
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
		// What grows or shrinks below is no reason to stay behind: who reads scrolls up.
		const up = this.scroller.scrollTop < this.top;
		this.top = this.scroller.scrollTop;
		const bottom = this.#below() < 40 || (this.bottom && !up);
		if (bottom === this.bottom) return;
		this.bottom = bottom;
		if (bottom) this.unseen = 0;
		this.#mark();
	}

	#stick() {
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
