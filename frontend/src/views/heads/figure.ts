// A head's map as a picture of its own, in SVG.
import { css, cssOf, cssSigned } from "../../shared/colour";
import { short } from "../../shared/labels";
import type { Look } from "../../shared/look";
import { paintCells, paintTile, places, ROOM_FOR_TEXT, type Viewport } from "../../shared/map";
import { percent, signedPercent, ticks } from "../../shared/scale";
import type { Tile } from "../../source";
import type { HeadsData } from "./data";
import { headName, layerName, runName, titleOf } from "./names";
import { titleOfSeveral } from "./several";
import type { ViewState } from "./state";
import { nameOf } from "./words";

interface Figure {
  title: string;
  tile: Tile;
  /** The value at which the colours end. */
  end: number;
  view: Viewport;
  queries: number;
  keys: number;
  queryName: (at: number) => string;
  keyName: (at: number) => string;
}

const SIDE = 480;
/** What a side has at least, as on the screen, of a map that is far longer than broad. */
const LEAST_SIDE = 120;
const GUTTER = 90;
const BELOW = 64;
/** So many cells are drawn as vectors, which a program for drawings can change. */
const MOST_VECTORS = 4096;

/** What is shown, as a file that the browser keeps: the maps of one head, of two or of several as one. */
export async function exportPicture(
  data: HeadsData,
  { head, with: other, heads, mix, view }: ViewState,
  tiles: (Tile | null)[],
  end: number,
  look: Look,
) {
  const panels = [head, other ?? head].slice(0, tiles.length);
  const figures = panels.flatMap((each, place): Figure[] => {
    const tile = tiles[place];
    if (!tile?.values.length) return [];
    const layer = data.layers[each.layer]!;
    const run = runName(data, layer.run);
    const own = heads.length ? titleOfSeveral(data, heads, mix) : titleOf(data, each);
    const less = tile.signed && other ? ` − ${titleOf(data, other).replace("Layer", "layer")}` : "";
    const title = own + (less || (run && `, ${short(run, 24)}`));
    const [queryName, keyName] = [nameOf(data, layer, "query"), nameOf(data, layer, "key")];
    const { queries, keys } = layer;
    return [{ title, tile, end, view, queries, keys, queryName, keyName }];
  });
  if (!figures.length) return;
  const svg = toSvg(figures, look);
  const name = panels
    .map((each) => `layer-${layerName(data, each.layer)}-head-${headName(data, each)}`)
    .join("-");
  save(new Blob([svg], { type: "image/svg+xml" }), `${name}.svg`);
}

/** Figures side by side, as one SVG with everything in it. */
function toSvg(figures: Figure[], look: Look): string {
  const dark = look.theme.peek() === "dark";
  const [ground, text, quiet] = dark
    ? ["#121417", "#e8eaed", "#a2a9b3"]
    : ["#ffffff", "#17191c", "#5a6069"];
  const wide = SIDE + GUTTER + 16;
  const tall = SIDE + GUTTER + BELOW + 28;
  const parts = figures.map(
    (figure, at) =>
      `<g transform="translate(${at * wide} 0)">${one(figure, text, quiet, look)}</g>`,
  );
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${wide * figures.length}" height="${tall}" ` +
    `font-family="system-ui, sans-serif" font-size="11"><rect width="100%" height="100%" fill="${ground}"/>` +
    `${parts.join("")}</svg>`
  );
}

function one(
  { title, tile, end, view, queries, keys, queryName, keyName }: Figure,
  text: string,
  quiet: string,
  look: Look,
): string {
  const theme = look.theme.peek();
  const unit = SIDE / Math.max(view.rows, view.columns);
  const height = Math.max(LEAST_SIDE, view.rows * unit);
  const width = Math.max(LEAST_SIDE, view.columns * unit);
  const [down, right] = [height / view.rows, width / view.columns];
  const top = GUTTER + 28;
  const labels: string[] = [];
  for (const row of places(view.row, view.rows, queries, down)) {
    const words = down < ROOM_FOR_TEXT ? String(row) : short(queryName(row), 12);
    labels.push(
      `<text x="${GUTTER - 6}" y="${top + (row - view.row + 0.5) * down}" text-anchor="end" dominant-baseline="central">${escaped(words)}</text>`,
    );
  }
  for (const column of places(view.column, view.columns, keys, right)) {
    const words = right < ROOM_FOR_TEXT ? String(column) : short(keyName(column), 12);
    const x = GUTTER + (column - view.column + 0.5) * right;
    labels.push(
      `<text transform="translate(${x} ${top - 6}) rotate(-90)" dominant-baseline="central">${escaped(words)}</text>`,
    );
  }
  const legend = Array.from(
    { length: 60 },
    (_, at) =>
      `<rect x="${GUTTER + at * 4}" y="${top + height + 16}" width="4.5" height="8" fill="${tile.signed ? cssSigned((2 * at) / 59 - 1, theme) : css(at / 59, theme)}"/>`,
  );
  const marks = tile.signed
    ? [-1, 0, 1].map((at) => ({ value: at * end, at: (at + 1) / 2 }))
    : ticks(end, look.scale.peek()).filter((_, at) => at % 2 === 0);
  const numbers = marks.map(
    ({ value, at }) =>
      `<text x="${GUTTER + at * 240}" y="${top + height + 38}" text-anchor="middle" fill="${quiet}">${escaped((tile.signed ? signedPercent : percent)(value))}</text>`,
  );
  const clip = `clip${Math.round(Math.random() * 1e9)}`;
  return (
    `<text x="${GUTTER}" y="20" font-size="14" font-weight="600" fill="${text}">${escaped(title)}</text>` +
    `<clipPath id="${clip}"><rect x="${GUTTER}" y="${top}" width="${width}" height="${height}"/></clipPath>` +
    `<g clip-path="url(#${clip})">${cells(tile, end, look, {
      x: GUTTER + (tile.columns[0] - view.column) * right,
      y: top + (tile.rows[0] - view.row) * down,
      width: (tile.columns[1] - tile.columns[0]) * right,
      height: (tile.rows[1] - tile.rows[0]) * down,
    })}</g>` +
    `<g fill="${quiet}" text-anchor="end"><text x="${GUTTER - 6}" y="${top - 26}">key →</text>` +
    `<text x="${GUTTER - 6}" y="${top - 12}">query ↓</text></g>` +
    `<g fill="${text}">${labels.join("")}</g>${legend.join("")}${numbers.join("")}` +
    `<text x="${GUTTER + 262}" y="${top + height + 23}" fill="${quiet}">of a query’s attention</text>`
  );
}

/** The cells of a tile: few of them as vectors, many as an image. */
function cells(
  tile: Tile,
  end: number,
  look: Look,
  box: Record<"x" | "y" | "width" | "height", number>,
) {
  const [rows, columns] = tile.cells;
  const pixels = new Uint32Array(rows * columns);
  paintTile(pixels, tile, end, look);
  const { x, y, width, height } = box;
  if (pixels.length <= MOST_VECTORS) {
    const [wide, high] = [width / columns, height / rows];
    const one = (pixel: number, at: number) =>
      `<rect x="${round(x + (at % columns) * wide)}" y="${round(y + Math.floor(at / columns) * high)}" ` +
      `width="${round(wide)}" height="${round(high)}" fill="${cssOf(pixel)}"/>`;
    return `<g shape-rendering="crispEdges">${Array.from(pixels, one).join("")}</g>`;
  }
  const image = document.createElement("canvas");
  paintCells(image, tile.cells, (to) => to.set(pixels));
  return (
    `<image x="${x}" y="${y}" width="${width}" height="${height}" preserveAspectRatio="none" ` +
    `style="image-rendering:pixelated" href="${image.toDataURL()}"/>`
  );
}

function round(number: number): number {
  return Number(number.toFixed(2));
}

function escaped(text: string): string {
  return text.replace(/[&<>"]/g, (char) => `&#${char.charCodeAt(0)};`);
}

function save(blob: Blob, name: string) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
