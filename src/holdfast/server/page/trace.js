// The trace of a run: charts by step, a waterfall of model calls, tools and children, the tree of conversations, and all changed files.
import { ask, place } from "./api.js";
import { $, button, el, fill, refill, talkLink, talkPlace } from "./dom.js";
import { diff } from "./diff.js";
import { lead } from "./finding.js";
import { count, counted, money, oneLine, plain, seconds, statusName } from "./text.js";

const REFRESH_MILLISECONDS = 3000; // the shortest time between two readings of the journals
const ROW_PIXELS = 24;
const SPARE_ROWS = 20; // rows beyond the visible part that have elements
const IDLE_SHARE = 0.02; // of the time at work: the longest shown time in which nothing runs
const CHART = { width: 300, height: 70 };
const KINDS = { model: "model", tool: "tool", child: "child", wait: "waits", message: "message", mark: "" };

function visit(talk, seq) {
	if (getComputedStyle($("#panel")).position === "fixed") talk.closePanel(); // it covers the log
	lead(talk, seq);
}

function svg(name, attributes, ...children) {
	const node = document.createElementNS("http://www.w3.org/2000/svg", name);
	for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
	node.append(...children);
	return node;
}

/** Return a function from a time to its place, 0 to 1. Times in which nothing runs are short. */
export function timeline(spans) {
	const busy = spans.filter((span) => span.kind !== "wait").map((span) => [span.start, span.start + (span.seconds ?? 0)]).sort((one, other) => one[0] - other[0]);
	const merged = [];
	for (const [start, end] of busy) {
		const last = merged.at(-1);
		if (last && start <= last[1]) last[1] = Math.max(last[1], end);
		else merged.push([start, end]);
	}
	const longest = Math.max(0.001, IDLE_SHARE * merged.reduce((sum, [start, end]) => sum + end - start, 0));
	const knots = [[0, 0]];
	for (const [start, end] of merged) {
		const [time, at] = knots.at(-1);
		const begin = at + Math.min(Math.max(0, start - time), longest);
		knots.push([start, begin], [end, begin + end - start]);
	}
	const last = spans.reduce((most, span) => Math.max(most, span.start + (span.seconds ?? 0)), 0);
	const [time, at] = knots.at(-1);
	if (last > time) knots.push([last, at + Math.min(last - time, longest)]);
	const whole = Math.max(0.001, knots.at(-1)[1]);
	return (wanted) => {
		let [low, high] = [0, knots.length - 1];
		while (low < high) {
			const middle = (low + high) >> 1;
			if (knots[middle][0] < wanted) low = middle + 1;
			else high = middle;
		}
		const [toTime, to] = knots[low];
		if (low === 0 || wanted >= toTime) return to / whole;
		const [fromTime, from] = knots[low - 1];
		return (from + ((wanted - fromTime) / (toTime - fromTime)) * (to - from)) / whole;
	};
}

export class TraceView {
	constructor(talk) {
		this.talk = talk;
		this.trace = null;
		this.loaded = 0; // the last event when the trace was asked for
		this.at = -Infinity;
		this.timer = 0;
		this.node = el("div.trace", el("p.dim", "Reading the journals…"));
	}

	close() {
		clearTimeout(this.timer);
		this.closed = true;
	}

	/** Read the trace again if the conversation or a fork has gone on, but not too often. */
	show() {
		const { fold } = this.talk;
		if (this.closed || this.timer || (this.trace && this.loaded === fold.last && this.forks === this.talk.forks() && fold.status !== "running")) return;
		const wait = Math.max(0, this.at + REFRESH_MILLISECONDS - performance.now());
		this.timer = setTimeout(() => this.#load(), wait);
	}

	async #load() {
		const { talk } = this;
		const [last, forks] = [talk.fold.last, talk.forks()];
		try {
			if (this.node.isConnected && !document.hidden) {
				const found = await ask("GET", place(talk.id, "trace"), undefined, { signal: talk.ended.signal });
				[this.loaded, this.forks] = [last, forks];
				this.trace = found;
				if (!this.closed) this.#render();
			}
		} catch (error) {
			if (error.name === "AbortError") return;
			[this.loaded, this.forks] = [last, forks];
			fill(this.node, el("p.bad", error.message));
		}
		this.at = performance.now();
		this.timer = 0;
		// Children go on without an event of their parent.
		if (this.node.isConnected && (talk.fold.last > this.loaded || talk.fold.status === "running")) this.show();
	}

	#render() {
		const { trace } = this;
		const before = $(".waterfall", this.node);
		const top = before?.scrollTop ?? 0;
		const row = before?.contains(document.activeElement) ? document.activeElement.dataset : {};
		const opened = new Map([...this.node.querySelectorAll("details.file")].map((one) => [one.dataset.path, one.open]));
		refill(this.node, this.#sums(), this.#charts(), this.#waterfall(), this.#tree(), this.#files(opened));
		const rows = $(".waterfall", this.node);
		if (!rows) return;
		// Spans of a child that came meanwhile may stand above the row that has the focus.
		const at = row.span === undefined ? -1 : trace.spans.findIndex((span) => this.#nameOf(span) === row.span);
		rows.scrollTop = at < 0 ? top : top + (at - row.row) * ROW_PIXELS;
		this.draw();
		if (row.span !== undefined) ($(`[data-row="${at}"]`, rows) ?? rows).focus({ preventScroll: true });
	}

	#nameOf(span) {
		return `${this.trace.conversations[span.conversation ?? 0].id} ${span.kind} ${span.seq}`;
	}

	#sums() {
		const { trace } = this;
		const own = trace.conversations.filter((one) => one.relation !== "fork");
		const sum = (name) => own.reduce((total, one) => total + (one.usage?.[name] ?? 0), 0);
		const steps = own.reduce((total, one) => total + (one.steps ?? 0), 0);
		const costs = own.map((one) => one.cost).filter((one) => typeof one === "number");
		return el("p", [
			`${seconds(own[0].seconds ?? 0)} at work`,
			own[0].waited ? `${seconds(own[0].waited)} waiting for you` : "",
			counted(steps, "step"),
			`${count(sum("inputTokens"))} tokens in, ${count(sum("outputTokens"))} out`,
			costs.length ? money(costs.reduce((one, other) => one + other, 0)) : "cost unknown",
			own.length > 1 ? `${own.length} conversations` : "",
			trace.damaged ? `${trace.damaged} events cannot be read` : "",
		].filter(Boolean).join(" · "));
	}

	// --- charts ---

	#charts() {
		const points = this.trace.points ?? [];
		if (!points.length) return null;
		const sent = points.map((point) => point.inputTokens ?? 0);
		const charts = [this.#chart(`Tokens of a request, up to ${count(Math.max(...sent))}; pale: cached`, points, sent, points.map((point) => point.cachedInputTokens ?? 0))];
		const total = points.at(-1).totalCost ?? 0;
		if (total) charts.push(this.#chart(`Cost, ${money(total)} in all`, points, points.map((point) => point.totalCost ?? 0)));
		if (this.trace.window && points.every((point) => typeof point.context === "number")) {
			const shares = points.map((point) => point.context);
			charts.push(this.#chart(`Share of the context window (${count(this.trace.window)}), up to ${Math.round(100 * Math.max(...shares))} %`, points, shares));
		}
		return el("div.charts", charts);
	}

	#chart(title, points, values, cached = null) {
		const { width, height } = CHART;
		const most = Math.max(...values, 1e-9);
		const step = width / values.length;
		const high = values.map((value) => (value / most) * (height - 4));
		const node = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": title });
		if (cached) {
			const bar = Math.min(24, Math.max(0.5, step - (step > 3 ? 1 : 0)));
			const low = cached.map((value) => (value / most) * (height - 4));
			const path = (from, to) => to.map((top, at) => (top > from[at] ? `M${(at * step).toFixed(1)} ${(height - from[at]).toFixed(1)}h${bar.toFixed(1)}v${(from[at] - top).toFixed(1)}h${(-bar).toFixed(1)}z` : "")).join("");
			node.append(svg("path", { class: "cached", d: path(low.map(() => 0), low) }), svg("path", { class: "fresh", d: path(low, high) }));
		} else {
			const places = high.map((value, at) => `${((at + 0.5) * step).toFixed(1)},${(height - value).toFixed(1)}`);
			if (places.length === 1) places.splice(0, 1, `0,${height - high[0]}`, `${width},${height - high[0]}`);
			node.append(svg("polyline", { class: "curve", points: places.join(" "), "vector-effect": "non-scaling-stroke" }));
		}
		// The waterfall leads to the same events with the keyboard.
		node.addEventListener("click", (event) => {
			const box = node.getBoundingClientRect();
			const at = Math.floor(((event.clientX - box.left) / box.width) * points.length);
			visit(this.talk, points[Math.max(0, Math.min(points.length - 1, at))].seq);
		});
		return el("figure", el("figcaption.dim", title), node);
	}

	// --- the waterfall ---

	#waterfall() {
		const spans = this.trace.spans ?? [];
		if (!spans.length) return el("p.dim", "There are no model calls and no tool calls yet.");
		this.rows = el("div.rows");
		this.rows.style.height = `${spans.length * ROW_PIXELS}px`;
		this.place = timeline(spans);
		this.from = this.to = 0;
		const node = el("div.waterfall", { role: "group", tabindex: "0", "data-name": "waterfall", "aria-label": `Waterfall of ${spans.length} model calls, tools and waits` }, this.rows);
		node.addEventListener("scroll", () => this.draw(), { passive: true });
		node.addEventListener("keydown", (event) => this.#move(event));
		const left = this.trace.leftOut ? ` ${this.trace.leftOut} short ones are left out.` : "";
		return [el("p.legend.dim", Object.entries(KINDS).filter(([, name]) => name).map(([kind, name]) => [el("span.key", el(`span.swatch.${kind}`), name), " "]), el("span.key", el("span.swatch.bad"), "failed."), ` Times in which nothing runs are shortened.${left}`), node];
	}

	/** Build the rows that are near the visible part. */
	draw() {
		const spans = this.trace.spans ?? [];
		const node = this.rows?.parentNode;
		if (!node) return;
		const first = Math.floor(node.scrollTop / ROW_PIXELS);
		const from = Math.max(0, first - SPARE_ROWS);
		const to = Math.min(spans.length, first + Math.ceil((node.clientHeight || 400) / ROW_PIXELS) + SPARE_ROWS);
		if (this.rows.firstChild && from >= this.from && to <= this.to && to - from >= this.to - this.from - 2 * SPARE_ROWS && first >= this.from && first + 5 <= this.to) return;
		const focused = this.rows.contains(document.activeElement) ? document.activeElement.dataset.row : undefined;
		[this.from, this.to] = [from, to];
		fill(this.rows, spans.slice(from, to).map((span, at) => this.#row(span, from + at)));
		if (focused !== undefined) $(`[data-row="${focused}"]`, this.rows)?.focus({ preventScroll: true });
	}

	#row(span, index) {
		const instant = span.kind === "message" || span.kind === "mark";
		const kind = span.error ? "bad" : KINDS[span.kind] === undefined ? "mark" : span.kind;
		const name = oneLine(span.name, 80);
		const title = oneLine(span.title ?? "", 160);
		const time = instant ? "" : span.running ? "running" : seconds(span.seconds ?? 0);
		const tokens = span.inputTokens ? `${count(span.inputTokens)} tokens in, ${count(span.outputTokens ?? 0)} out` : "";
		const failed = span.error ? `failed: ${oneLine(span.error, 80)}` : "";
		const told = [time, failed, tokens, span.cost ? money(span.cost) : "", title, `event ${span.seq}`].filter(Boolean).join(", ");
		const bar = el(`span.bar.${kind}${instant ? ".instant" : ""}`);
		const start = this.place(span.start);
		bar.style.left = `${(100 * Math.min(start, 0.995)).toFixed(2)}%`;
		bar.style.width = instant ? "4px" : `max(2px, ${(100 * (this.place(span.start + (span.seconds ?? 0)) - start)).toFixed(2)}%)`;
		const label = el("span.label", el("span.hidden", `${KINDS[span.kind] || span.kind} `), el("b", name), " ", title);
		label.style.paddingLeft = `${10 * Math.min(span.depth ?? 0, 8)}px`;
		const node = el("button.row", { type: "button", title: told, "data-row": index, "data-span": this.#nameOf(span), tabindex: "-1", onclick: () => this.#go(span) }, label, el("span.track", bar), el("span.time", time), failed && el("span.hidden", ` ${failed}`));
		node.style.top = `${index * ROW_PIXELS}px`;
		return node;
	}

	/** Move the focus among the rows with the arrow keys. */
	#move(event) {
		const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity }[event.key];
		const spans = this.trace.spans ?? [];
		if (!step || !spans.length) return;
		event.preventDefault();
		const node = event.currentTarget;
		const now = document.activeElement.dataset.row === undefined ? Math.floor(node.scrollTop / ROW_PIXELS) - (step > 0 ? 1 : 0) : Number(document.activeElement.dataset.row);
		const index = Math.max(0, Math.min(spans.length - 1, now + step));
		const top = index * ROW_PIXELS;
		if (top < node.scrollTop) node.scrollTop = top;
		else if (top + ROW_PIXELS > node.scrollTop + node.clientHeight) node.scrollTop = top + ROW_PIXELS - node.clientHeight;
		this.draw();
		$(`[data-row="${index}"]`, this.rows)?.focus({ preventScroll: true });
	}

	#go(span) {
		const one = this.trace.conversations[span.conversation ?? 0];
		if (one.id === this.talk.id) visit(this.talk, span.seq);
		else location.hash = `${talkPlace(one.id)}/${span.seq}`;
	}

	// --- the tree and the files ---

	#tree() {
		const found = this.trace.conversations;
		if (found.length < 2) return null;
		return [el("h3", "Conversations"), el("div.wide", { tabindex: "0", role: "region", "aria-label": "Conversations" }, el("table", el("thead", el("tr", ["Conversation", "Status", "Steps", "At work", "Tokens in", "out", "Cost"].map((name) => el("th", { scope: "col" }, name)))), el("tbody", found.map((one) => {
			const name = el("td", one.relation === "fork" ? `fork at event ${one.parentSeq ?? 0}: ` : one.relation ? `${one.relation} ` : "", talkLink(one.id, oneLine(one.title || one.id, 60)));
			name.style.paddingLeft = `${12 * Math.min(one.depth ?? 0, 10)}px`;
			return el("tr", name, el("td", statusName(plain(one.status ?? ""))), [String(one.steps ?? 0), seconds(one.seconds ?? 0), count(one.usage?.inputTokens ?? 0), count(one.usage?.outputTokens ?? 0), typeof one.cost === "number" ? money(one.cost) : "unknown"].map((figure) => el("td.figure", figure)));
		}))))];
	}

	#files(opened) {
		const files = this.trace.files ?? [];
		if (!files.length) return null;
		const sum = (name) => files.reduce((total, file) => total + (file[name] ?? 0), 0);
		const several = files.length > 5;
		return [el("h3", `${files.length} changed file${files.length > 1 ? "s" : ""}, +${sum("added")} −${sum("removed")}`), files.map((file) => {
			const body = el("div.wide", { tabindex: "0", role: "region", "aria-label": `Changes of ${plain(file.path)}` });
			const seqs = file.seqs ?? [];
			const node = el("details.file", { "data-path": file.path }, el("summary", el("b", plain(file.path)), ` +${file.added ?? 0} −${file.removed ?? 0}`), body);
			node.ontoggle = () => {
				if (!node.open || body.firstChild) return;
				fill(body, el("p.dim", "Edits: ", seqs.slice(0, 20).map((seq) => [button(`#${seq}`, () => visit(this.talk, seq), "quiet"), " "])),
					file.composed === false && el("p.dim", "Something else changed this file in between: the edits, one after the other."),
					diff(`--- ${file.path}\n+++ ${file.path}\n${file.diff}`, 1000));
			};
			node.open = opened.get(file.path) ?? !several;
			return node;
		})];
	}
}
