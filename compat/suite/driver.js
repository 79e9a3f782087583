// Loop of a driver in JavaScript. drivers.py describes the format of its lines.

const readline = require("node:readline");

class Missing extends Error {}

// Runs a driver. `call` takes a name and its values, and returns a promise. Its errors may have `names`.
async function main(name, version, call) {
  const write = (line) => process.stdout.write(JSON.stringify(line) + "\n");
  write({ name, version });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    try {
      write({ ok: (await call(asked.call, asked.with)) ?? {} });
    } catch (error) {
      if (error instanceof Missing) write({ missing: error.message });
      else write({ error: { names: [...(error.names ?? []), error.name, error.constructor.name], message: String(error.message) } });
    }
  }
  process.exit(0);
}

module.exports = { main, Missing };
