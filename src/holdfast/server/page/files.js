// Browses and downloads the files of a workspace, and exports a conversation.
import { ask, download, place } from "./api.js";
import { openDialog } from "./deciding.js";
import { button, el, fill, toast } from "./dom.js";
import { clock, count, oneLine, plain, written } from "./text.js";

const TEXT_BYTES = 1e6; // of a text that is shown
const PICTURE_BYTES = 5e6;
const PICTURES = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp" };

const url = (workspace, what, path) => `/api/workspaces/${encodeURIComponent(workspace)}/${what}/${path.split("/").map(encodeURIComponent).join("/")}`;

/** Open the folder of a workspace. */
export function browse(workspace) {
	const here = el("p.crumbs", { "aria-label": "Folder" });
	const body = el("div.files");
	openDialog("Files", [here, body], { wide: true });

	const crumbs = (path) => {
		const parts = path ? path.split("/") : [];
		fill(here, button(plain(workspace), () => open(""), "quiet"), parts.map((part, index) => [" / ", button(oneLine(part, 60), () => open(parts.slice(0, index + 1).join("/")), "quiet")]));
	};

	const open = async (path) => {
		crumbs(path);
		fill(body, el("p.dim", "…"));
		try {
			const found = await ask("GET", `/api/workspaces/${encodeURIComponent(workspace)}/entries?${new URLSearchParams({ path })}`);
			fill(body, el("ul.found", found.entries.map((one) => el("li", row(path ? `${path}/${one.name}` : one.name, one)))),
				!found.entries.length && el("p.dim", "The folder is empty."), found.entries.length > 0 && el("p.buttons", button("Download the folder (.tar)", () => save(`/api/workspaces/${encodeURIComponent(workspace)}/archive?${new URLSearchParams({ path })}`, `${path.split("/").pop() || workspace}.tar`))), found.more > 0 && el("p.dim", `and ${count(found.more)} more`));
		} catch (error) {
			fill(body, el("p.bad", error.message));
		}
	};

	const row = (path, one) => {
		const facts = el("span.dim", one.kind === "file" ? ` ${count(one.size)} bytes · ${clock(one.modified)}` : one.kind === "folder" ? "" : " a link or a special file");
		if (one.kind === "folder") return button([`${oneLine(one.name, 120)}/`, facts], () => open(path), "quiet");
		if (one.kind !== "file") return el("span.entry-other", oneLine(one.name, 120), facts);
		return el("span.row", button([oneLine(one.name, 120), facts], () => view(path, one), "quiet"), button("Download", () => save(url(workspace, "download", path), one.name), "", { "aria-label": `Download ${plain(one.name)}` }));
	};

	const view = async (path, one) => {
		crumbs(path);
		const type = PICTURES[one.name.toLowerCase().split(".").pop()];
		const saving = el("p.buttons", button("Download", () => save(url(workspace, "download", path), one.name), "primary"), button("Back", () => open(path.split("/").slice(0, -1).join("/"))));
		fill(body, el("p.dim", "…"));
		try {
			if (type && one.size <= PICTURE_BYTES) {
				const reader = new FileReader();
				const data = await download(url(workspace, "download", path));
				const source = await new Promise((done, failed) => {
					reader.onload = () => done(reader.result);
					reader.onerror = () => failed(reader.error);
					reader.readAsDataURL(new Blob([data], { type }));
				});
				fill(body, saving, el("img", { src: source, alt: plain(one.name) }));
			} else if (one.size > TEXT_BYTES) fill(body, saving, el("p.dim", "The file is too large to be shown here."));
			else fill(body, saving, el("pre.output", written(await (await download(url(workspace, "files", path))).text())));
		} catch (error) {
			fill(body, saving, el("p.bad", error.message));
		}
	};
	open("");
}

/** Download the journal of a conversation as JSON lines, which `holdfast import` reads. */
export const exportTalk = (id) => save(place(id, "export"), `${id}.jsonl`);

/** Save what the server answers as a file. */
async function save(path, name) {
	try {
		const address = URL.createObjectURL(await download(path));
		el("a", { href: address, download: name }).click();
		setTimeout(() => URL.revokeObjectURL(address), 60_000);
	} catch (error) {
		toast(error.message, true);
	}
}
