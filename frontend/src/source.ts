// Where a view gets its data from. A view never knows whether that is the page itself or a notebook's kernel.

import { type Head, type Numbers, type Reader, readArray, readHead } from "./payload";
import type { ReadonlySignal } from "./shared/signals";

/** A part of a head's map that a view wants to draw. */
export interface TileRequest {
  layer: number;
  head: number;
  /** From this query up to that, the second not included; and keys likewise. */
  rows: [number, number];
  columns: [number, number];
  /** Into how many cells: rows, columns. */
  cells: [number, number];
  /** Tells that nobody waits for it any more. */
  abort?: AbortSignal;
}

/** The answer. Its bounds may go beyond those that were asked for, to where cells begin and end, and
 * be fractions where those are; its cells may be fewer, where no more is known. */
export interface Tile {
  rows: [number, number];
  columns: [number, number];
  cells: [number, number];
  /** Row by row: which share of its attention a query of the row gives to the keys of the column,
   * on average. In a cell of one query and one key that is the weight itself. -1 is hidden by the
   * mask, NaN is no number. */
  values: Float32Array;
  /** The largest value that cells of this size have anywhere in the head, where the colours end. */
  top: number;
  /** Queries and keys of the finest rectangles whose sums are known: 1 and 1 is every weight. */
  grain: [number, number];
  /** So many of the strongest links of each query are drawn where they are, and nothing else; 0 is all that there is. */
  links: number;
  /** Whether the values were worked out from query and key, and not read from a page. */
  exact?: boolean;
  /** Values are differences, of either sign; minus infinity is hidden. */
  signed?: boolean;
  /** The kernel was asked for a finer map, and did not answer. */
  silent?: boolean;
}

/** How many queries and keys a cell has. */
export function sizeOfCell({ rows, columns, cells }: Tile): [tall: number, wide: number] {
  return [(rows[1] - rows[0]) / cells[0], (columns[1] - columns[0]) / cells[1]];
}

/** What a token looks at, or is looked at by: places and weights, the largest first. */
export interface TokenNumbers {
  links: [number, number | null][];
}

/** How the weight of a pair comes about (matrix/map_tiles.py). */
export interface PairStages {
  query: (number | null)[];
  key: (number | null)[];
  score: number | null;
  scale: number | null;
  scaled: number | null;
  /** Left out without a softcap. */
  capped?: number | null;
  /** Left out without a bias. */
  bias?: number | null;
  /** null where the mask hides the key, and where it is no number. */
  masked: number | null;
  logsumexp: number | null;
  weight: number | null;
}

/** The tokens that a head raises and lowers at a query, and by how much, the most first. */
export interface Written {
  raised: [string, number | null][];
  lowered: [string, number | null][];
}

export interface Source {
  head(): Promise<Head>;
  array(name: string): Promise<Numbers>;
  /** null where the source has nothing of this head. */
  tile(request: TileRequest): Promise<Tile | null>;
  /** Goes up when tiles are finer than they were. */
  readonly changed?: ReadonlySignal<number>;
  /** Exact numbers of a token in a head; null where there is no query and key. */
  token?(
    layer: number,
    head: number,
    place: number,
    side: "query" | "key",
    abort: AbortSignal,
  ): Promise<TokenNumbers | null>;
  /** The stages of a pair; null where there is no query and key. */
  pair?(
    layer: number,
    head: number,
    query: number,
    key: number,
    abort: AbortSignal,
  ): Promise<PairStages | null>;
}

/** What every view is drawn from. */
export interface ViewProps {
  head: Head;
  source: Source;
}

/** Makes tiles from a payload's own arrays; each kind of payload that has maps brings one. */
export type Tiler = (source: Source, request: TileRequest) => Promise<Tile | null>;

/** A source whose arrays are read once, when they are first asked for. */
export class BytesSource implements Source {
  private known: Promise<Head> | null = null;
  private arrays = new Map<string, Promise<Numbers>>();

  constructor(
    private readonly read: Reader,
    private readonly tiler: Tiler = async () => null,
  ) {}

  head(): Promise<Head> {
    return (this.known ??= readHead(this.read));
  }

  async array(name: string): Promise<Numbers> {
    const head = await this.head();
    let found = this.arrays.get(name);
    if (found === undefined) {
      found = readArray(this.read, head, name);
      this.arrays.set(name, found);
    }
    return found;
  }

  tile(request: TileRequest): Promise<Tile | null> {
    return this.tiler(this, request);
  }
}

/** Bytes of a base64 text; `start` is a multiple of three. */
export function fromBase64(text: string, start: number, bytes: number): Uint8Array {
  const from = (start / 3) * 4;
  const binary = atob(text.slice(from, from + Math.ceil(bytes / 3) * 4));
  const found = new Uint8Array(bytes);
  for (let at = 0; at < bytes; at++) found[at] = binary.charCodeAt(at);
  return found;
}
