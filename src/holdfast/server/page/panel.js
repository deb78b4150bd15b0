// The panel beside the log: the plan, the tree, timers, the tools with source, schema and health, and the conversation's details.
import { ask, once, place } from "./api.js";
import { blocks, results } from "./entries.js";
import { openDialog, schemaForm } from "./deciding.js";
import { browse, exportTalk } from "./files.js";
import { $, button, el, fill, fold as folded, refill, talkLink, toast } from "./dom.js";
import { TraceView } from "./trace.js";
import { count, counted, json, money, oneLine, plain, seconds, statusName } from "./text.js";

const TABS = [["plan", "Plan"], ["trace", "Trace"], ["tree", "Tree"], ["timers", "Timers"], ["tools", "Tools"], ["about", "About"]];
const TIMER = { required: ["text"], properties: { text: { title: "Text" }, at: { title: "At (2026-11-24T09:00)" }, every: { type: "number", title: "Or every (s)" }, cron: { title: "Or cron" } } };
const FORKS = 20; // that have sums in the tree
const STEPS = { pending: "○", in_progress: "▶", done: "✓", dropped: "–" };
const STEP_NAMES = { pending: "to do", in_progress: "in progress", done: "done", dropped: "dropped" };

export class Panel {
	constructor(talk) {
		this.talk = talk;
		this.node = $("#panel");
		this.tab = sessionStorage.getItem("holdfast.tab") || "plan";
		this.health = null;
		this.workspaceTools = null;
		this.unfolded = new Set(); // ids of children whose own children are shown
		this.tabs = el("div.tabs", el("div", { role: "tablist", "aria-label": "Details" }, TABS.map(([name, label], index) =>
			el("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "tab-body", onclick: () => this.choose(name), onkeydown: (event) => this.#move(event, index) }, label))),
			button("✕", () => this.talk.closePanel(), "quiet.close", { "aria-label": "Close the details" }));
		this.body = el("div", { id: "tab-body", role: "tabpanel", tabindex: "0" });
		fill(this.node, this.tabs, this.body);
		this.choose(this.tab);
	}

	get open() {
		return !this.node.hidden;
	}

	#move(event, index) {
		const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
		if (!step) return;
		const next = TABS[(index + step + TABS.length) % TABS.length][0];
		this.choose(next);
		$(`#tab-${next}`).focus();
	}

	choose(name) {
		this.tab = name;
		sessionStorage.setItem("holdfast.tab", name);
		for (const [one] of TABS) {
			const tab = $(`#tab-${one}`, this.tabs);
			tab.setAttribute("aria-selected", String(one === name));
			tab.tabIndex = one === name ? 0 : -1;
		}
		this.body.setAttribute("aria-labelledby", `tab-${name}`);
		this.node.classList.toggle("wide", name === "trace");
		this.shown = "";
		this.show();
	}

	close() {
		this.trace?.close();
	}

	show() {
		const { fold, info } = this.talk;
		if (!fold) return;
		if (!this.open) return;
		// Unchanged content keeps its focus and selection.
		const name = {
			plan: () => JSON.stringify(fold.plan),
			trace: () => `${this.talk.id} ${fold.last} ${fold.status} ${this.talk.forks()}`,
			tree: () => `${this.talk.id} ${fold.calls.size} ${fold.open.size} ${fold.status} ${this.talk.forks()}`,
			timers: () => this.talk.id + JSON.stringify([...fold.timers]),
			tools: () => `${fold.agent?.seq} ${JSON.stringify(info?.tools)} ${JSON.stringify(this.health)} ${this.workspaceTools?.length}`,
			about: () => `${fold.last} ${fold.status} ${JSON.stringify(info)}`,
		}[this.tab]();
		if (name === this.shown) return;
		this.shown = name;
		this[`_${this.tab}`](fold, info);
	}

	_plan(fold) {
		if (!fold.plan.length) {
			fill(this.body, el("p.dim", "There is no plan."));
			return;
		}
		const done = fold.plan.filter((step) => step.state === "done").length;
		fill(this.body, el("p", `${done} of ${fold.plan.filter((step) => step.state !== "dropped").length} steps done`), el("ol.plan", fold.plan.map((step) =>
			el(`li.${STEP_NAMES[step.state] ? step.state : "pending"}`, el("span.mark", { role: "img", "aria-label": STEP_NAMES[step.state] ?? "to do" }, STEPS[step.state] ?? "○"), el("span", plain(step.step))))));
	}

	_trace() {
		this.trace ??= new TraceView(this.talk);
		if (this.trace.node.parentNode !== this.body) fill(this.body, this.trace.node);
		this.trace.show();
	}

	async _tree(fold, info) {
		const up = [];
		if (info?.spawnedBy) up.push(el("p", "Spawned by a call of ", talkLink(info.spawnedBy.slice(0, info.spawnedBy.lastIndexOf(":")))));
		if (info?.parent) up.push(el("p", `Forked at event ${info.parentSeq} from `, talkLink(info.parent)));
		const root = this.talk.id;
		const sums = (id) => ask("GET", place(id, "stats")).catch(() => null);
		const forked = ask("GET", place(root, "forks")).then((page) => page.items).catch(() => []);
		const [list, forks, ...stats] = await Promise.all([this.#branch(root), forked, sums(root), ...(await forked).slice(0, FORKS).map((one) => sums(one.id))]);
		if (this.tab !== "tree" || this.talk.id !== root) return;
		this.sums = new Map(stats.flatMap((one) => one?.conversations ?? []).map((one) => [one.id, one]));
		refill(this.body, up, list ?? el("p.dim", "Its calls have spawned no conversations."), this.#forks(root, forks));
		this.#showSums();
	}

	#forks(root, found) {
		const branch = (id) => {
			const items = found.filter((one) => one.parent === id);
			return items.length ? el("ul.tree", items.map((item) => el("li", chip(item.status, undriven(item)), " ", talkLink(item.id, oneLine(item.title || item.id, 80)),
				el("p.dim", `forked at event ${item.parentSeq}`, found.indexOf(item) < FORKS && ["; since then ", el("span", { "data-sums": item.id }, "…")]), branch(item.id)))) : null;
		};
		return found.length ? [el("h3", "Forks"), branch(root)] : null;
	}

	/** Show time, tokens and cost beside each conversation of the tree. */
	#showSums() {
		for (const node of this.body.querySelectorAll("[data-sums]")) {
			const one = this.sums?.get(node.dataset.sums);
			if (!one) continue;
			const { usage = {}, cost } = one;
			const tokens = (usage.inputTokens ?? 0) + (usage.outputTokens ?? 0);
			fill(node, [counted(one.steps, "step"), seconds(one.seconds), tokens ? `${count(tokens)} tokens` : "", typeof cost === "number" ? cost && money(cost) : one.steps && "cost unknown"].filter(Boolean).join(" · "));
		}
	}

	async #branch(id) {
		let items;
		try {
			({ items } = await ask("GET", place(id, "children")));
		} catch (error) {
			return el("p.bad", error.message);
		}
		if (!items.length) return null;
		return el("ul.tree", items.map((item) => {
			const below = el("div");
			const node = folded("its children", below);
			node.ontoggle = async () => {
				this.unfolded[node.open ? "add" : "delete"](item.id);
				if (!node.open || below.firstChild) return;
				fill(below, (await this.#branch(item.id)) ?? el("p.dim", "no children"));
				this.#showSums();
			};
			node.open = this.unfolded.has(item.id);
			return el("li", chip(item.status, undriven(item)), " ", talkLink(item.id, oneLine(item.title || item.id, 80)), el("p.dim", { "data-sums": item.id }, `${item.lastSeq ?? 0} events`), node);
		}));
	}

	_timers({ timers }) {
		const { talk } = this;
		if (this.timers?.parentNode !== this.body) {
			this.timers = el("ul.tree");
			fill(this.body, this.timers, !talk.readOnly && this.#timerForm());
		}
		refill(this.timers, [...timers.values()].map((one) => el("li", blocks(one.content),
			el("p.dim", `${plain(one.timer)}: ${new Date(one.due).toLocaleString()} ${plain(one.cron ?? one.every ?? "")}`),
			!talk.readOnly && button("Cancel", () => talk.tell("timers/cancel", { timer: one.timer }), "quiet", { "data-name": `cancel ${one.timer}` }))));
	}

	/** Return the form of a new timer. What is typed there stays until the timer is set. */
	#timerForm() {
		const node = (this.timer ??= el("div"));
		if (node.firstChild) return node;
		const fields = schemaForm(TIMER);
		return fill(node, fields.node, button("Set the timer", async () => {
			const values = fields.read();
			if (!values || !(await this.talk.tell("timers", { timezone: Intl.DateTimeFormat().resolvedOptions().timeZone, ...values }))) return;
			node.replaceChildren();
			this.#timerForm();
		}));
	}

	async _tools(fold, info) {
		const tools = fold.agent?.tools ?? [];
		const standings = new Map((info?.tools ?? []).map((one) => [one.name, one]));
		// Before the first step the journal lists no tools, but the server knows where each will run.
		const shown = tools.length || fold.agent ? tools : [...standings.values()].map((one) => ({ name: one.name, description: "", inputSchema: null }));
		refill(this.body,
			(info?.warnings ?? []).map((text) => el("p.bad", plain(text))),
			el("p.buttons", button("Check health", () => this.#check(), "quiet")),
			this.health && this.#services(),
			shown.length ? shown.map((tool) => this.#tool(tool, standings.get(tool.name))) : el("p.dim", "This conversation has no tools."));
	}

	#services() {
		if (!this.health.services.length) return el("p.dim", this.health.open ? "Its tools use no services." : "The conversation is not open in the server's process, so no service was checked.");
		return el("ul.services", this.health.services.map((one) => el("li", el(`span.chip.${one.ok ? "finished" : "error"}`, one.ok ? "healthy" : "failing"), " ", el("b", plain(one.id)), ` ${seconds(one.seconds)} `, el("span.dim", oneLine(one.detail, 300)))));
	}

	async #check() {
		try {
			this.health = await ask("GET", place(this.talk.id, "services"));
		} catch (error) {
			toast(error.message, true);
		}
		this.show();
	}

	#tool(tool, standing) {
		const service = tool.name.includes(".") ? tool.name.split(".")[0] : "";
		const source = service ? `service ${service}` : standing?.module ? standing.module : "the agent's own";
		const health = service && this.health?.services.find((one) => one.id === service);
		const body = el("div");
		const node = el("details.tool", {},
			el("summary", el("b", plain(tool.name)), " ", el("span.dim", plain(source)), health ? el(`span.chip.${health.ok ? "finished" : "error"}`, health.ok ? "healthy" : "failing") : null,
				standing && standing.executor !== "server" ? el("span.chip.paused", plain(standing.executor === "client" ? "runs in the client" : standing.executor)) : null),
			body);
		node.ontoggle = () => {
			if (!node.open || body.firstChild) return;
			const byHand = !service && this.talk.info?.workspace && standing?.executor === "server" && standing.module === "holdfast.runtime";
			fill(body,
				el("p", plain(tool.description)), standing?.warning && el("p.bad", plain(standing.warning)),
				tool.inputSchema && folded("Schema", el("pre.output", plain(json(tool.inputSchema)))),
				byHand ? button("Call it by hand…", () => this.#byHand(tool), "quiet") : null);
		};
		return node;
	}

	async #byHand(tool) {
		const workspace = this.talk.info.workspace;
		let form;
		try {
			const found = (await ask("GET", `/api/workspaces/${encodeURIComponent(workspace)}/tools`)).tools.find((one) => one.name === tool.name);
			if (!found) throw new Error("The workspace has no such tool.");
			form = found;
		} catch (error) {
			toast(error.message, true);
			return;
		}
		const harmless = form.annotations?.readOnlyHint === true || form.annotations?.readOnly === true;
		const fields = schemaForm(form.inputSchema);
		const out = el("div.result", { "aria-live": "polite" });
		const sure = el("input", { id: "hand-sure", type: "checkbox" });
		const go = el("button.primary", { type: "submit", disabled: !harmless }, "Call");
		sure.onchange = () => (go.disabled = !sure.checked);
		const node = el("form", { novalidate: true },
			el("p", plain(form.description)),
			el("p.dim", "The tool runs in the workspace, in a shell of its own. The call is not part of the conversation: it is not journaled, and the model does not see it."),
			fields.node,
			harmless ? el("p.dim", "This tool only reads.") : el("p.check", sure, " ", el("label", { for: "hand-sure" }, "This call may change files or data; I want to run it")),
			el("p.buttons", go), out);
		node.onsubmit = async (event) => {
			event.preventDefault();
			const values = fields.read();
			if (values === null || (!harmless && !sure.checked)) return;
			go.disabled = true;
			fill(out, el("p.dim", "running…"));
			try {
				const result = await ask("POST", `/api/workspaces/${encodeURIComponent(workspace)}/tools/${encodeURIComponent(tool.name)}`, { arguments: values }, { once: once() });
				fill(out, result.isError && el("p.bad", "The call failed."), results(result));
			} catch (error) {
				fill(out, el("p.bad", error.message));
			}
			// A tool that may change something must be confirmed each time.
			sure.checked = false;
			go.disabled = !harmless;
		};
		openDialog(["Call ", el("b", plain(tool.name))], node, { wide: true });
	}

	#tags() {
		const words = (prompt("Tags to add, and -tag to remove one, with commas between them") ?? "").split(",").map((word) => word.trim()).filter(Boolean);
		const [remove, add] = [true, false].map((less) => words.filter((word) => word.startsWith("-") === less).map((word) => (less ? word.slice(1) : word)));
		if (words.length) this.talk.tell("labels", { add, remove });
	}

	_about(fold, info) {
		const { usage } = fold;
		const rows = [
			["Id", el("code", plain(this.talk.id))],
			["Tags", info?.tags?.length ? oneLine(info.tags.join(", "), 500) : "none"],
			["Status", [statusName(plain(fold.status)), fold.reason ? `: ${oneLine(fold.reason, 200)}` : ""]],
			["Model", fold.agent?.model ? plain(fold.agent.model) : "—"],
			["Steps", String(fold.steps)],
			["Tokens", `${usage.inputTokens.toLocaleString()} in (${usage.cachedInputTokens.toLocaleString()} cached), ${usage.outputTokens.toLocaleString()} out`],
			["Cost", fold.cost || fold.priced ? `${money(fold.cost)}${fold.priced ? "" : ", plus usage without a known price"}` : "unknown"],
			["Events", String(fold.last)],
			["Workspace", info?.workspace ? el("code", plain(info.workspace)) : "none"],
			["Sandbox", info?.workspace ? (info.sandboxed ? "commands run in one" : "none") : null],
			["Driven", info?.spawnedBy ? "by its parent conversation" : info?.started ? "messages are answered as they arrive" : "only when it is run"],
			["Fault", info?.error ? el("span.bad", plain(info.error)) : null],
		];
		refill(this.body,
			el("dl.arguments.about", rows.filter((row) => row[1] !== null).map(([key, value]) => [el("dt", key), el("dd", value)])),
			fold.agent && folded("System prompt", el("pre.output", plain(fold.agent.systemPrompt))),
			fold.agent && folded("Parameters", el("pre.output", plain(json(fold.agent.parameters ?? {})))),
			this.talk.readOnly ? null : el("p.buttons", {},
				info?.started ? button("Park", () => this.talk.tell("close", undefined, "Parked: messages are not answered until the next start."))
					: button("Start", () => this.talk.tell("start", undefined, "Messages are answered as they arrive.")),
				button("Title…", () => { const title = prompt("Title", info?.title ?? ""); title && this.talk.tell("labels", { title }); }),
				button("Tags…", () => this.#tags()),
				button("Model…", () => { const agent = prompt("Name, such as #fast"); agent && this.talk.tell("use", { agent }); }),
				button("Condense", () => this.talk.tell("condense", {}, "What the model is shown will be shortened.")), button("Fork…", () => this.talk.fork(fold.last)), info?.workspace && button("Files…", () => browse(info.workspace)), button("Export", () => exportTalk(this.talk.id)), button("Delete…", () => this.talk.remove(), "danger")));
	}
}

export const undriven = (item) => item?.status === "running" && item.driven === false && !item.spawnedBy;
export const chip = (status, alone = false) => el(`span.chip.${!alone && /^[a-z_]+$/.test(status) ? status : "idle"}`, alone ? "at rest" : statusName(plain(status)));
