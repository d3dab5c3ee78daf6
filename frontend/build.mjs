// Bundles src/ into one module and one style sheet, beside the Python that puts them into a page.
// With --check nothing is written: the exit code tells whether what is there is what would be.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { minify } from "terser";

const here = dirname(fileURLToPath(import.meta.url));
const assets = join(here, "../src/clearhead/drawing/page/assets");

/** All that decides about the bundle: our sources, and the exact versions of what they use. */
function sources() {
  const found = readdirSync(join(here, "src"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && /\.(ts|tsx|css)$/.test(entry.name))
    .map((entry) => relative(here, join(entry.parentPath, entry.name)).replaceAll("\\", "/"));
  return [...found, "build.mjs", "package-lock.json", "tsconfig.json"].sort();
}

function digest() {
  const hash = createHash("sha256");
  for (const name of sources()) hash.update(`${name}\0${readFileSync(join(here, name))}\0`);
  return hash.digest("hex");
}

const result = await build({
  absWorkingDir: here,
  entryPoints: { page: "src/index.tsx" },
  outdir: assets,
  bundle: true,
  write: false,
  minify: true,
  format: "esm",
  target: ["es2022", "chrome111", "firefox113", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "utf8",
  legalComments: "none",
  logLevel: "warning",
});

const note = `/* clearhead: built from frontend/ by "make page". sources sha256 ${digest()}
   With preact and @preact/signals, MIT licence, copyright Jason Miller and the Preact contributors. */\n`;
let stale = 0;
for (const { path, text } of result.outputFiles) {
  // Deflated, 2 kB less than by esbuild alone.
  const small = path.endsWith(".js")
    ? (await minify(text, { module: true, ecma: 2020 })).code
    : text;
  const content = `${note + small.trimEnd()}\n`;
  if (!process.argv.includes("--check")) writeFileSync(path, content);
  else if (readFileSync(path, "utf8") !== content) {
    console.error(`${relative(here, path)} is not what its sources make; run "make page".`);
    stale = 1;
  }
}
process.exitCode = stale;
