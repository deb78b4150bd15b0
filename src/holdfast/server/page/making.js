// Dialogs for the key, a conversation from an agent's JSON and a fork, and the help.
import { ask, keep, key, once, place } from "./api.js";
import { openDialog } from "./deciding.js";
import { $, button, el, toast } from "./dom.js";
import { oneLine, plain, typed } from "./text.js";

const AGENT = JSON.stringify({ model: { name: "gpt-5-mini", api_key: "${secret_1}" }, tools: { builtin: ["terminal", "read_file"] }, confirm: "always" }, null, 2);

/** Ask for the key until the server accepts one. */
export function askKey(why, done) {
	const input = el("input", { id: "key", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
	const wrong = el("p.bad", { role: "alert" }, why);
	const submit = el("button.primary", { type: "submit" }, "Enter");
	const stay = el("input", { id: "key-stay", type: "checkbox" });
	const form = el("form", el("p", "The server printed a key, and a link that signs in, at its first start. ", el("code", "holdfast serve keys add"), " creates another key."), el("label", { for: "key" }, "Key"), input,
		el("p.check", stay, " ", el("label", { for: "key-stay" }, "Remember it in this browser; otherwise only until this tab is closed")), wrong, el("p.buttons", submit));
	let let_in = false;
	form.onsubmit = async (event) => {
		event.preventDefault();
		const given = input.value.trim();
		if (!/^[!-~]+$/.test(given)) {
			wrong.textContent = "A key consists of ASCII letters, digits and signs without spaces.";
			return;
		}
		submit.disabled = true;
		wrong.textContent = "";
		try {
			await ask("GET", "/api/conversations?limit=1", undefined, { with: given });
			keep(given, stay.checked);
			let_in = true;
			$("#dialog").close();
			done();
		} catch (error) {
			wrong.textContent = error.status === 401 ? "The server does not accept this key. It may have been revoked." : error.status ? `The server answered ${error.status}.` : "The server does not answer.";
			input.select();
			input.focus();
		}
		submit.disabled = false;
	};
	openDialog("Enter a key", form, {
		onclose: () => {
			if (!let_in && !key()) queueMicrotask(() => askKey(wrong.textContent, done));
		},
	});
	input.focus();
}

/** Open the dialog for a new conversation with an agent of the server, or one as JSON. Calls `done(id)` when the conversation exists. */
export async function makeNew(done) {
	let agents = [];
	try {
		agents = (await ask("GET", "/api/agents")).agents;
	} catch (error) {
		if (error.status === 401) return;
	}
	const which = el("select", { id: "which" }, agents.map((agent) => el("option", { value: agent.name }, `${plain(agent.name)}${agent.model ? ` (${plain(agent.model)})` : ""}`)), el("option", { value: "" }, "an agent of my own, as JSON"));
	const agent = el("textarea.json", { id: "agent", rows: 10, spellcheck: "false", placeholder: AGENT });
	const secrets = el("textarea.json", { id: "secrets", rows: 2, spellcheck: "false", autocomplete: "off", placeholder: '{"secret_1": "sk-…"}' });
	const message = el("textarea", { id: "first", rows: 3 });
	const undo = el("input", { id: "undo", type: "checkbox" });
	const wrong = el("p.bad", { role: "alert" });
	const submit = el("button.primary", { type: "submit" }, "Begin");
	const own = el("div", {},
		el("label", { for: "agent" }, "The agent's form, as returned by ", el("code", "Agent.to_json()")), agent,
		el("label", { for: "secrets" }, "Its secrets as JSON (encrypted on the server)"), secrets,
		el("p.check", undo, " ", el("label", { for: "undo" }, "Keep snapshots of the workspace's files, for a rewind")));
	const tools = el("p.dim");
	which.onchange = () => {
		own.hidden = which.value !== "";
		const found = agents.find((one) => one.name === which.value);
		tools.textContent = found ? `Tools: ${plain(found.tools.join(", ")) || "none"}` : "";
	};
	which.onchange();
	let asked = "";
	let key = "";
	const form = el("form", el("label", { for: "which" }, "Agent"), which, tools, own,
		el("label", { for: "first" }, "First message"), message,
		wrong, el("p.buttons", submit, button("Cancel", () => $("#dialog").close())));
	form.onsubmit = async (event) => {
		event.preventDefault();
		submit.disabled = true;
		wrong.textContent = "";
		try {
			const body = which.value ? {} : { agent: typed(agent.value || "{}"), secrets: typed(secrets.value || "{}"), questions: true, deltas: true, undo: undo.checked };
			const path = which.value ? `/api/agents/${encodeURIComponent(which.value)}/conversations` : "/api/conversations";
			// Repeating the same request creates no second conversation. A corrected one is a new request.
			if (asked !== path + JSON.stringify(body)) {
				asked = path + JSON.stringify(body);
				key = once();
			}
			const made = await ask("POST", path, body, { once: key });
			await ask("POST", place(made.id, "start"));
			if (message.value.trim()) await ask("POST", place(made.id, "messages"), { text: message.value }, { once: `${key}-first` });
			$("#dialog").close();
			done(made.id);
		} catch (error) {
			wrong.textContent = error instanceof SyntaxError ? `This is not JSON: ${error.message}` : error.message;
			submit.disabled = false;
		}
	};
	openDialog("New conversation", form, { wide: true });
	(agents.length ? message : agent).focus();
}

/**
 * Open the dialog that continues from an event: by a fork, or a rewind, which puts the files back too. Calls `done(id)` when it exists.
 * `said` is the text of the event if it is a message of the user, which can then be sent in another form.
 */
export function makeFork(id, seq, done, said = null) {
	const wrong = el("p.bad", { role: "alert" });
	const key = once();
	const next = el("textarea", { id: "fork-text", rows: 3, placeholder: "Nothing: the new conversation rests until you write" });
	const instead = el("input", { id: "fork-instead", type: "checkbox" });
	instead.onchange = () => {
		if (instead.checked && !next.value) next.value = said;
		else if (!instead.checked && next.value === said) next.value = "";
		next.focus();
	};
	let made = null; // a fork whose message was not accepted yet
	const choice = (label, path, kind) => {
		const one = button(label, async () => {
			one.disabled = true;
			wrong.textContent = "";
			const at = instead.checked ? seq - 1 : seq;
			try {
				if (made?.path !== path || made.at !== at) {
					const found = await ask("POST", place(id, path), { seq: at }, { once: `${key}-${path}-${at}` });
					made = { path, at, id: (found.conversation ?? found).id };
					if (found.files) toast(putBack(found.files));
				}
				if (next.value.trim()) {
					await ask("POST", place(made.id, "messages"), { text: next.value, eventId: key }, { once: `${key}-next` });
					await ask("POST", place(made.id, "start"));
				}
				$("#dialog").close();
				done(made.id);
			} catch (error) {
				wrong.textContent = error.message;
			}
			one.disabled = false;
		}, kind);
		return one;
	};
	const submit = choice("Fork", "fork", "primary");
	openDialog(`Continue from event ${seq}`, [
		el("p", `The new conversation begins with the first ${seq === 1 ? "event" : `${seq} events`} and works in the same folder. Calls that were open at that point are not run.`),
		el("p", "A rewind also puts the files of the folder back as they were, if the conversation keeps snapshots of them."),
		said !== null && el("p.check", instead, " ", el("label", { for: "fork-instead" }, "In place of this message")),
		el("label", { for: "fork-text" }, "The next message"), next,
		wrong,
		el("p.buttons", submit, choice("Rewind files too", "rewind"), button("Cancel", () => $("#dialog").close())),
	]);
	submit.focus();
}

/** Return the outcome of a rewind in words; what was not undone is named. */
function putBack({ changed = [], kept = [], failed = [], leftOut = [], outside = {} }) {
	const named = (files, text) => (files.length ? ` ${text}: ${oneLine(files.join(", "), 300)}.` : "");
	return `Files put back: ${changed.length}.${named(kept, "Changed by others, and left")}${named(failed, "Not written")}${named(leftOut, "Not undone")}${named(Object.keys(outside), "Calls that may have acted elsewhere")}`;
}

const SHORTCUTS = [
	["n", "a new conversation"], ["/", "search the list"], ["j, k", "the next, the previous conversation"], ["m", "write a message"], ["a", "review waiting decisions"],
	["p", "pause or continue"], ["x", "interrupt running work"], ["f", "find in this conversation"], ["c", "collapse all calls, or show their results"], ["d", "details"], ["g", "go to the latest event"], ["?", "this help"], ["Esc", "close a dialog, leave a field"],
];

export function help(on, set) {
	const box = el("input", { id: "singles", type: "checkbox", checked: on });
	box.onchange = () => set(box.checked);
	openDialog("Keyboard", [
		el("dl.keys", SHORTCUTS.map(([keys, what]) => [el("dt", keys.split(", ").map((one, index) => [index ? " " : "", el("kbd", one)])), el("dd", what)])),
		el("p.check", box, " ", el("label", { for: "singles" }, "Enable single-letter shortcuts outside of fields")),
	]);
}
