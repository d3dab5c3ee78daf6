// Pictures whose patches are tokens: which patch is which, and what a head gives to each.
import { css } from "../../shared/colour";
import type { Theme } from "../../shared/look";
import { placeOf } from "../../shared/scale";
import type { Source } from "../../source";
import type { HeadMap, HeadsData, LayerData } from "./data";

/** Where the patches of a picture are among the tokens of a text (drawing/page/photo.py). */
export interface PhotoData {
  kind: string;
  grid: [number, number];
  text: number;
  places: number[];
}

/** The pictures among the keys of a layer. */
export function photosOf(data: HeadsData, layer: LayerData): PhotoData[] {
  return (data.photos ?? []).filter(({ text }) => text === layer.key.text);
}

/** What each key gets from a query; of none, what it receives from all on average. */
export function lightOf(map: HeadMap, query: number | null): Float32Array {
  const { queries, keys } = map.layer;
  const found = new Float32Array(keys);
  const [from, to] = query === null ? [0, queries] : [query, query + 1];
  for (let row = from; row < to; row++) {
    const given = map.row(row);
    for (let key = 0; key < keys; key++) {
      if (given[key]! > 0) found[key]! += given[key]! / (to - from);
    }
  }
  return found;
}

/** The share of a picture, and the largest of a patch of any of several. */
export function shareOf(light: Float32Array, { places }: PhotoData): number {
  return places.reduce((sum, at) => sum + (light[at] ?? 0), 0);
}

export function mostOf(light: Float32Array, photos: readonly PhotoData[]): number {
  return Math.max(...photos.flatMap(({ places }) => places.map((at) => light[at] ?? 0)));
}

const pictures = new WeakMap<PhotoData, Promise<HTMLImageElement>>();

/** A picture, read once. */
export function picture(data: HeadsData, source: Source, photo: PhotoData) {
  let known = pictures.get(photo);
  if (!known) {
    known = source.array(`photo${data.photos!.indexOf(photo)}`).then(async (bytes) => {
      const image = new Image();
      const content = bytes as Uint8Array<ArrayBuffer>;
      image.src = URL.createObjectURL(new Blob([content], { type: photo.kind }));
      await image.decode();
      return image;
    });
    pictures.set(photo, known);
  }
  return known;
}

/** How much of a picture its ground covers, and how much of a patch the colour of its weight does at most. */
const [PALE, COLOURED] = [0.5, 0.8];

/** The sides of a picture of which the longer one is `most`. */
export function sizeOf({ naturalWidth, naturalHeight }: HTMLImageElement, most: number) {
  const scale = most / Math.max(naturalWidth, naturalHeight);
  return [Math.round(scale * naturalWidth), Math.round(scale * naturalHeight)] as const;
}

/** The picture, paler, and over it the weight of each patch in the colours of the maps; from `start` on. */
export function paintPhoto(
  context: CanvasRenderingContext2D,
  image: HTMLImageElement,
  { grid: [rows, columns], places }: PhotoData,
  light: Float32Array,
  most: number,
  theme: Theme,
  [width, height]: readonly [number, number],
  start = 0,
) {
  const [wide, tall] = [width / columns, height / rows];
  const cover = (share: number, alpha: number, x: number, y: number, w: number, h: number) => {
    context.globalAlpha = alpha;
    context.fillStyle = css(share, theme);
    context.fillRect(start + x, y, w, h);
  };
  context.globalAlpha = 1;
  context.drawImage(image, start, 0, width, height);
  cover(0, PALE, 0, 0, width, height);
  for (const [at, place] of places.entries()) {
    const share = placeOf(light[place] ?? 0, most, "root");
    const [x, y] = [(at % columns) * wide, Math.floor(at / columns) * tall];
    const [left, top] = [Math.round(x), Math.round(y)];
    const size = [Math.round(x + wide) - left, Math.round(y + tall) - top] as const;
    cover(share, COLOURED * share, left, top, ...size);
  }
  context.globalAlpha = 1;
}
