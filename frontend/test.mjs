// Runs tests/ in Node: what is tested needs no browser.
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const names = readdirSync(join(here, "tests")).filter((name) => name.endsWith(".test.mjs"));
const outdir = join(here, "node_modules/.cache/clearhead-tests");

// Bundled, since Node resolves neither TypeScript's imports nor JSX.
await build({
  absWorkingDir: here,
  entryPoints: names.map((name) => `tests/${name}`),
  outdir,
  outExtension: { ".js": ".mjs" },
  bundle: true,
  platform: "node",
  format: "esm",
  jsx: "automatic",
  jsxImportSource: "preact",
  logLevel: "warning",
});
const files = names.map((name) => join(outdir, name));
const { status } = spawnSync(process.execPath, ["--test", "--test-reporter=dot", ...files], {
  stdio: "inherit",
});
process.exitCode = status ?? 1;
