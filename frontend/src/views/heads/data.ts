// The heads as Python writes them (drawing/page/head_page.py), and one head ready to be read.
import type { Source } from "../../source";

/** Numbers in codes (drawing/page/rounding.py): 0 is hidden, levels + 2 is no number. */
export interface Steps {
  levels: number;
  power: number;
}

export interface Rounded extends Steps {
  top: number[];
}

export interface RoundedMap extends Rounded {
  shape: [number, number];
}

export interface Row {
  entropy: number | null;
  distance: number | null;
  /** The leading role, "" for none. */
  role: string;
  scores: Record<string, number | null>;
}

export interface LayerData {
  name: string;
  run: number;
  heads: number;
  kv_heads: number;
  queries: number;
  keys: number;
  query: { text: number | null; first: number };
  key: { text: number | null; first: number };
  rows: Row[];
  entropy: Rounded;
  distance: Rounded;
  max: Rounded;
  received: Rounded;
  weights?: RoundedMap;
  small?: RoundedMap | null;
  pooled?: RoundedMap;
  links?: (Steps & { top: number[][]; count: number; planes: number }) | null;
}

/** A text of so few tokens stands above the map, with arcs between them. */
export function isFew(layer: LayerData): boolean {
  return layer.queries <= 80 && layer.keys <= 80;
}

export interface HeadsData {
  note: string;
  /** The names of the roles, and of those that find an earlier token. */
  roles: { all: string[]; matching: string[] };
  runs: string[];
  texts: string[][];
  layers: LayerData[];
}

export interface Link {
  query: number;
  key: number;
  weight: number;
}

/** What each code stands for. */
export function table(about: Steps, top: number): Float32Array {
  const { levels, power } = about;
  const values = new Float32Array(levels + 3);
  for (let step = 0; step <= levels; step++) values[step + 1] = top * (step / levels) ** power;
  values[0] = -1;
  values[levels + 2] = NaN;
  return values;
}

/** How far a restored number may be from the true one: half a step of the root. */
export function halfStep(value: number, about: Steps, top: number): number {
  const { levels, power } = about;
  if (!(top > 0)) return 0;
  const root = Math.min(1, (Math.max(0, value) / top) ** (1 / power));
  const [less, more] = [Math.max(0, root - 0.5 / levels), Math.min(1, root + 0.5 / levels)];
  return top * Math.max(root ** power - less ** power, more ** power - root ** power);
}

/** One head: what is known of its weights. Queries and keys count from 0. */
export class HeadMap {
  readonly layer: LayerData;
  readonly head: number;
  /** Of every weight, row by row, and what a code stands for; null in a long text. */
  readonly codes: Uint8Array | null;
  readonly values: Float32Array;
  /** The map of a long text: shares as a tile has them. */
  readonly pooled: Float32Array | null;
  /** By rank: the key of each query, or -1, and its weight. */
  readonly linkKeys: Int32Array[];
  readonly linkWeights: Float32Array[];
  private received: Float32Array | null = null;

  constructor(
    layer: LayerData,
    head: number,
    codes: Uint8Array | null,
    pooled: Float32Array | null,
    linkKeys: Int32Array[],
    linkWeights: Float32Array[],
  ) {
    this.layer = layer;
    this.head = head;
    this.codes = codes;
    this.values = layer.weights
      ? table(layer.weights, layer.weights.top[head]!)
      : new Float32Array();
    this.pooled = pooled;
    this.linkKeys = linkKeys;
    this.linkWeights = linkWeights;
  }

  static async read(source: Source, place: number, layer: LayerData, head: number) {
    const at = `${place}/${head}`;
    if (layer.weights) {
      const codes = (await source.array(`${at}/weights`)) as Uint8Array;
      return new HeadMap(layer, head, codes, null, [], []);
    }
    let pooled: Float32Array | null = null;
    if (layer.pooled) {
      const values = table(layer.pooled, layer.pooled.top[head]!);
      pooled = Float32Array.from(await source.array(`${at}/pooled`), (code) => values[code]!);
    }
    const ranks = Array.from({ length: layer.links?.count ?? 0 }, (_, rank) => rank);
    const links = layer.links;
    const parts = await Promise.all(
      ranks.map((rank) =>
        Promise.all([source.array(`${at}/back${rank}`), source.array(`${at}/link${rank}`)]),
      ),
    );
    const offset = layer.keys - layer.queries;
    const keys: Int32Array[] = [];
    const weights: Float32Array[] = [];
    for (const [rank, [back, codes]] of parts.entries()) {
      const values = table(links!, links!.top[rank]![head]!);
      const key = new Int32Array(layer.queries);
      const weight = new Float32Array(layer.queries);
      for (let query = 0; query < layer.queries; query++) {
        let zigzag = 0;
        for (let plane = links!.planes - 1; plane >= 0; plane--) {
          zigzag = zigzag * 256 + back[plane * layer.queries + query]!;
        }
        const distance = zigzag & 1 ? -(zigzag + 1) / 2 : zigzag / 2;
        weight[query] = values[codes[query]!]!;
        key[query] = weight[query]! > 0 ? query + offset - distance : -1;
      }
      keys.push(key);
      weights.push(weight);
    }
    return new HeadMap(layer, head, null, pooled, keys, weights);
  }

  /** The weight of a pair; -1 if the mask hides it, null if it is not known to the single token. */
  weight(query: number, key: number): number | null {
    if (this.codes) return this.values[this.codes[query * this.layer.keys + key]!]!;
    for (const [rank, keys] of this.linkKeys.entries()) {
      if (keys[query] === key) return this.linkWeights[rank]![query]!;
    }
    return null;
  }

  /** How far a weight may be from the true one. */
  error(weight: number): number {
    const about = this.layer.weights;
    if (about) return halfStep(weight, about, about.top[this.head]!);
    const links = this.layer.links;
    return links ? halfStep(weight, links, links.top[0]![this.head]!) : 0;
  }

  /** Where a query looks: its strongest links, the strongest first. */
  looksAt(query: number, count: number): Link[] {
    if (!this.codes) {
      return this.linkKeys.flatMap((keys, rank) =>
        keys[query]! >= 0 && rank < count
          ? [{ query, key: keys[query]!, weight: this.linkWeights[rank]![query]! }]
          : [],
      );
    }
    const { keys } = this.layer;
    const from = query * keys;
    return strongest(count, keys, (key) => this.values[this.codes![from + key]!]!).map(
      ([key, weight]) => ({ query, key, weight }),
    );
  }

  /** Who looks at a key: of a long text, of the links that are known. */
  seenBy(key: number, count: number): Link[] {
    const { keys, queries } = this.layer;
    if (this.codes) {
      return strongest(
        count,
        queries,
        (query) => this.values[this.codes![query * keys + key]!]!,
      ).map(([query, weight]) => ({ query, key, weight }));
    }
    const found: Link[] = [];
    for (const [rank, each] of this.linkKeys.entries()) {
      for (let query = 0; query < queries; query++) {
        if (each[query] === key)
          found.push({ query, key, weight: this.linkWeights[rank]![query]! });
      }
    }
    return found.sort((a, b) => b.weight - a.weight).slice(0, count);
  }

  /** The strongest links of the whole head. */
  strongest(count: number): Link[] {
    const { keys, queries } = this.layer;
    if (this.codes) {
      return strongest(count, queries * keys, (at) => this.values[this.codes![at]!]!).map(
        ([at, weight]) => ({ query: Math.floor(at / keys), key: at % keys, weight }),
      );
    }
    const first = this.linkWeights[0];
    if (!first) return [];
    return strongest(count, queries, (query) => first[query]!).map(([query, weight]) => ({
      query,
      key: this.linkKeys[0]![query]!,
      weight,
    }));
  }

  /** What a query gives to every key; of a long text, what is known of it. */
  row(query: number): Float32Array {
    const { keys } = this.layer;
    const found = new Float32Array(keys);
    if (this.codes) {
      for (let key = 0; key < keys; key++)
        found[key] = this.values[this.codes[query * keys + key]!]!;
    } else {
      for (const link of this.looksAt(query, this.linkKeys.length)) found[link.key] = link.weight;
    }
    return found;
  }

  /** What each key gets from all queries, as far as the arrays of the layer tell. */
  async receivedBy(source: Source, place: number): Promise<Float32Array> {
    return (this.received ??= await ofHead(
      source,
      `${place}/received`,
      this.layer.received,
      Math.floor((this.head * this.layer.kv_heads) / this.layer.heads),
      this.layer.keys,
    ));
  }
}

/** One head's row of an array that a layer has for all heads. */
export async function ofHead(
  source: Source,
  name: string,
  about: Rounded,
  head: number,
  length: number,
): Promise<Float32Array> {
  const values = table(about, about.top[head]!);
  const codes = (await source.array(name)).subarray(head * length, (head + 1) * length);
  return Float32Array.from(codes as Uint8Array, (code) => values[code]!);
}

/** The places of the largest values above 0, the largest first. */
export function strongest(
  count: number,
  length: number,
  value: (at: number) => number,
): [number, number][] {
  const found: [number, number][] = [];
  let least = 0;
  for (let at = 0; at < length; at++) {
    const here = value(at);
    if (!(here > least)) continue;
    let place = found.length;
    while (place > 0 && found[place - 1]![1] < here) place--;
    found.splice(place, 0, [at, here]);
    if (found.length > count) found.pop();
    if (found.length === count) least = found[count - 1]![1];
  }
  return found;
}
