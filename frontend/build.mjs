// Bundles src/ into one module and one style sheet for each kind of page and the script of a figure, beside the
// Python that puts them into pages; what they share stands in each.
// With --check nothing is written: the exit code tells whether what is there is what would be.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { build, transform } from "esbuild";

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
  return hash.digest("hex").slice(0, 24);
}

const options = {
  absWorkingDir: here,
  outdir: assets,
  bundle: true,
  write: false,
  minify: true,
  target: ["es2022", "chrome123", "firefox125", "safari17.5"],
  // Elements as calls of h, of which the children are arguments: that is shorter than as a property.
  tsconfigRaw: {
    compilerOptions: { jsx: "react", jsxFactory: "h", jsxFragmentFactory: "Fragment" },
  },
  inject: [join(here, "src/h.ts")],
  charset: "utf8",
  legalComments: "none",
  logLevel: "warning",
};

/** A style sheet as a text, for a script that takes it into a shadow. */
const styleText = {
  name: "style as text",
  setup(plugin) {
    plugin.onLoad({ filter: /(figure|touched)\.css$/ }, async ({ path }) => {
      const { target, minify } = options;
      const { code } = await transform(readFileSync(path, "utf8"), {
        loader: "css",
        target,
        minify,
      });
      return { contents: code, loader: "text" };
    });
  },
};

// The figure stands in pages of others, and in each notebook's cell: as a script of its own, without a name outside.
const results = await Promise.all([
  build({
    ...options,
    entryPoints: { heads: "src/heads.ts", trace: "src/trace.tsx", sentence: "src/sentence.tsx" },
    plugins: [styleText],
    format: "esm",
  }),
  build({
    ...options,
    entryPoints: { figure: "src/figure/index.tsx" },
    format: "iife",
    plugins: [styleText],
  }),
]);

const digests = digest();
let stale = 0;
for (const { path, text } of results.flatMap(({ outputFiles }) => outputFiles)) {
  const note = `/* clearhead: built from frontend/ by "make page". sources sha256 ${digests}
   With preact, MIT licence, copyright Jason Miller. */\n`;
  const content = `${note + text.trimEnd()}\n`;
  if (!process.argv.includes("--check")) writeFileSync(path, content);
  else if (readFileSync(path, "utf8") !== content) {
    console.error(`${relative(here, path)} is not what its sources make; run "make page".`);
    stale = 1;
  }
}
process.exitCode = stale;
