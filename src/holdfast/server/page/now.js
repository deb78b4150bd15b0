// The line below the log that says what happens now, with a clock.
import { callTitle } from "./calls.js";
import { el, fill } from "./dom.js";
import { oneLine, plain } from "./text.js";

const WORDS = { model: "Waiting for the model", thinking: "The model thinks", writing: "The model writes", calling: "The model writes a call" };

/** The line, and the clocks of running calls in the log: elements with `data-since`. */
export class Now {
	constructor(log) {
		this.node = el("p.now", { hidden: true });
		this.words = el("span");
		this.clock = el("span.clock", { "aria-hidden": "true" });
		this.node.append(this.words, this.clock);
		this.log = log;
		this.fold = null;
		this.ahead = Infinity; // milliseconds by which this machine's clock is ahead of the server's, at most
		this.timer = 0;
	}

	close() {
		clearInterval(this.timer);
		this.node.remove();
	}

	/** Learn the server's clock from events that have just happened. */
	arrived(events) {
		for (const event of events) this.ahead = Math.min(this.ahead, Date.now() - Date.parse(event.timestamp));
	}

	/** Show what happens in a conversation; null if nothing drives it. */
	show(fold) {
		this.fold = fold;
		this.#tick();
		const busy = Boolean(fold?.activity);
		if (busy && !this.timer) this.timer = setInterval(() => this.#tick(), 1000);
		if (!busy) this.timer = clearInterval(this.timer) ?? 0;
	}

	#tick() {
		const activity = this.fold?.activity;
		this.node.hidden = !activity;
		if (!activity) return;
		for (const node of this.log.querySelectorAll("[data-since]")) node.textContent = this.#elapsed(node.dataset.since) || "running";
		const words = this.#words(activity);
		if (this.words.textContent !== words) fill(this.words, words);
		this.clock.textContent = activity.what === "retry" ? "" : this.#elapsed(activity.since) && ` ${this.#elapsed(activity.since)}`;
	}

	#words({ what, calls, until, number, most, reason }) {
		if (what === "retry") {
			const left = Math.max(0, Math.ceil((until - Date.now()) / 1000));
			return `${left ? `Retrying in ${left} s` : "Retrying"} (${number} of ${most}): ${oneLine(reason, 200)}`;
		}
		if (what !== "tools") return `${WORDS[what]},`;
		if (calls.length > 1) return `Running ${calls.length} calls,`;
		return `Running ${plain(calls[0].name)} ${oneLine(callTitle(calls[0].effective), 80)},`;
	}

	#elapsed(since) {
		const began = Date.parse(since ?? "");
		if (Number.isNaN(began)) return "";
		const passed = Math.max(0, Math.floor((Date.now() - (Number.isFinite(this.ahead) ? this.ahead : 0) - began) / 1000));
		return passed < 60 ? `${passed} s` : passed < 3600 ? `${Math.floor(passed / 60)} min ${passed % 60} s` : `${Math.floor(passed / 3600)} h ${Math.floor((passed % 3600) / 60)} min`;
	}
}
