// Tells the user that conversations wait for a decision: in the tab's title and icon, and by the system's notifications if the user allows them.
import { ask } from "./api.js";
import { $ } from "./dom.js";
import { oneLine } from "./text.js";

const ON = "holdfast.notify";
const ICON = (waits) => `data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Ccircle cx='8' cy='8' r='7' fill='%230b6e5b'/%3E${waits ? "%3Ccircle cx='11.5' cy='4.5' r='4.5' fill='%23d9480f'/%3E" : ""}%3C/svg%3E`;

let title = "Holdfast";
let waiting = new Map(); // titles of the waiting conversations by id
let here = ""; // the shown conversation, if it waits: its stream tells sooner than the list
let first = true;

/** Set the title of the tab, without the number of waiting conversations. `id` is the shown conversation if it waits for the user. */
export function entitle(text, id = "") {
	[title, here] = [text, id];
	show();
}

function show() {
	const number = new Set([...waiting.keys(), ...(here ? [here] : [])]).size;
	const shown = `${number ? `(${number}) ` : ""}${title}`;
	if (document.title !== shown) document.title = shown;
	const icon = $("link[rel=icon]");
	if (icon.dataset.waits !== String(number > 0)) {
		icon.dataset.waits = String(number > 0);
		icon.href = ICON(number > 0);
	}
}

/** Take the conversations of a listing; asks the server for those that wait if the listing is not all of them. `go(id)` opens one. */
export async function watch(items, whole, go) {
	const found = whole ? items : (await ask("GET", "/api/conversations?status=waiting_for_confirmation&limit=100")).items;
	const before = waiting;
	waiting = new Map(found.filter((item) => item.status === "waiting_for_confirmation").map((item) => [item.id, item.title || item.id]));
	show();
	const fresh = [...waiting].filter(([id]) => !before.has(id));
	if (!first) for (const [id, name] of fresh.slice(0, 3)) notify(id, name, go);
	first = false;
}

/** Forget all conversations, for another key. */
export function forgetWaiting() {
	waiting = new Map();
	first = true;
	entitle("Holdfast");
}

function notify(id, name, go) {
	if (!notifying() || (document.hasFocus() && !document.hidden)) return;
	try {
		const shown = new Notification("A conversation waits for you", { body: oneLine(name, 120), tag: `holdfast-${id}` });
		shown.onclick = () => {
			window.focus();
			go(id);
			shown.close();
		};
	} catch {} // phones have notifications of service workers only
}

export const notifying = () => "Notification" in window && Notification.permission === "granted" && localStorage.getItem(ON) === "on";

/** Connect the tick that turns notifications on. It asks the browser for the permission. */
export function connectNotices(box) {
	if (!("Notification" in window)) {
		box.parentElement.hidden = true;
		return;
	}
	box.checked = notifying();
	box.onchange = async () => {
		localStorage.setItem(ON, box.checked ? "on" : "off");
		if (box.checked && Notification.permission !== "granted") await Notification.requestPermission();
		box.checked = notifying();
		box.parentElement.title = Notification.permission === "denied" ? "The browser does not allow notifications of this page." : "";
	};
}
