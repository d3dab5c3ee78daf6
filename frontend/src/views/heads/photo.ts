// Pictures whose patches are tokens: which patch is which, and what a head gives to each.
import { css } from "../../shared/colour";
import type { Theme } from "../../shared/look";
import { placeOf } from "../../shared/scale";
import type { Source } from "../../source";
import type { HeadMap, HeadsData, LayerData } from "./data";

/** Where the patches of a picture are among the tokens of a text (drawing/page/photo.py). */
export interface PhotoData {
  content: number;
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
export function picture(source: Source, photo: PhotoData) {
  let known = pictures.get(photo);
  if (!known) {
    known = source.array(`photo${photo.content}`).then(async (bytes) => {
      const image = new Image();
      const content = bytes as Uint8Array<ArrayBuffer>;
      image.src = URL.createObjectURL(new Blob([content]));
      await image.decode();
      return image;
    });
    pictures.set(photo, known);
  }
  return known;
}

/** How much of a picture its ground covers, and how much of a patch the colour of its weight does at most. */
const [PALE, COLOURED] = [0.5, 0.8];

/** Pictures side by side, paler, and over each the weights of its patches in the colours of the maps, which end at
 * `most`. The longer side of each has so many pixels. */
export function paintPhotos(
  canvas: HTMLCanvasElement,
  images: readonly HTMLImageElement[],
  photos: readonly PhotoData[],
  light: Float32Array,
  most: number,
  theme: Theme,
  pixels: number,
) {
  const sizes = images.map(({ naturalWidth, naturalHeight }) => {
    const scale = pixels / Math.max(naturalWidth, naturalHeight);
    return [Math.round(scale * naturalWidth), Math.round(scale * naturalHeight)] as const;
  });
  canvas.width = sizes.reduce((sum, [width]) => sum + width, 0);
  canvas.height = Math.max(...sizes.map(([, height]) => height));
  const context = canvas.getContext("2d")!;
  const cover = (share: number, alpha: number, x: number, y: number, w: number, h: number) => {
    context.globalAlpha = alpha;
    context.fillStyle = css(share, theme);
    context.fillRect(x, y, w, h);
  };
  let start = 0;
  for (const [n, [width, height]] of sizes.entries()) {
    const [rows, columns] = photos[n]!.grid;
    context.globalAlpha = 1;
    context.drawImage(images[n]!, start, 0, width, height);
    cover(0, PALE, start, 0, width, height);
    for (const [at, place] of photos[n]!.places.entries()) {
      const share = placeOf(light[place] ?? 0, most, "root");
      const [row, column] = [Math.floor(at / columns), at % columns];
      const x = (edge: number) => Math.round(start + (edge * width) / columns);
      const y = (edge: number) => Math.round((edge * height) / rows);
      const size = [x(column + 1) - x(column), y(row + 1) - y(row)] as const;
      cover(share, COLOURED * share, x(column), y(row), ...size);
    }
    start += width;
  }
  context.globalAlpha = 1;
}
