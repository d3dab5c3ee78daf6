// Several heads as one: the mean of their weights.
import { HeadMap, type HeadsData, type LayerData } from "./data";
import { type Chosen, layerName, same, shortName } from "./names";

/** So many heads have a colour of their own. */
export const HUES = 8;

/** The colour of a head by its place among them; half of these are dashed. */
export const hueOf = (at: number) => ({ "--hue": `var(--hue${at % 4})` });

/** Whether weights of two layers are between the same tokens, and all there. */
export function sameTexts(a: LayerData, b: LayerData): boolean {
  return (
    a.queries === b.queries &&
    a.keys === b.keys &&
    (["query", "key"] as const).every(
      (side) => a[side].text === b[side].text && a[side].first === b[side].first,
    )
  );
}

/** The weights of several heads as those of one. */
class MixedMap extends HeadMap {
  constructor(
    private readonly parts: readonly HeadMap[],
    values: Float32Array,
  ) {
    super(parts[0]!.layer, parts[0]!.head, (place) => values[place]!);
  }

  override error(weight: number): number {
    return Math.max(...this.parts.map((each) => each.error(weight)));
  }

  override async receivedBy(): Promise<Float32Array> {
    return sumOfColumns(this);
  }
}

function sumOfColumns({ at, layer: { queries, keys } }: HeadMap): Float32Array {
  const sums = new Float32Array(keys);
  for (let place = 0; place < queries * keys; place++) {
    const here = at!(place);
    if (!(here < 0)) sums[place % keys]! += here;
  }
  return sums;
}

/** The mean of several maps; what a pair has in one head, and hidden in another, counts as 0 there. */
export function mixed(maps: readonly HeadMap[]): HeadMap {
  if (maps.length === 1) return maps[0]!;
  const { queries, keys } = maps[0]!.layer;
  const values = new Float32Array(queries * keys).fill(-1);
  for (const { at } of maps) {
    for (let place = 0; place < values.length; place++) {
      const here = at!(place);
      if (here < 0) continue;
      values[place] = Math.max(0, values[place]!) + here / maps.length;
    }
  }
  return new MixedMap(maps, values);
}

/** Whether these are all heads of one layer, and no other. */
export function isLayer(data: HeadsData, heads: readonly Chosen[]): boolean {
  const [first] = heads;
  return (
    first !== undefined &&
    heads.length === data.layers[first.layer]!.rows.length &&
    heads.every(({ layer }) => layer === first.layer)
  );
}

/** "Layer 5: mean of 12 heads", "Mean of 5.11 and 3.1". */
export function titleOfSeveral(data: HeadsData, heads: readonly Chosen[]): string {
  if (isLayer(data, heads)) {
    return `Layer ${layerName(data, heads[0]!.layer)}, mean of ${heads.length} heads`;
  }
  const names = heads.map((each) => shortName(data, each));
  const listed =
    names.length > 4 ? `${names.length} heads` : names.join(", ").replace(/, ([^,]*)$/, " and $1");
  return `Mean of ${listed}`;
}

/** One more head, or one less. */
export function toggled(
  data: HeadsData,
  heads: readonly Chosen[],
  current: Chosen,
  each: Chosen,
): Chosen[] {
  const now = heads.length ? heads : [current];
  const next = now.some((one) => same(one, each))
    ? now.filter((one) => !same(one, each))
    : [...now, each];
  const about = data.layers[current.layer]!;
  return next.filter((one) => sameTexts(data.layers[one.layer]!, about));
}
