// Differences of texts: lines with numbers and colours, and the changed words within lines.
import { coloured, copyable, languageOf, reachable, whenNear } from "./code.js";
import { button, el } from "./dom.js";
import { plain } from "./text.js";

const MOST_CELLS = 1_000_000; // of the table of common parts; larger texts are replaced as a whole
const MOST_WORDS = 300; // of a line whose words are compared
const ALIKE = 0.35; // lines with fewer common characters are different lines, not changed ones

/** Return the pairs `[one, other]` of indexes of a longest common subsequence of two arrays. */
function common(one, other) {
	let begin = 0;
	while (begin < one.length && begin < other.length && one[begin] === other[begin]) begin++;
	let end = 0;
	while (end < one.length - begin && end < other.length - begin && one[one.length - 1 - end] === other[other.length - 1 - end]) end++;
	const pairs = Array.from({ length: begin }, (_, at) => [at, at]);
	const rows = one.length - begin - end;
	const columns = other.length - begin - end;
	if (rows && columns && rows * columns <= MOST_CELLS) {
		const width = columns + 1;
		const table = new Uint16Array((rows + 1) * width);
		for (let row = rows - 1; row >= 0; row--) {
			for (let column = columns - 1; column >= 0; column--) {
				table[row * width + column] = one[begin + row] === other[begin + column]
					? table[(row + 1) * width + column + 1] + 1
					: Math.max(table[(row + 1) * width + column], table[row * width + column + 1]);
			}
		}
		for (let row = 0, column = 0; row < rows && column < columns; ) {
			if (one[begin + row] === other[begin + column]) pairs.push([begin + row++, begin + column++]);
			else if (table[(row + 1) * width + column] >= table[row * width + column + 1]) row++;
			else column++;
		}
	}
	for (let at = end; at > 0; at--) pairs.push([one.length - at, other.length - at]);
	return pairs;
}

/** Return the changed ranges `[from, to]` of two lines, or null if the lines have little in common. */
function changedWords(before, after) {
	const [one, other] = [before, after].map((line) => line.match(/[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu) ?? []);
	if (one.length > MOST_WORDS || other.length > MOST_WORDS) return null;
	const pairs = common(one, other);
	const same = pairs.reduce((sum, [at]) => sum + one[at].trim().length, 0);
	const most = Math.max(before.replace(/\s/g, "").length, after.replace(/\s/g, "").length);
	if (!pairs.length || same < ALIKE * most) return null;
	return [one, other].map((words, side) => {
		const kept = new Set(pairs.map((pair) => pair[side]));
		const ranges = [];
		let at = 0;
		words.forEach((word, index) => {
			if (!kept.has(index)) {
				if (ranges.at(-1)?.[1] === at) ranges.at(-1)[1] += word.length;
				else ranges.push([at, at + word.length]);
			}
			at += word.length;
		});
		return ranges;
	});
}

/** Return the lines of a text; an empty text has none. */
const linesOf = (text) => (text ? text.replace(/\n$/, "").split("\n") : []);

/** Return the rows of the change from one text to another, with `around` unchanged lines around each change. */
function rowsOf(old, now, around = 3) {
	const whole = old.endsWith("\n") === now.endsWith("\n") || !old || !now; // otherwise the final newline is the change
	const [before, after] = [old, now].map((text) => (whole ? linesOf(text) : text.split("\n")));
	const rows = [];
	let [one, other] = [0, 0];
	for (const [left, right] of [...common(before, after), [before.length, after.length]]) {
		while (one < left) rows.push({ sign: "-", text: before[one++] });
		while (other < right) rows.push({ sign: "+", text: after[other++] });
		if (left < before.length && right < after.length) rows.push({ sign: " ", text: before[one++] }), other++;
	}
	const near = rows.map((_, at) => rows.slice(Math.max(0, at - around), at + around + 1).some((row) => row.sign !== " "));
	return rows.flatMap((row, at) => (near[at] ? [row] : near[at - 1] && near.indexOf(true, at) >= 0 ? [{ sign: "@", text: "…" }] : []));
}

const nameOf = (line) => line.slice(4).split("\t")[0].replace(/^[ab]\//, "");

/** Return the rows of a unified diff. A line's kind follows from the counts in the header of its hunk, because a removed line may look like a header. */
function parsed(text) {
	const rows = [];
	let [old, now, oldLeft, nowLeft] = [0, 0, 0, 0];
	let file = "";
	for (const line of text.replace(/\n$/, "").split("\n")) {
		const sign = line[0] ?? " ";
		if ((oldLeft > 0 || nowLeft > 0) && " +-".includes(sign)) {
			const row = { sign, text: line.slice(1), file };
			if (sign !== "+") (row.old = old++), oldLeft--;
			if (sign !== "-") (row.now = now++), nowLeft--;
			rows.push(row);
			continue;
		}
		const place = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/.exec(line);
		if (place) {
			[old, now] = [Number(place[1]), Number(place[3])];
			[oldLeft, nowLeft] = [Number(place[2] ?? 1), Number(place[4] ?? 1)];
		} else if (line.startsWith("+++ ")) {
			file = nameOf(line);
			const before = rows.at(-1);
			if (before?.text.startsWith("--- ") && ["/dev/null", file].includes(nameOf(before.text))) rows.pop(); // the file's name is enough once
		}
		if (" +-".includes(sign) && !/^(--- |\+\+\+ )/.test(line)) {
			rows.push({ sign, text: line.slice(1), file }); // without headers or with wrong counts, as models write it
			continue;
		}
		rows.push({ sign: "@", text: line });
	}
	return rows;
}

/** Return a unified diff as an element. The sign of each line stays. */
export const diff = (text, most = 400) => shown(parsed(plain(String(text).replace(/\r\n/g, "\n"))), most, text);

/** Return the change from one text to another as an element; a `path` tells the language. */
export const changes = (old, now, path = "", most = 400) => {
	const rows = rowsOf(plain(old), plain(now)).map((row) => ({ ...row, file: path }));
	return shown(rows, most, rows.map((row) => (row.sign === "@" ? row.text : row.sign + row.text)).join("\n"));
};

/** Return a new file as an element, all of its lines added. */
export const added = (text, path = "", most = 400) => shown(linesOf(plain(text)).map((line, at) => ({ sign: "+", text: line, now: at + 1, file: path })), most, text);

const KINDS = { "+": ".add", "-": ".remove", "@": ".place", " ": "" };

function shown(rows, most, text) {
	mark(rows);
	const digits = String(rows.reduce((sum, { old = 0, now = 0 }) => Math.max(sum, old, now), 0)).length;
	const numbered = rows.some((row) => row.now !== undefined || row.old !== undefined);
	const sides = rows.some((row) => row.old !== undefined);
	const place = (row) => (numbered && row.sign !== "@" ? `${sides ? String(row.old ?? "").padStart(digits) + " " : ""}${String(row.now ?? "").padStart(digits)} ` : null);
	const visible = rows.slice(0, most);
	const nodes = visible.map((row) => el(`span.line${KINDS[row.sign]}`, { "data-place": place(row) }, painted(row)));
	const pre = el("pre.diff", { tabindex: "0" }, nodes); // it scrolls, also with the keyboard
	if (rows.length > most) {
		pre.append(button(`… ${rows.length - most} more lines`, () => {
			const whole = shown(rows, Infinity, text);
			pre.parentNode.replaceWith(whole);
		}, "quiet.line"));
	}
	whenNear(pre, async () => {
		reachable(pre, "Changes");
		for (const file of new Set(visible.map((row) => row.file))) {
			const language = languageOf(file);
			if (!language) continue;
			for (const side of ["-", "+"]) {
				const some = visible.filter((row) => row.file === file && (row.sign === side || row.sign === " "));
				const lines = await coloured(some.map((row) => row.text).join("\n"), language);
				some.forEach((row, at) => (row.pieces = lines[at]));
			}
		}
		visible.forEach((row, at) => row.pieces && nodes[at].replaceChildren(...painted(row)));
	});
	return copyable(pre, () => plain(text), "changes");
}

/** Set the changed ranges of lines that were changed, not added or removed. */
function mark(rows) {
	for (let at = 0; at < rows.length; ) {
		const count = (sign, from) => {
			let end = from;
			while (rows[end]?.sign === sign) end++;
			return end - from;
		};
		const removed = count("-", at);
		const put = removed && count("+", at + removed);
		for (let pair = 0; removed === put && pair < removed; pair++) {
			const [one, other] = [rows[at + pair], rows[at + removed + pair]];
			[one.changed, other.changed] = changedWords(one.text, other.text) ?? [];
		}
		at += removed + (put || 0) || 1;
	}
}

/** Return the nodes of a row: its sign, and its text in pieces by colour and by what changed. */
function painted({ sign, text, pieces = [[text, ""]], changed = [] }) {
	const found = [sign === "@" ? "" : sign];
	let at = 0;
	for (const [piece, kind] of pieces) {
		const end = at + piece.length;
		const cuts = [at, ...changed.flat().filter((cut) => cut > at && cut < end), end];
		for (let index = 1; index < cuts.length; index++) {
			const [from, to] = [cuts[index - 1], cuts[index]];
			const part = text.slice(from, to);
			const marked = changed.some((range) => range[0] <= from && to <= range[1]);
			found.push(marked ? el(`b.changed${kind && `.c-${kind}`}`, part) : kind ? el(`span.c-${kind}`, part) : part);
		}
		at = end;
	}
	if (!text) found.push(sign === "@" || sign === " " ? " " : "");
	return found;
}
