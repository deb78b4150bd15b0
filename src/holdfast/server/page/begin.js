// The start of a conversation: a text box in the middle of an empty page, and a form for the agent, which is remembered.
import { ask, once, place } from "./api.js";
import { attach, attached, forget, show } from "./attach.js";
import { $, button, el, fill } from "./dom.js";
import { makeNew } from "./making.js";
import { count, money, oneLine, plain } from "./text.js";

export const NEW = "new"; // the place of files that are attached before the conversation exists
const CHOICES = "holdfast.begin"; // in localStorage: the choices of last time, never a key
const DRAFT = "holdfast.draft.new";
const MODEL = "gpt-5-mini"; // proposed if the server names no model
const PROVIDERS = [[/^sk-ant-/, "claude-sonnet-4-5"], [/^AIza/, "gemini-2.5-flash"], [/^gsk_/, "groq/llama-3.3-70b-versatile"]]; // by how a key begins
const GROUPS = { terminal: "Commands", files: "Files", search: "Search", asking: "Questions to you" };
const CONFIRM = [["changes", "Ask before anything but reading"], ["risky", "Ask before risky calls"], ["always", "Ask before every call"], ["never", "Never ask"]];

let known = null; // what the server offers: agents, models, folders, options
let offer = () => {}; // shows it in the form

function remembered() {
	try {
		return JSON.parse(localStorage.getItem(CHOICES)) ?? {};
	} catch {
		return {};
	}
}

/** Show the start in the empty page, with what the server offers now. Calls `done(id)` when a conversation has begun. */
export async function begin(done) {
	const node = $("#empty");
	if (!node.firstChild) draw(node, done);
	try {
		const [agents, models, folders, options] = await Promise.all(["/api/agents", "/api/models", "/api/workspaces", "/api/options"].map((path) => ask("GET", path)));
		known = { agents: agents.agents, models: models.models, folders: folders.workspaces, options };
		offer();
	} catch (error) {
		if (error.status !== 401) $("#begin-wrong").textContent = error.message;
	}
}

/** Empty the start, for another key. */
export function endBegin() {
	known = null;
	$("#empty").replaceChildren();
}

function draw(node, done) {
	const last = remembered();
	const text = el("textarea", { id: "begin-text", rows: 4, placeholder: "What shall be done?", "aria-label": "First message", value: sessionStorage.getItem(DRAFT) ?? "" });
	const which = el("select", { id: "begin-agent" });
	const model = el("input", { id: "begin-model", type: "text", list: "begin-models", autocomplete: "off", spellcheck: "false", placeholder: "gpt-5-mini, anthropic/claude-sonnet-4-5, ollama/qwen3" });
	const key = el("input", { id: "begin-key", type: "password", autocomplete: "off", spellcheck: "false" });
	const keep = el("input", { id: "begin-keep", type: "checkbox", checked: true });
	const address = el("input", { id: "begin-address", type: "text", autocomplete: "off", spellcheck: "false", inputmode: "url", placeholder: "https://models.example/v1", value: last.address ?? "" });
	const folder = el("input", { id: "begin-folder", type: "text", list: "begin-folders", autocomplete: "off", spellcheck: "false", placeholder: "a new folder" });
	const confirm = el("select", { id: "begin-confirm" }, CONFIRM.map(([value, label]) => el("option", { value }, label)));
	const undo = el("input", { id: "begin-undo", type: "checkbox", checked: last.undo ?? false });
	const tools = el("div.choices", { role: "group", "aria-label": "Tools" });
	const models = el("datalist", { id: "begin-models" });
	const folders = el("datalist", { id: "begin-folders" });
	const advice = el("p.dim", { id: "begin-advice", role: "status" });
	const keyLabel = el("label", { for: "begin-key" }, "Key");
	const place1 = el("p.dim", { id: "begin-place" });
	const boxed = el("input", { id: "begin-boxed", type: "checkbox", checked: last.boxed ?? false });
	const boxedPart = el("p.check", boxed, " ", el("label", { for: "begin-boxed" }, "Run commands in a sandbox"));
	const sandbox = el("p.dim", { id: "begin-sandbox", role: "status" });
	const wrong = el("p.bad", { id: "begin-wrong", role: "alert" });
	const submit = el("button.primary", { type: "submit" }, "Begin");
	const files = el("input", { type: "file", multiple: true, hidden: true });
	const keyPart = el("div", { id: "begin-key-part" }, keyLabel, key, el("p.check", keep, " ", el("label", { for: "begin-keep" }, "Keep the key on the server, encrypted, for later conversations")));
	const agentPart = el("div.field", el("label", { for: "begin-agent" }, "Agent"), which);
	const toolPart = el("div.field", el("span.label", "Tools"), tools, el("label", { for: "begin-confirm" }, "Approval"), confirm);
	const addressPart = el("div.field", { hidden: true }, el("label", { for: "begin-address" }, "Address of the model"), address);
	const undoPart = el("p.check", undo, " ", el("label", { for: "begin-undo" }, "Keep snapshots of the files, for a rewind"));
	const own = el("div", { id: "begin-own" }, el("label", { for: "begin-model" }, "Model"), model, models, advice, addressPart, keyPart);
	const more = el("details", { id: "begin-more", open: last.more ?? false }, el("summary", "Folder, tools, approval and sandbox"),
		el("div.field", el("label", { for: "begin-folder" }, "Folder"), folder, folders, place1), toolPart, undoPart, boxedPart, sandbox);
	const form = el("form", { id: "begin", "aria-label": "Begin a conversation" },
		el("a.back", { href: "#/" }, "← All conversations"),
		el("h2", "A new conversation"),
		text, el("ul", { id: "begin-files", "aria-label": "Attached files", hidden: true }),
		agentPart, own, more,
		el("p.buttons", submit, button("+", () => files.click(), "", { "aria-label": "Attach files", title: "Attach files; you can also paste or drop them" }), button("As JSON…", () => makeNew(done), "quiet"), files), wrong);
	fill(node, form);

	let touched = false; // the user has chosen the model
	let addressed = false; // the user has typed the address
	// The addresses of models that this browser has kept on the server, by name: a key goes to no other address.
	const addresses = { ...last.addresses };
	const replaceable = (one) => one.owner === "tenant" && Object.hasOwn(addresses, one.name);
	let advised = null; // what the server knows of the model that is named
	let asking = 0;
	let key1 = ""; // the idempotency key of the request that is repeated
	let asked = "";

	const named = () => known?.models.find((one) => one.name === model.value.trim());
	const published = () => known?.agents.find((one) => one.name === which.value);

	const advise = async () => {
		const name = model.value.trim();
		const mine = ++asking;
		const one = named();
		advised = null;
		if (name) advised = await ask("GET", `/api/options/model?${new URLSearchParams({ name: one ? one.model : name, address: one ? "" : address.value.trim() })}`).catch(() => null);
		if (mine !== asking) return;
		if (advised?.problem) advised.problem = advised.problem.replaceAll("base_url", "the address");
		addressPart.hidden = Boolean(one || !(advised?.problem || address.value));
		const facts = one ?? advised ?? {};
		const parts = [one && one.model !== one.name ? plain(one.model) : advised?.provider && !one ? `from ${plain(advised.provider)}` : "", facts.contextWindow ? `${count(facts.contextWindow)} tokens of context` : "",
			typeof facts.inputPrice === "number" ? `${money(facts.inputPrice)} in and ${money(facts.outputPrice ?? 0)} out per million tokens` : "",
			one?.key ? "its key is on the server" : advised?.variable && !one ? "the server has a key for it" : ""].filter(Boolean);
		fill(advice, advised?.problem && !one ? el("span.bad", plain(advised.problem)) : parts.join(" · "));
		keyLabel.textContent = one?.key ? "Another key, in place of the one that is kept" : advised?.provider ? `Key of ${plain(advised.provider)}` : advised?.local ? "Key, if it needs one" : "Key";
		// A key is asked for where one is needed; a kept one of the tenant's own can be replaced.
		keyPart.hidden = one ? !replaceable(one) : Boolean(!name || advised?.variable || (advised?.local && advised.provider) || (advised?.problem && !address.value.trim()));
	};

	const choose = () => {
		const agent = published();
		own.hidden = toolPart.hidden = undoPart.hidden = Boolean(agent);
		const chosen = known?.folders.find((one) => one.id === folder.value.trim());
		place1.textContent = chosen?.folder ? plain(chosen.folder) : "";
	};

	const confine = () => {
		const { options } = known ?? {};
		if (!options) return;
		const why = options.sandboxAvailable ? "" : " No sandbox can be made there.";
		sandbox.textContent = boxed.checked
			? `Commands run in a sandbox (${plain(options.sandboxAvailable)}), ${options.network.length ? `and reach ${oneLine(options.network.join(", "), 200)}` : "without a network"}.${options.sandbox ? " The operator requires it." : ""}`
			: `Commands run on the server's machine without a sandbox.${why} The operator can give further folders (holdfast serve --workspace NAME=FOLDER).`;
	};

	offer = () => {
		const { agents, options } = known;
		const before = which.options.length ? which.value : last.agent;
		fill(which, agents.map((one) => el("option", { value: one.name }, `${plain(one.name)}${one.model ? ` (${plain(one.model)})` : ""}`)), el("option", { value: "" }, "a model of my choice"));
		which.value = before === undefined || (before && !agents.some((one) => one.name === before)) ? (agents[0]?.name ?? "") : before;
		agentPart.hidden = !agents.length;
		fill(models, known.models.map((one) => el("option", { value: one.name }, plain(one.model))));
		fill(folders, known.folders.filter((one) => one.folder || !/^w-[0-9a-f]{16}$/.test(one.id)).map((one) => el("option", { value: one.id }, plain(one.folder ?? ""))));
		if (!model.value && !touched) {
			const gone = last.named && !known.models.some((one) => one.name === last.model);
			model.value = last.model && !gone ? last.model : (known.models[0]?.name ?? MODEL);
		}
		if (!folder.value && last.folder) {
			if (known.folders.some((one) => one.id === last.folder)) folder.value = last.folder;
			else wrong.textContent = `The folder ${plain(last.folder)} of last time does not exist any more. Choose another one, or none for a new folder.`;
			delete last.folder;
		}
		if (!tools.firstChild) {
			const off = new Set(last.off ?? []);
			const groups = Map.groupBy(options.tools.filter((one) => one.usual !== false), (one) => one.category);
			fill(tools, [...groups].map(([name, members]) => tick(name, GROUPS[name] ?? name, members.map((one) => `${one.name}: ${one.description}`).join("\n"), !off.has(name))),
				tick("plan", "Plan", "The agent keeps a plan of its steps.", !off.has("plan")));
			confirm.value = last.confirm ?? "changes";
		}
		undoPart.classList.toggle("gone", !options.undo);
		folder.placeholder = options.folders ? "a new folder" : "none";
		// A sandbox that the operator requires cannot be left, and one that cannot be made cannot be chosen.
		boxed.disabled = Boolean(options.sandbox) || !options.sandboxAvailable;
		boxed.checked = Boolean(options.sandbox) || (boxed.checked && !boxed.disabled);
		confine();
		choose();
		advise();
	};

	const box = () => (boxed.checked && !boxed.disabled ? { sandbox: "require" } : {});

	const body = () => {
		const agent = published();
		if (agent) return { path: `/api/agents/${encodeURIComponent(agent.name)}/conversations`, body: { workspace: folder.value.trim(), ...box() } };
		const on = new Set([...tools.querySelectorAll("input:checked")].map((one) => one.value));
		const fit = advised?.tools?.length ? new Set(advised.tools) : null;
		const offered = known.options.tools.filter((one) => on.has(one.category) && (one.form || (fit ? fit.has(one.name) : one.usual !== false)));
		const one = named();
		const secrets = {};
		let chosen = { name: model.value.trim() };
		if (one) chosen = { named: one.name };
		else {
			if (address.value.trim()) chosen.base_url = address.value.trim();
			if (key.value.trim() && !keyPart.hidden) {
				chosen.api_key = "${secret_1}";
				secrets.secret_1 = key.value.trim();
			} else if (advised?.variable && !chosen.base_url) chosen.api_key = `\${${advised.variable}}`;
		}
		const form = { model: chosen, tools: { builtin: offered.map((tool) => tool.name) } };
		if (on.has("plan")) form.planning = "tool";
		form.confirm = confirm.value === "changes" ? { ...Object.fromEntries(known.options.tools.filter((tool) => tool.readOnly).map((tool) => [tool.name, "allow"])), plan: "allow", "*": "ask" } : confirm.value;
		if (confirm.value === "risky") form.security = "standard";
		const declared = offered.filter((tool) => tool.form).map((tool) => tool.form);
		return { path: "/api/conversations", body: { agent: form, secrets, tools: declared, tool_module_qualnames: Object.fromEntries(declared.map((tool) => [tool.name, tool.module])), workspace: folder.value.trim(), ...box(), questions: true, deltas: true, undo: undo.checked && known.options.undo && offered.some((tool) => !tool.form) } };
	};

	/** Keep a model with its key on the server, so that the next conversation names it. */
	const keepModel = async () => {
		const one = named();
		const given = key.value.trim();
		if (published() || keyPart.hidden || !given || !keep.checked) return;
		const name = one?.name ?? (model.value.trim().replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[^A-Za-z0-9]+/, "").slice(0, 100) || "model");
		const base = one ? addresses[one.name] : address.value.trim();
		await ask("PUT", `/api/models/${encodeURIComponent(name)}`, { model: { name: one?.model ?? model.value.trim(), api_key: given, ...(base ? { base_url: base } : {}) } });
		addresses[name] = base;
		known.models = (await ask("GET", "/api/models")).models;
		model.value = name;
		key.value = address.value = "";
		addressed = false;
		await advise();
	};

	const remember = () => localStorage.setItem(CHOICES, JSON.stringify({
		agent: which.value, model: model.value.trim(), named: Boolean(named()), address: named() ? "" : address.value.trim(), addresses, folder: folder.value.trim(), confirm: confirm.value, undo: undo.checked, boxed: boxed.disabled ? last.boxed : boxed.checked, more: more.open,
		off: [...tools.querySelectorAll("input:not(:checked)")].map((one) => one.value),
	}));

	form.onsubmit = async (event) => {
		event.preventDefault();
		const said = text.value.trim();
		const blocks = [...attached(NEW), ...(said ? [{ type: "text", text: said }] : [])];
		wrong.textContent = "";
		if (!blocks.length) return fail("Write what shall be done.", text);
		if (!known) return begin(done);
		if (!published()) {
			clearTimeout(later);
			submit.disabled = true;
			await advise();
			submit.disabled = false;
			if (!model.value.trim()) return fail("Name a model.", model);
			if (advised?.problem && !named()) return fail(advised.problem, model);
			if (!keyPart.hidden && !named() && !key.value.trim() && !advised?.local) return fail("This model needs a key.", key);
		}
		const wanted = folder.value.trim();
		if (wanted && !known.folders.some((one) => one.id === wanted)) {
			more.open = true;
			fill(wrong, `There is no folder ${oneLine(wanted, 100)}. `, known.options.folders && button("Create it", async () => {
				try {
					await ask("POST", "/api/workspaces", { id: wanted });
				} catch (error) {
					if (error.status !== 409) return fail(error.message, folder);
				}
				known.folders.push({ id: wanted });
				form.requestSubmit();
			}));
			folder.focus();
			return;
		}
		submit.disabled = true;
		try {
			await keepModel();
			const request = body();
			// Repeating the same request creates no second conversation. A corrected one is a new request.
			const content = JSON.stringify([request, blocks]);
			if (asked !== content) [asked, key1] = [content, once()];
			const made = await ask("POST", request.path, request.body, { once: key1 });
			await ask("POST", place(made.id, "start"));
			await ask("POST", place(made.id, "messages"), { content: blocks, eventId: key1 }, { once: `${key1}-first` });
			remember();
			text.value = key.value = "";
			sessionStorage.removeItem(DRAFT);
			forget(NEW);
			asked = "";
			done(made.id);
		} catch (error) {
			fail(error.message);
		}
		submit.disabled = false;
	};

	function fail(message, field) {
		wrong.textContent = message;
		field?.focus();
	}

	let later = 0;
	const soon = () => {
		clearTimeout(later);
		later = setTimeout(advise, 250);
	};
	model.oninput = () => {
		touched = true;
		if (!addressed) address.value = ""; // that of another model
		soon();
	};
	address.oninput = () => {
		addressed = Boolean(address.value);
		soon();
	};
	key.oninput = () => {
		const found = PROVIDERS.find(([pattern]) => pattern.test(key.value));
		if (touched || named() || !found || model.value === found[1]) return;
		model.value = found[1];
		soon();
	};
	which.onchange = folder.oninput = choose;
	boxed.onchange = confine;
	text.oninput = () => sessionStorage.setItem(DRAFT, text.value);
	text.onkeydown = (event) => {
		if (event.key !== "Enter" || event.isComposing || event.shiftKey || (matchMedia("(pointer: coarse)").matches && !event.ctrlKey && !event.metaKey)) return;
		event.preventDefault();
		form.requestSubmit();
	};
	const take = async (event, given) => {
		if (!given.length) return;
		event.preventDefault();
		await attach(NEW, given);
		show(NEW);
	};
	text.onpaste = (event) => !event.clipboardData.types.includes("text/plain") && take(event, event.clipboardData.files);
	form.ondragover = (event) => event.dataTransfer.types.includes("Files") && event.preventDefault();
	form.ondrop = (event) => take(event, event.dataTransfer.files);
	files.onchange = (event) => {
		take(event, [...files.files]);
		files.value = "";
	};
	show(NEW);
}

function tick(value, label, title, checked) {
	const id = `begin-tool-${value}`;
	return el("span.check", { title }, el("input", { id, type: "checkbox", value, checked }), " ", el("label", { for: id }, label));
}
