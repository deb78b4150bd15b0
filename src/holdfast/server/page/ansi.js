// The output of programs as elements: with the colours of a terminal, and overwritten lines in their last form.
import { el } from "./dom.js";
import { ANSI, plain } from "./text.js";

const STYLE = /\u001b\[([\d;:]*)m/y;
const MOST_PIECES = 5000; // of more, the rest has no colours
// Each line's part before a carriage return, but for its colours.
const OVERWRITTEN = /[^\n]*\r(?=[^\n])/g;
const FLAGS = { 1: ["bold", true], 2: ["faint", true], 3: ["italic", true], 4: ["underlined", true], 7: ["inverse", true], 9: ["struck", true], 22: ["bold", false, "faint"], 23: ["italic", false], 24: ["underlined", false], 27: ["inverse", false], 29: ["struck", false] };

const overwrite = (text) => text.replace(/\r+\n/g, "\n").replace(OVERWRITTEN, (found) => (found.match(/\u001b\[[\d;:]*m/g) ?? []).join("")).replace(/\r/g, "");

/** Return a program's output as nodes. Text that a terminal would conceal is shown. Never use it for commands, which must show everything. */
export function terminal(given) {
	const text = overwrite(String(given ?? ""));
	if (!text.includes("\u001b") && !text.includes("\u009b")) return [plain(text)];
	const found = [];
	let state = {};
	let at = 0;
	const add = (piece) => {
		if (!piece) return;
		const kind = classes(state);
		found.push(kind ? el(`span${kind}`, plain(piece)) : plain(piece));
	};
	for (const match of text.matchAll(ANSI)) {
		if (found.length > MOST_PIECES) break;
		add(text.slice(at, match.index));
		at = match.index + match[0].length;
		STYLE.lastIndex = match.index;
		const style = STYLE.exec(text);
		if (style) state = styled(state, style[1]);
	}
	if (found.length > MOST_PIECES) state = {};
	add(text.slice(at).replace(ANSI, ""));
	return found;
}

function classes(state) {
	const flags = Object.keys(state).filter((name) => state[name] === true);
	let { ink, ground } = state;
	if (state.inverse) [ink, ground] = [ground, ink];
	if (ink === ground) ink = undefined; // such text would be invisible
	return [...flags, ink !== undefined && `ink${ink}`, ground !== undefined && `ground${ground}`].filter(Boolean).map((name) => `.${name}`).join("");
}

/** Return the state after a Select Graphic Rendition (ECMA-48, 8.3.117) of these parameters. */
function styled(before, parameters) {
	let state = { ...before };
	const codes = parameters.split(/[;:]/).map(Number);
	for (let at = 0; at < codes.length; at++) {
		const code = codes[at];
		if (code === 0) state = {};
		else if (FLAGS[code]) for (const name of [FLAGS[code][0], FLAGS[code][2]]) name && (state[name] = FLAGS[code][1]);
		else if (code === 39) delete state.ink;
		else if (code === 49) delete state.ground;
		else if (code === 38 || code === 48) {
			const colour = codes[at + 1] === 5 ? indexed(codes[at + 2]) : nearest(...codes.slice(at + 2, at + 5));
			state[code === 38 ? "ink" : "ground"] = colour;
			at += codes[at + 1] === 5 ? 2 : 4;
		} else {
			const bright = code >= 90;
			const colour = bright ? code - 90 : code - 30;
			if (colour >= 0 && colour < 8) state.ink = colour;
			else if (colour >= 10 && colour < 18) state.ground = colour - 10;
		}
	}
	return state;
}

/** Return the nearest of the eight colours, which are legible in both themes. */
function nearest(red = 0, green = 0, blue = 0) {
	const most = Math.max(red, green, blue);
	if (most - Math.min(red, green, blue) < 40) return most > 100 ? 7 : 0;
	return (red > 0.6 * most ? 1 : 0) + (green > 0.6 * most ? 2 : 0) + (blue > 0.6 * most ? 4 : 0);
}

function indexed(number = 0) {
	if (number < 16) return number % 8;
	if (number >= 232) return number > 243 ? 7 : 0;
	const part = (by) => [0, 95, 135, 175, 215, 255][Math.floor((number - 16) / by) % 6];
	return nearest(part(36), part(6), part(1));
}
