// An agent in JavaScript: Node 18 or newer, and `npm install redis`.
// Run: BLS_PROJECT=订单系统 BLS_REDIS_URL=redis://127.0.0.1:6379/0 node agent.mjs
import { createClient } from "redis";

const project = process.env.BLS_PROJECT ?? "订单系统";
const [STATUS, LOG, CONTROL] = ["项目状态", "项目控制台", "控制"].map((end) => `${project}_${end}`);
const url = process.env.BLS_REDIS_URL ?? "redis://127.0.0.1:6379/0";

// A connection without any byte for 10 s is dead, because each BLPOP is answered in 1 s.
const socket = { socketTimeout: 10_000, reconnectStrategy: false };
let reader; // waits for commands
let writer; // writes status and records

// After any error both connections are replaced, because a dead one may look alive.
async function connect() {
  for (const client of [reader, writer]) client?.destroy();
  [reader, writer] = [1, 2].map(() => createClient({ url, socket }));
  for (const client of [reader, writer]) client.on("error", () => {}); // its calls fail, too
  await Promise.all([reader.connect(), writer.connect()]);
}

const handlers = {
  async echo({ word }) {
    await log("info", `echo ${word}`);
  },
  async reload({ force = false }) {
    await log("info", "configuration reloaded", { force });
    return { rules: 42 };
  },
};

async function log(level, message, metadata) {
  const record = { timestamp: new Date().toISOString(), level, message: message.slice(0, 4000), metadata };
  await writer.multi().rPush(LOG, JSON.stringify(record)).lTrim(LOG, -10_000, -1).exec();
}

function decode(payload) {
  const command = JSON.parse(payload);
  const args = command?.args ?? {};
  if (typeof command?.command !== "string") throw new TypeError("no command");
  if (typeof args !== "object" || Array.isArray(args)) throw new TypeError("bad args");
  return { ...command, args };
}

async function run(payload) {
  let command;
  try {
    command = decode(payload);
  } catch (error) {
    return log("error", `message discarded: ${error.message}`.slice(0, 200));
  }
  const { id, command: name, args } = command;
  const began = performance.now();
  const found = Object.hasOwn(handlers, name);
  let end = { outcome: "unknown", error: { type: "UnknownCommandError", message: "no such command" } };
  try {
    if (found) end = { outcome: "succeeded", result: (await handlers[name](args)) ?? null };
  } catch (error) {
    end = { outcome: "failed", error: { type: error.name, message: error.message } };
  }
  const durationMs = Math.round((performance.now() - began) * 1000) / 1000;
  const level = { succeeded: "info", unknown: "warn", failed: "error" }[end.outcome];
  await log(level, `command ended: ${end.outcome}`, {
    commandId: String(id ?? "").slice(0, 1000), command: name.slice(0, 1000), durationMs, ...end,
  });
}

let stopping = false;
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => { stopping = true; });

let due = 0; // when the status has to be written again
while (!stopping) {
  try {
    if (!writer?.isReady) await connect();
    if (Date.now() >= due) {
      await writer.set(STATUS, "在线", { expiration: { type: "EX", value: 60 } });
      due = Date.now() + 8_000;
    }
    const taken = await reader.blPop(CONTROL, 1); // never without a time limit
    if (taken) await run(taken.element);
  } catch {
    writer.destroy();
    await new Promise((resolve) => setTimeout(resolve, 300));
  }
}
await writer.set(STATUS, "离线"); // without EX: the last word stays
process.exit(0);
