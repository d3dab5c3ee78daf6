// The heads as Python writes them (drawing/page/head_page.py), and one head ready to be read.
import type { Source } from "../../source";
import type { PhotoData } from "./photo";

/** Numbers in codes (drawing/page/payload.py): 0 is hidden, levels + 2 is no number. */
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

/** Weights as they are, float32; -1 is hidden. */
export interface ExactMap {
  exact: true;
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
  /** Its place in the model, which a page of some layers only does not tell. */
  number: number;
  /** Which of several calls of the layer. */
  call?: number | null;
  run: number;
  /** Queries and keys are of two texts, so that there is no distance between them. */
  cross: boolean;
  heads: number;
  /** Where it is some heads of a layer only. */
  head_numbers?: number[] | null;
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
  weights?: RoundedMap | ExactMap;
  /** Query and key are in the page, and this is how weights follow from them. */
  why?: {
    dim: number;
    scale: number;
    softcap: number | null;
    bias: boolean;
    sinks: number[] | null;
  } | null;
  /** Its heads write something that is in the page. */
  writes?: object | null;
  /** Runs of keys that a query of a long text may see; null where they are not known. */
  spans?: { pieces: number } | null;
  small?: RoundedMap | null;
  pooled?: RoundedMap;
  links?: (Steps & { top: number[][]; count: number; planes: number }) | null;
}

/** Whether queries and keys are of one text. */
export function looksAtItself({ query, key }: LayerData): boolean {
  return query.text !== null && query.text === key.text;
}

/** A text of so few tokens stands above the map, with arcs between them; patches of pictures do not count. */
export function isFew({ queries, keys }: LayerData, patches = 0): boolean {
  return Math.max(queries, keys) - patches <= 80;
}

export interface HeadsData {
  note: string;
  /** The names of the roles, and of those that find an earlier token. */
  roles: { all: string[]; matching: string[] };
  runs: string[];
  texts: string[][];
  /** So many tokens of either kind that heads raise and lower are in the page, with these words; or they are asked
   * for. */
  writes?: { top: number; words: string[] } | null;
  /** Pictures whose patches are tokens. */
  photos?: PhotoData[];
  /** Where the page opens; `state` is what stands in an address. */
  start?: {
    layer?: number;
    head?: number;
    query?: number | null;
    key?: number | null;
    state?: string;
  } | null;
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

/** What a code stands for: of few steps from a table, of 16 bits by its formula, so that no head has a table. */
function decoder(about: Steps, top: number): (code: number) => number {
  const { levels, power } = about;
  if (levels < 256) {
    const values = table(about, top);
    return (code) => values[code]!;
  }
  return (code) => {
    if (code === 0) return -1;
    return code === levels + 2 ? NaN : top * ((code - 1) / levels) ** power;
  };
}

/** How far a restored number may be from the true one: half a step of the root. */
export function halfStep(value: number, about: Steps, top: number): number {
  const { levels, power } = about;
  if (!(top > 0)) return 0;
  const root = Math.min(1, (Math.max(0, value) / top) ** (1 / power));
  const [less, more] = [Math.max(0, root - 0.5 / levels), Math.min(1, root + 0.5 / levels)];
  return top * Math.max(root ** power - less ** power, more ** power - root ** power);
}

/** Where colours end: what the largest weights of nearly all rows are below. The first query, which
 * has often nobody else to look at, would make everything else pale. */
export function endOf(rows: number, largestOf: (row: number) => number): number {
  const largest: number[] = [];
  for (let row = rows > 1 ? 1 : 0; row < rows; row++) {
    const most = largestOf(row);
    if (most > 0) largest.push(most);
  }
  largest.sort((a, b) => a - b);
  return largest[Math.ceil(BELOW_END * largest.length) - 1] ?? Math.max(0, largestOf(0) || 0);
}

const BELOW_END = 0.995;

/** The largest of some values in a row; 0 where there is none. */
function largestOf(value: (at: number) => number, from: number, to: number): number {
  let most = 0;
  for (let at = from; at < to; at++) {
    const here = value(at);
    if (here > most) most = here;
  }
  return most;
}

/** The same of a grid of values, row by row. */
export function endOfGrid(
  value: (at: number) => number,
  [rows, columns]: readonly [number, number],
): number {
  return endOf(rows, (row) => largestOf(value, row * columns, (row + 1) * columns));
}

/** Runs of keys, by query: of each piece where it begins, and where it ends. */
export type Spans = Int32Array[];

/** One head: what is known of its weights. Queries and keys count from 0. */
export class HeadMap {
  /** The map of which this one shows a part. */
  origin: HeadMap | null = null;
  private known: number | null = null;
  private received: Float32Array | null = null;

  constructor(
    readonly layer: LayerData,
    readonly head: number,
    /** Every weight, row by row, -1 where it is hidden; null in a long text. */
    readonly at: ((place: number) => number) | null,
    /** The map of a long text: shares as a tile has them. */
    readonly pooled: Float32Array | null = null,
    /** By rank: the key of each query, or -1, and its weight. */
    readonly linkKeys: Int32Array[] = [],
    readonly linkWeights: Float32Array[] = [],
    readonly spans: Spans | null = null,
  ) {}

  /** The weight at which the colours end. */
  get end(): number {
    const { queries, keys } = this.layer;
    const [first, at] = [this.linkWeights[0], this.at];
    return (this.known ??= at
      ? endOfGrid(at, [queries, keys])
      : endOf(queries, (query) => first?.[query] ?? 0));
  }

  static async read(source: Source, place: number, layer: LayerData, head: number) {
    const at = `${place}/${head}`;
    if (layer.weights) {
      const held = await source.array(`${at}/weights`);
      if ("exact" in layer.weights) return new HeadMap(layer, head, (place) => held[place]!);
      const value = decoder(layer.weights, layer.weights.top[head]!);
      return new HeadMap(layer, head, (place) => value(held[place]!));
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
        // Ranks are rounded each by itself; a later one is never the larger.
        const most = weights[rank - 1]?.[query] ?? Infinity;
        weight[query] = Math.min(values[codes[query]!]!, most);
        key[query] = weight[query]! > 0 ? query + offset - distance : -1;
      }
      keys.push(key);
      weights.push(weight);
    }
    const spans = layer.spans ? await spansOf(source, place, layer) : null;
    return new HeadMap(layer, head, null, pooled, keys, weights, spans);
  }

  /** The weight of a pair; -1 if the mask hides it, null if it is not known to the single token. */
  weight(query: number, key: number): number | null {
    if (this.at) return this.at(query * this.layer.keys + key);
    if (this.spans && overlap(this.spans, query, key, key + 1) === 0) return -1;
    for (const [rank, keys] of this.linkKeys.entries()) {
      if (keys[query] === key) return this.linkWeights[rank]![query]!;
    }
    return null;
  }

  /** How far a weight may be from the true one. */
  error(weight: number): number {
    if (this.origin) return this.origin.error(weight);
    const about = this.layer.weights;
    if (about && "exact" in about) return 0;
    if (about) return halfStep(weight, about, about.top[this.head]!);
    const links = this.layer.links;
    return links ? halfStep(weight, links, links.top[0]![this.head]!) : 0;
  }

  /** Where a query looks: its strongest links, the strongest first. */
  looksAt(query: number, count: number): Link[] {
    const { at } = this;
    if (!at) {
      return this.linkKeys
        .flatMap((keys, rank) =>
          keys[query]! >= 0
            ? [{ query, key: keys[query]!, weight: this.linkWeights[rank]![query]! }]
            : [],
        )
        .slice(0, count);
    }
    const { keys } = this.layer;
    const from = query * keys;
    return strongest(count, keys, (key) => at(from + key)).map(([key, weight]) => ({
      query,
      key,
      weight,
    }));
  }

  /** Who looks at a key: of a long text, of the links that are known. */
  seenBy(key: number, count: number): Link[] {
    const { keys, queries } = this.layer;
    const { at } = this;
    if (at) {
      return strongest(count, queries, (query) => at(query * keys + key)).map(
        ([query, weight]) => ({ query, key, weight }),
      );
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
    if (this.at) {
      return strongest(count, queries * keys, this.at).map(([at, weight]) => ({
        query: Math.floor(at / keys),
        key: at % keys,
        weight,
      }));
    }
    const first = Array.from({ length: queries }, (_, query) => this.looksAt(query, 1)[0]);
    return strongest(count, queries, (query) => first[query]?.weight ?? 0).map(
      ([query]) => first[query]!,
    );
  }

  /** What a query gives to every key; of a long text, what is known of it. */
  row(query: number): Float32Array {
    const { keys } = this.layer;
    const found = new Float32Array(keys);
    if (this.at) {
      for (let key = 0; key < keys; key++) found[key] = this.at(query * keys + key);
    } else {
      for (const link of this.looksAt(query, this.linkKeys.length)) found[link.key] = link.weight;
    }
    return found;
  }

  /** What each key gets from all queries, as far as the arrays of the layer tell. */
  async receivedBy(source: Source, place: number): Promise<Float32Array> {
    if (this.origin) return this.origin.receivedBy(source, place);
    return (this.received ??= await ofHead(
      source,
      `${place}/received`,
      this.layer.received,
      Math.floor((this.head * this.layer.kv_heads) / this.layer.heads),
      this.layer.keys,
    ));
  }
}

/** The runs of keys of a layer: each kept as what it differs by from that of the query before. */
async function spansOf(source: Source, place: number, layer: LayerData): Promise<Spans> {
  const steps = (await source.array(`${place}/spans`)) as Int32Array;
  const { queries } = layer;
  return Array.from({ length: 2 * layer.spans!.pieces }, (_, edge) => {
    let now = 0;
    return Int32Array.from(
      { length: queries },
      (_, query) => (now += steps[edge * queries + query]!),
    );
  });
}

/** How many of the keys from one up to another a query may see. */
export function overlap(spans: Spans, query: number, from: number, to: number): number {
  let seen = 0;
  for (let piece = 0; piece < spans.length; piece += 2) {
    const first = Math.max(from, spans[piece]![query]!);
    const last = Math.min(to, spans[piece + 1]![query]!);
    if (last > first) seen += last - first;
  }
  return seen;
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
