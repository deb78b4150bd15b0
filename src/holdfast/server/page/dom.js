// All elements are created here. Texts become text nodes, never HTML.

/** Create an element: `el("a.item", {href, onclick}, "text", node, [more])`, or without attributes `el("p", "Hi")`. */
export function el(name, given, ...children) {
	const [tag, ...classes] = name.split(".");
	const node = document.createElement(tag);
	if (classes.length) node.className = classes.join(" ");
	if (given?.constructor !== Object) {
		children.unshift(given);
		given = {};
	}
	for (const [key, value] of Object.entries(given)) {
		if (value === undefined || value === null || value === false) continue;
		if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
		else if (key === "value") node.value = value;
		else node.setAttribute(key, value === true ? "" : String(value));
	}
	put(node, children);
	return node;
}

function put(node, children) {
	for (const child of children.flat(Infinity)) {
		if (child !== undefined && child !== null && child !== false) node.append(child instanceof Node ? child : String(child));
	}
}

export function fill(node, ...children) {
	node.replaceChildren();
	put(node, children);
	return node;
}

/** Replace the children of a node. The focus stays on the element of the same kind and name, and what was open stays open. */
export function refill(node, ...children) {
	const name = (one) => `${one.tagName} ${one.dataset.name ?? one.getAttribute("aria-label") ?? one.textContent}`;
	const active = document.activeElement;
	const held = active !== node && node.contains(active) ? name(active) : null;
	const opened = new Set([...node.querySelectorAll("details[open] > summary")].map(name));
	fill(node, ...children);
	for (const one of node.querySelectorAll("summary")) if (opened.has(name(one))) one.parentNode.open = true;
	if (held) ([...node.querySelectorAll(active.tagName)].find((one) => name(one) === held) ?? node).focus({ preventScroll: true });
}

// A browser drops the click on an element that is drawn anew between press and release. It counts for links and rows of the trace, if the pointer is released over the same one. Never for other buttons: an approval drawn in the place of another looks the same.
const target = (one) => one?.closest("a[href], [data-span]");
const identity = (one) => one.dataset.span ?? one.getAttribute("href");
let pressed = null;
addEventListener("pointerdown", (event) => (pressed = event.button === 0 ? target(event.target) : null), true);
addEventListener("pointerup", ({ clientX, clientY }) => {
	const before = pressed;
	pressed = null;
	if (!before || before.isConnected) return;
	const now = target(document.elementFromPoint(clientX, clientY));
	if (now && identity(now) === identity(before)) now.click();
}, true);

export const $ = (selector, root = document) => root.querySelector(selector);

/** Create a button of a kind: `primary`, `danger`, `quiet` or "". */
export const button = (label, onclick, kind = "", given = {}) => el(`button${kind && "." + kind}`, { type: "button", onclick, ...given }, label);

/** Return a link to an external http or https address, or only the label for other addresses. */
export function link(address, label = address) {
	const url = /^https?:\/\//i.test(address) && URL.canParse(address) ? new URL(address).href : null;
	return url ? el("a", { href: url, rel: "noopener noreferrer", target: "_blank", title: url }, label) : label;
}

export const fold = (summary, ...body) => el("details", el("summary", summary), ...body);

export const talkLink = (id, label = id) => el("a", { href: talkPlace(id) }, label);
export const talkPlace = (id) => `#/c/${encodeURIComponent(id)}`;

/** Announce a text to screen readers. `urgent` interrupts other announcements. */
export function announce(text, urgent = false) {
	const node = $(urgent ? "#alert" : "#told");
	const line = el("span", `${text}. `);
	node.append(line);
	setTimeout(() => line.remove(), 5000);
}

/** Keep the toasts above the decisions, however high these are. */
function fit() {
	const node = $("#toasts");
	const decide = $("#decide");
	const bottom = decide.hidden ? innerHeight : decide.getBoundingClientRect().top;
	node.style.maxHeight = `${Math.max(0, Math.min(innerHeight * 0.4, bottom - node.getBoundingClientRect().top - 4))}px`;
}
new ResizeObserver(fit).observe($("#decide"));
addEventListener("resize", fit);

/** Show a short notification about a success or a failure, which can be dismissed. */
export function toast(text, bad = false) {
	const place = $("#toasts");
	const node = el(`p.toast${bad ? ".bad" : ""}`, el("span", text), button("×", () => node.remove(), "quiet", { "aria-label": "Dismiss" }));
	place.append(node);
	if (place.children.length > 4) place.firstChild.remove();
	fit();
	announce(text, bad);
	setTimeout(() => node.remove(), bad ? 12000 : 5000);
}
