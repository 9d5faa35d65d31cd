// Reads AsyncAPI documents from standard input, one on each line, and prints for each of
// them a line of JSON: whether the official parser accepts it, and its errors and warnings.
import { createInterface } from "node:readline";
import { Parser } from "@asyncapi/parser";

const WARNING = 1; // an error is 0
const parser = new Parser();

for await (const line of createInterface({ input: process.stdin })) {
  const { document, diagnostics } = await parser.parse(line);
  const faults = diagnostics.filter((one) => one.severity <= WARNING);
  const messages = document?.operations().filterByReceive()[0].messages().all() ?? [];
  console.log(
    JSON.stringify({
      accepted: document !== undefined,
      faults: faults.map((one) => `${one.path.join("/")}: ${one.message}`),
      commands: messages.map((one) => one.name()),
    }),
  );
}
