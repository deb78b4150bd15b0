// Decisions that wait for the user: calls to approve or reject, and questions to answer.
import { callBody, callTitle } from "./calls.js";
import { $, announce, button, el, fill, link } from "./dom.js";
import { risk } from "./entries.js";
import { json, oneLine, plain, typed } from "./text.js";

const SHORT_CHARACTERS = 600; // longer arguments are shown in a dialog
const GUARD_MS = 500; // a press so soon after the decisions have changed was meant for what was there before

/** Open a dialog with a title and content; Escape closes it. */
export function openDialog(title, content, { wide = false, onclose } = {}) {
	// A new element each time, because the close event arrives late, when another dialog may be open.
	const dialog = el(wide ? "dialog.wide" : "dialog", { id: "dialog", "aria-labelledby": "dialog-title", onclose: () => (dialog.replaceChildren(), onclose?.()) },
		el("header", el("h2", { id: "dialog-title" }, title), button("✕", () => dialog.close(), "quiet", { "aria-label": "Close" })), content);
	$("#dialog").replaceWith(dialog);
	dialog.showModal();
	return dialog;
}

/** The area above the message field. `tell(path, body, done, failed)` sends a command and returns true if the server accepted it. */
export class Deciding {
	constructor(tell) {
		this.tell = tell;
		this.node = $("#decide");
		this.shown = "";
		this.requests = ""; // the requests that are shown
		this.guarded = new Set(); // buttons that are disabled until `guardEnd`
		this.guardEnd = 0;
		this.announced = new Set();
		this.busy = new Set();
		this.always = new Set(); // names of tools that the user allows here without being asked
		this.tried = new Set(); // requests that were approved by that; one that fails is shown
		this.forms = new Map(); // forms of questions by id, kept so that typed text survives a redraw
	}

	close() {
		this.refresh = () => {};
		this.node.hidden = true;
		this.node.replaceChildren();
		this.forms.clear();
		this.shown = this.requests = "";
	}

	/** Show the waiting decisions. Does nothing if they are shown already. */
	show(fold) {
		this.refresh = () => this.show(fold);
		const pending = fold.pending.filter((call) => !this.#allowed(call));
		const questions = fold.questions;
		const requests = [...pending.map((call) => `${call.id} ${call.asked.argumentsHash}`), ...questions.map(({ question }) => question.id)].join("\n");
		const name = [requests, ...this.busy, ...this.always].join("\n");
		if (name === this.shown) return;
		this.shown = name;
		this.node.hidden = !requests && !this.always.size;
		const active = document.activeElement;
		const within = this.node.contains(active);
		this.pending = pending;
		for (const id of this.forms.keys()) if (!questions.some(({ question }) => question.id === id)) this.forms.delete(id);
		fill(this.node,
			this.always.size > 0 && this.#allowances(),
			pending.length > 1 && el("p.buttons.all", el("b", `${pending.length} calls wait for you`), button("Approve all…", () => this.#reviewAll(pending), "", { disabled: this.busy.size > 0 })),
			pending.slice(0, 3).map((call) => this.#card(call)),
			pending.slice(3).map((call) => this.#row(call)),
			questions.map(({ call, question }) => this.#form(call, question)),
		);
		// Never to a button, which may be another call's: the key that is held down would press it.
		if (within) (this.node.contains(active) ? active : this.node).focus();
		this.#guard(requests);
		const announcements = [...pending.map((call) => [call.id, `${plain(call.name)} waits for your approval: ${callTitle(call)}`]), ...questions.map(({ question }) => [question.id, `You are asked: ${oneLine(question.message)}`])];
		for (const [id, words] of announcements) {
			if (!this.announced.has(id)) announce(words, true);
			this.announced.add(id);
		}
	}

	/** Disable the buttons for a moment after the requests have changed, so that no press decides a call that has just taken the place of another. */
	#guard(requests) {
		const now = performance.now();
		if (requests !== this.requests) {
			this.requests = requests;
			this.guardEnd = now + GUARD_MS;
			clearTimeout(this.timer);
			this.timer = setTimeout(() => {
				for (const one of this.guarded) one.disabled = false;
				this.guarded.clear();
			}, GUARD_MS);
		}
		if (now >= this.guardEnd) return;
		for (const one of this.node.querySelectorAll("button:enabled")) {
			one.disabled = true;
			this.guarded.add(one);
		}
	}

	#card(call) {
		const whole = json(call.arguments).length <= SHORT_CHARACTERS && !call.invalid;
		const busy = this.busy.has(call.id);
		return el(
			"div.card",
			{ role: "group", "aria-label": `Approve ${plain(call.name)}?` },
			el("p.head", risk(call.asked.risk), el("b", plain(call.name)), " wants to run", call.asked.reason ? [": ", oneLine(call.asked.reason, 400)] : ""),
			whole ? el("div.given", callBody(call)) : el("p.title", callTitle(call)),
			el("p.buttons", {},
				whole && button("Approve", () => this.#approve(call, call.asked), "primary", { disabled: busy }),
				button("Review…", () => this.review(call), whole ? "" : "primary", { disabled: busy }),
				button("Reject", () => this.#reject(call, ""), "danger", { disabled: busy }),
				whole && button(`Always allow ${oneLine(call.name, 40)} here`, () => this.#allow(call), "quiet", { disabled: busy, title: "Approves this call, and each later call of this tool in this conversation while it is open on this page, but for calls of high risk" })),
		);
	}

	/** Return a waiting call in one line, with a button that shows all of it. */
	#row(call) {
		return el("p.card.row", risk(call.asked.risk), el("b", plain(call.name)), " ", el("span.title", callTitle(call)), button("Review…", () => this.review(call), "", { disabled: this.busy.has(call.id) }));
	}

	#allowances() {
		return el("p.dim.allowed", "Allowed without a question, while this conversation is open on this page: ", [...this.always].map((name) => button(`${oneLine(name, 40)} ✕`, () => {
			this.always.delete(name);
			this.refresh();
		}, "quiet", { "aria-label": `Ask about ${oneLine(name, 40)} again` })));
	}

	#allow(call) {
		this.always.add(call.name);
		this.#approve(call, call.asked);
	}

	/** Approve a call whose tool the user allows here, and return true; a call of high risk is always shown. */
	#allowed(call) {
		if (!this.always.has(call.name) || call.invalid || call.asked.risk === "high") return false;
		const request = `${call.id} ${call.asked.argumentsHash}`;
		if (!this.tried.has(request)) {
			this.tried.add(request);
			// If it still waits a second later, it is shown, and the user decides. Another tab may have approved it.
			const failed = () => setTimeout(() => {
				if (!call.asked) return;
				this.always.delete(call.name);
				this.refresh();
			}, 1000);
			this.tell("approve", { callId: call.id, argumentsHash: call.asked.argumentsHash, reason: "The user allows this tool in this conversation." }, "", failed);
		}
		return true;
	}

	/** Show several calls in full, to approve them together. */
	#reviewAll(calls) {
		const asked = calls.filter((call) => !call.invalid).map((call) => [call, call.asked]);
		const approve = button(`Approve all ${asked.length}`, () => (dialog.close(), this.#approveAll(asked)), "primary");
		const dialog = openDialog(`Approve ${asked.length} calls?`, [
			asked.map(([call, { risk: level, reason }]) => el("section.card", el("p.head", risk(level), el("b", plain(call.name)), reason ? [": ", oneLine(reason, 400)] : ""), el("div.given", callBody(call)))),
			el("p.buttons", approve, button("Cancel", () => dialog.close())),
		], { wide: true });
		approve.focus();
	}

	/** Approve calls one after the other, each bound to the arguments that were shown. */
	async #approveAll(asked) {
		for (const [call] of asked) this.busy.add(call.id);
		this.refresh();
		let approved = 0;
		for (const [call, request] of asked) {
			if (await this.tell("approve", { callId: call.id, argumentsHash: request.argumentsHash }, "")) approved++;
			this.busy.delete(call.id);
		}
		announce(`${approved} calls were approved`);
		this.refresh();
	}

	review(call = this.pending?.[0]) {
		if (!call || !call.asked) return;
		const { asked } = call;
		const original = json(call.arguments);
		const area = el("textarea.json", { id: "arguments", rows: Math.min(16, original.split("\n").length + 1), spellcheck: "false", autocomplete: "off", value: original, "aria-describedby": "arguments-wrong" });
		const wrong = el("p.bad", { id: "arguments-wrong", role: "alert" });
		const reason = el("input", { id: "reason", type: "text", autocomplete: "off" });
		// Typed text is kept until the server has accepted it.
		const kept = (decided) => async () => {
			wrong.textContent = "";
			const typedHere = area.value !== original || reason.value !== "";
			if (!typedHere) dialog.close();
			approve.disabled = reject.disabled = true; // prevents a second request
			const taken = await decided(typedHere ? (message) => (wrong.textContent = message) : undefined);
			approve.disabled = reject.disabled = false;
			if (taken) dialog.close();
			else if (typedHere) area.focus();
		};
		const approve = button("Approve", kept((failed) => {
			let changed;
			if (area.value !== original) {
				try {
					changed = typed(area.value);
				} catch (error) {
					wrong.textContent = error instanceof SyntaxError ? `This is not JSON: ${error.message}` : error.message;
					return false;
				}
			}
			return this.#approve(call, asked, changed, reason.value, failed);
		}), "primary");
		const reject = button("Reject", kept((failed) => this.#reject(call, reason.value, failed)), "danger");
		area.oninput = () => {
			wrong.textContent = "";
			approve.textContent = area.value === original ? "Approve" : "Approve with these arguments";
		};
		const dialog = openDialog(
			["Approve ", el("b", plain(call.name)), "?"],
			[
				el("p", risk(asked.risk), asked.reason ? plain(asked.reason) : "No reason was given.", asked.by ? el("span.dim", ` (${plain(asked.by)})`) : null),
				el("div.given", callBody(call)),
				el("label", { for: "arguments" }, "Arguments as JSON; the call runs with your changes"),
				area,
				wrong,
				el("label", { for: "reason" }, "Reason (shown to the model if you reject)"),
				reason,
				el("p.dim.hash", `Your decision is bound to these arguments: ${plain(asked.argumentsHash).slice(0, 16)}…`),
				el("p.buttons", approve, reject, button("Cancel", () => dialog.close())),
			],
			{ wide: true },
		);
		approve.focus();
	}

	#approve(call, asked, changed, reason = "", failed) {
		const body = { callId: call.id, argumentsHash: asked.argumentsHash };
		if (changed !== undefined) body.arguments = changed;
		if (reason) body.reason = reason;
		return this.#decide(call.id, "approve", body, `${call.name} was approved.`, failed);
	}

	#reject(call, reason, failed) {
		return this.#decide(call.id, "reject", { callId: call.id, reason }, `${call.name} was rejected.`, failed);
	}

	async #decide(id, what, body, done, failed) {
		this.busy.add(id);
		const taken = await this.tell(what, body, done, failed);
		this.busy.delete(id);
		this.refresh();
		return taken;
	}

	#form(call, question) {
		if (!this.forms.has(question.id)) this.forms.set(question.id, this.#question(call, question));
		return this.forms.get(question.id);
	}

	#question(call, question) {
		const answer = (values) => this.#decide(question.id, "answer", { questionId: question.id, values }, values === null ? "You declined." : "Answered.");
		const head = [el("p.message", { dir: "auto" }, plain(question.message)), el("p.dim", `asked by ${plain(question.asker || call.name)}`)];
		const decline = button("Decline", () => answer(null));
		if (question.url || !question.schema) {
			return el("div.card", { role: "group", "aria-label": "A question" }, head, question.url && el("p", "It asks you to visit: ", link(plain(question.url))),
				el("p.buttons", button(question.url ? "I have done it" : "Yes", () => answer(true), "primary"), decline));
		}
		const form = schemaForm(question.schema);
		const node = el("form.card", { "aria-label": "A question", novalidate: true }, head, form.node, el("p.buttons", el("button.primary", { type: "submit" }, "Answer"), decline));
		node.onsubmit = (event) => {
			event.preventDefault();
			const values = form.read();
			if (values !== null) answer(values);
		};
		return node;
	}
}

let ids = 0;

/** Return a form for a JSON Schema's properties: `node`, and `read()`, which returns the values, or null after showing the errors. */
export function schemaForm(schema) {
	const required = new Set(Array.isArray(schema.required) ? schema.required : []);
	const fields = Object.entries(schema.properties ?? {}).map(([key, part]) => field(key, part && typeof part === "object" ? part : {}, required.has(key), `field-${++ids}`));
	return {
		node: el("div.fields", fields.map((one) => one.node)),
		read() {
			const found = {};
			let first = null;
			for (const one of fields) {
				one.wrong.textContent = "";
				try {
					const value = one.read();
					if (value !== undefined) found[one.key] = value;
					else if (one.required) throw new Error("This field is required.");
				} catch (error) {
					one.wrong.textContent = error instanceof SyntaxError ? "This is not JSON." : error.message;
					first ??= one.input;
				}
			}
			first?.focus();
			return first ? null : found;
		},
	};
}

function choices(part) {
	if (Array.isArray(part.enum)) return part.enum.map((value, index) => ({ value, label: part.enumNames?.[index] ?? value }));
	const some = part.oneOf ?? part.anyOf;
	if (Array.isArray(some) && some.length && some.every((one) => one && "const" in one)) return some.map((one) => ({ value: one.const, label: one.title ?? one.const }));
	return null;
}

function field(key, part, required, id) {
	const wrong = el("p.bad", { role: "alert" });
	const label = el("label", { for: id }, plain(part.title ?? key), required ? el("span", { title: "required" }, " *") : null);
	const about = part.description ? el("p.dim", { id: `${id}-about` }, plain(part.description)) : null;
	const given = { id, name: key, "aria-describedby": about ? `${id}-about` : null, required: required || null };
	const type = Array.isArray(part.type) ? part.type.find((one) => one !== "null") : part.type;
	const some = choices(part);
	let input;
	let read;
	let tail = null;
	if (some) {
		input = el("select", given, el("option", { value: "" }, "—"), some.map((one, index) => el("option", { value: index, selected: one.value === part.default }, plain(one.label))));
		read = () => some[input.value || -1]?.value;
	} else if (type === "boolean") {
		input = el("input", { ...given, required: null, type: "checkbox", checked: part.default === true });
		read = () => input.checked;
	} else if (type === "number" || type === "integer") {
		input = el("input", { ...given, type: "text", inputmode: "decimal", autocomplete: "off", value: part.default ?? "" });
		read = () => {
			if (!input.value.trim()) return undefined;
			const value = Number(input.value);
			if (!Number.isFinite(value) || (type === "integer" && !Number.isInteger(value))) throw new Error(`Enter a ${type === "integer" ? "whole " : ""}number.`);
			return value;
		};
	} else if (type === "string" || type === undefined) {
		const kind = part.writeOnly === true ? "password" : { password: "password", email: "email", date: "date", uri: "url" }[part.format];
		// Plain strings get a text area, which also takes one line. Secrets and special formats get an input.
		input = el(kind ? "input" : "textarea", { ...given, type: kind, rows: kind ? null : 1, autocomplete: "off", value: part.default ?? "" });
		read = () => input.value || undefined;
	} else {
		input = el("textarea.json", { ...given, rows: 4, spellcheck: "false", value: part.default === undefined ? "" : json(part.default) });
		tail = el("p.dim", `${plain(type)}, as JSON`);
		read = () => (input.value.trim() ? JSON.parse(input.value) : undefined);
	}
	return { key, required, input, read, wrong, node: el("div.field", type === "boolean" && !some ? el("div.check", input, " ", label) : [label, input], about, tail, wrong) };
}
