// Judges runs of AG-UI with the protocol's own client: `node agui_judge.mjs FOLDER < runs`. FOLDER has
// node_modules with @ag-ui/client. Each line of the input is one run, `{input, events}`; each line of
// the output is its messages and state in the client, or the error. A warning is an error, too.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { join } from "node:path";

const require = createRequire(join(process.argv[2], "package.json"));
const { defaultApplyEvents, enforceEvents, verifyEvents } = require("@ag-ui/client");
const { from, lastValueFrom, toArray } = require("rxjs");

let warnings = [];
console.warn = console.error = (...words) => warnings.push(words.join(" "));

for await (const line of createInterface({ input: process.stdin })) {
  const { input, events } = JSON.parse(line);
  let found;
  warnings = [];
  try {
    const checked = from(events).pipe(enforceEvents(), verifyEvents());
    const agent = { messages: input.messages, state: input.state };
    const changes = await lastValueFrom(
      defaultApplyEvents(input, checked, agent, []).pipe(toArray()),
    );
    const last = (name) => changes.reduce((one, change) => change[name] ?? one, input[name]);
    found = { messages: last("messages"), state: last("state") };
  } catch (error) {
    found = { error: String(error) };
  }
  console.log(JSON.stringify(warnings.length ? { error: warnings.join("; ") } : found));
}
