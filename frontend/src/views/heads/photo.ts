// A picture whose patches are tokens: which patch is which, and what a head gives to each.
import { css } from "../../shared/colour";
import type { Theme } from "../../shared/look";
import { placeOf } from "../../shared/scale";
import type { Source } from "../../source";
import type { HeadMap, HeadsData, LayerData } from "./data";

/** Where the patches of a picture are among the tokens (drawing/page/media.py). */
export interface PhotoData {
  kind: string;
  grid: [number, number];
  skip: number;
}

/** The picture of a layer: its keys are the patches; null for a layer of other tokens. */
export function photoOf(data: HeadsData, layer: LayerData): PhotoData | null {
  const { photo } = data;
  if (!photo || !layer.weights) return null;
  return layer.keys === photo.skip + photo.grid[0] * photo.grid[1] ? photo : null;
}

/** Whether the queries are the patches as well. */
export function looksAtItself(layer: LayerData): boolean {
  return layer.queries === layer.keys && layer.query.text === layer.key.text;
}

/** What each patch gets from a query; of none, what it receives from all on average. */
export function lightOf(
  map: HeadMap,
  { skip }: Pick<PhotoData, "skip">,
  query: number | null,
): Float32Array {
  const { queries, keys } = map.layer;
  const found = new Float32Array(keys - skip);
  const [from, to] = query === null ? [0, queries] : [query, query + 1];
  for (let row = from; row < to; row++) {
    for (let key = skip; key < keys; key++) {
      const here = map.at!(row * keys + key);
      if (here > 0) found[key - skip]! += here / (to - from);
    }
  }
  return found;
}

const pictures = new WeakMap<Source, Promise<HTMLImageElement>>();

/** The picture, read once. */
export function picture(source: Source, { kind }: PhotoData): Promise<HTMLImageElement> {
  let known = pictures.get(source);
  if (!known) {
    known = source.array("photo").then(async (bytes) => {
      const image = new Image();
      const content = bytes as Uint8Array<ArrayBuffer>;
      image.src = URL.createObjectURL(new Blob([content], { type: kind }));
      await image.decode();
      return image;
    });
    pictures.set(source, known);
  }
  return known;
}

/** How much of a picture its ground covers, and how much of a patch the colour of its weight does at most. */
const [PALE, COLOURED] = [0.5, 0.8];

/** The picture, paler, and over it the weight of each patch in the colours of the maps. */
export function paintPhoto(
  canvas: HTMLCanvasElement,
  image: HTMLImageElement,
  light: Float32Array,
  [rows, columns]: [number, number],
  theme: Theme,
) {
  const context = canvas.getContext("2d")!;
  const most = light.reduce((a, b) => Math.max(a, b), 0);
  const [wide, tall] = [canvas.width / columns, canvas.height / rows];
  const cover = (share: number, alpha: number, x: number, y: number, w: number, h: number) => {
    context.globalAlpha = alpha;
    context.fillStyle = css(share, theme);
    context.fillRect(x, y, w, h);
  };
  context.globalAlpha = 1;
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  cover(0, PALE, 0, 0, canvas.width, canvas.height);
  for (const [at, weight] of light.entries()) {
    const share = placeOf(weight, most, "root");
    const [x, y] = [(at % columns) * wide, Math.floor(at / columns) * tall];
    const [left, top] = [Math.round(x), Math.round(y)];
    const size = [Math.round(x + wide) - left, Math.round(y + tall) - top] as const;
    cover(share, COLOURED * share, left, top, ...size);
  }
  context.globalAlpha = 1;
}
