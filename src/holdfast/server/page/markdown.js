// Markdown as elements: CommonMark with tables, task lists and strikethrough. HTML within it is text.
import MarkdownIt from "./vendor/markdown-it.js";
import { code, languageOf, reachable, whenNear } from "./code.js";
import { diff } from "./diff.js";
import { button, el, link } from "./dom.js";
import { plain } from "./text.js";

const MOST_CHARACTERS = 30_000; // parsed at once
const MOST_BLOCKS = 400; // built at once
const PICTURE = /^data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]*$/;

const parser = new MarkdownIt({ html: false, linkify: true });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
// Other addresses leave the Markdown as it was written.
parser.validateLink = (address) => /^https?:/i.test(address) || PICTURE.test(address) || !/^[^/?#]*:/.test(address);

/** Return Markdown as nodes. Of a very long text the first part, and a button that shows the next. */
export function markdown(given) {
	const text = plain(String(given ?? "").replace(/\r\n/g, "\n"));
	const end = text.length > MOST_CHARACTERS ? cut(text) : text.length;
	const blocks = blocksOf(text.slice(0, end));
	const nodes = blocks.slice(0, MOST_BLOCKS).map((block) => built(block.tokens));
	const left = blocks.length > MOST_BLOCKS ? lineStart(text, blocks[MOST_BLOCKS].line) : end;
	if (left < text.length) {
		nodes.push(button(`Show more (${Math.ceil((text.length - left) / 1000)},000 characters)`, (event) => event.currentTarget.replaceWith(...markdown(text.slice(left))), "quiet"));
	}
	return nodes;
}

/** Return where a long text is cut: before a paragraph, if there is one. */
function cut(text) {
	const at = text.lastIndexOf("\n\n", MOST_CHARACTERS);
	return at > MOST_CHARACTERS / 2 ? at + 2 : MOST_CHARACTERS;
}

function lineStart(text, line) {
	let at = 0;
	for (let left = line; left > 0; left--) at = text.indexOf("\n", at) + 1;
	return at;
}

/** Return the blocks of a text: their tokens, and the lines at which they begin. */
function blocksOf(text) {
	const blocks = [];
	for (const token of parser.parse(text, {})) {
		if (token.level === 0 && token.nesting >= 0) blocks.push({ line: token.map?.[0] ?? 0, tokens: [] });
		blocks.at(-1).tokens.push(token);
	}
	return blocks;
}

/** A text that grows while it is shown. Blocks before the last one stay as they are, with what the user selected or opened in them. */
export class GrowingMarkdown {
	constructor() {
		this.node = el("div.text", { dir: "auto" });
		this.text = "";
		this.from = 0; // where the last block begins
		this.tail = []; // the nodes of the last block
	}

	show(text) {
		if (text === this.text) return;
		if (!text.startsWith(this.text)) {
			this.node.replaceChildren();
			this.from = 0;
			this.tail = [];
		}
		this.text = text;
		const rest = plain(text.slice(this.from).replace(/\r\n/g, "\n")); // a newline stays one, so that offsets of lines stay
		for (const node of this.tail) node.remove();
		if (rest.length > MOST_CHARACTERS) {
			this.tail = [el("pre.said", rest)];
		} else {
			const blocks = blocksOf(rest);
			this.tail = [];
			blocks.forEach((block, at) => {
				const node = built(block.tokens);
				this.node.append(node);
				if (at === blocks.length - 1) this.tail.push(node);
			});
			if (blocks.length) this.from += lineStart(text.slice(this.from), blocks.at(-1).line);
		}
		this.node.append(...this.tail);
	}
}

const TAGS = { paragraph: "p", blockquote: "blockquote", bullet_list: "ul", ordered_list: "ol", list_item: "li", table: "table", thead: "thead", tbody: "tbody", tr: "tr", th: "th", td: "td", strong: "strong", em: "em", s: "del" };
const HEADINGS = { h1: "h3.first", h2: "h4.second", h3: "h5.third", h4: "h6", h5: "h6", h6: "h6" }; // below those of the page

/** Return a block's node. */
function built(tokens) {
	const open = [];
	let top = null;
	const put = (node) => (open.length ? open.at(-1).append(node) : (top = node));
	for (const token of tokens) {
		const name = token.type.replace(/_(open|close)$/, "");
		if (token.type === "inline") open.at(-1).append(...inline(token.children));
		else if (token.type === "fence") put(fence(token));
		else if (token.type === "code_block") put(code(token.content));
		else if (token.type === "hr") put(el("hr"));
		else if (token.nesting === 1) open.push(token.hidden ? open.at(-1) : begun(name, token));
		else if (token.nesting === -1) {
			const node = open.pop();
			if (!token.hidden) put(ended(name, node));
		} else put(el("p", token.content));
	}
	return top;
}

function begun(name, token) {
	if (name === "heading") return el(HEADINGS[token.tag]);
	const given = Object.fromEntries(token.attrs ?? []);
	const side = /^text-align:(center|right)$/.exec(given.style ?? "")?.[1];
	return el(`${TAGS[name] ?? "span"}${side ? `.${side}` : ""}`, { start: given.start });
}

function ended(name, node) {
	if (name === "table") return whenNear(el("div.table", node), () => reachable(node.parentNode, "Table"));
	if (name === "list_item") task(node);
	return node;
}

/** Turn the box at the beginning of a list's item into a checkbox. */
function task(item) {
	const place = item.firstChild?.nodeName === "P" ? item.firstChild : item;
	const first = place.firstChild;
	const match = first?.nodeType === Node.TEXT_NODE && /^\[([ xX])\] /.exec(first.data);
	if (!match) return;
	first.data = first.data.slice(match[0].length);
	const done = match[1] !== " ";
	place.prepend(el("span.box", { role: "img", "aria-label": done ? "done" : "open" }, done ? "☑" : "☐"), " ");
	item.classList.add("task");
}

function fence({ content, info }) {
	const name = info.trim().split(/[\s{]/)[0];
	return name === "diff" || name === "patch" ? diff(content) : code(content, languageOf(name));
}

function inline(tokens) {
	const found = [];
	const open = [];
	const put = (...nodes) => (open.length ? open.at(-1).node.append(...nodes) : found.push(...nodes));
	for (const token of tokens) {
		const name = token.type.replace(/_(open|close)$/, "");
		if (token.type === "softbreak" || token.type === "hardbreak") put(el("br"));
		else if (token.type === "code_inline") put(el("code", token.content));
		else if (token.type === "image") put(...picture(token));
		else if (token.nesting === 1) open.push(name === "link" ? { node: el("span"), href: token.attrGet("href") ?? "" } : { node: el(TAGS[name] ?? "span") });
		else if (token.nesting === -1) {
			const { node, href } = open.pop();
			put(...(href === undefined ? [node] : linked(href, node)));
		} else put(token.content);
	}
	return found;
}

/** Return a link. The address's host is shown beside the label, because a label can claim anything. */
function linked(href, node) {
	const label = node.textContent;
	const made = link(href, [...node.childNodes]);
	if (!(made instanceof Node)) return [...node.childNodes, label === href ? "" : ` (${plain(href)})`];
	const shown = [href, made.href].map((one) => one.replace(/\/$/, ""));
	return shown.includes(label.replace(/\/$/, "")) || decoded(href) === label ? [made] : [made, el("span.dim", ` (${plain(new URL(href).host)})`)];
}

function decoded(address) {
	try {
		return decodeURI(address);
	} catch {
		return address;
	}
}

/** Return a picture that is in the text itself. Others are links: loading them would tell other hosts what is read here. */
function picture(token) {
	const address = token.attrGet("src") ?? "";
	const label = token.content || "picture";
	if (PICTURE.test(address)) return [el("img", { src: address, alt: label, loading: "lazy" })];
	return ["🖼 ", ...linked(address, el("span", label))];
}
