// A page that its server hands out: what it draws is fetched once, and exact tiles as they come into
// view. While the server goes over a long head, and where it has no query and key, the tiles of the
// payload do.

import type { Reader } from "../payload";
import { signal } from "../shared/signals";
import {
  BytesSource,
  type PairStages,
  type Tile,
  type TileRequest,
  type TokenNumbers,
  type Written,
} from "../source";
import { endOf, type HeadsData, largestOf } from "../views/heads/data";
import { headsTile } from "../views/heads/tiles";

const AT_ONCE = 3;
const MOST_CELLS = 1024;
/** Milliseconds until a head that is being gone over is asked for again. */
const PATIENCE = 500;
const BEFORE_VALUES = 24;
/** Tiles of up to MOST_CELLS × MOST_CELLS × 4 bytes. */
const KEPT = 12;

/** Asks for a route, with its query; the answer is that of HTTP, whatever carries it. */
export type Get = (route: string, abort?: AbortSignal) => Promise<Response>;

export class ServerSource extends BytesSource {
  override readonly exact: boolean = true;
  /** Goes up when there is more to ask for than before. */
  readonly changed = signal(0);
  private readonly get: Get;
  private readonly who: "server" | "kernel";
  private running = 0;
  private readonly waiting: (() => void)[] = [];
  private readonly kept = new Map<string, Tile>();
  /** Layers whose query and key the server does not have. */
  private readonly lacking = new Set<number>();
  private readonly awaited = new Set<string>();
  private readonly tops = new Map<string, number>();

  constructor(who: "server" | "kernel", get: Get = overNetwork, read: Reader = fetchedOnce()) {
    super(read, headsTile);
    this.who = who;
    this.get = get;
  }

  override async tile(request: TileRequest): Promise<Tile | null> {
    const { layers } = (await this.head()).data as HeadsData;
    const layer = layers[request.layer];
    if (!layer) return null;
    const coarse = await super.tile(request);
    const rows = within(request.rows, layer.queries, request.cells[0]);
    const columns = within(request.columns, layer.keys, request.cells[1]);
    if (!rows || !columns || this.lacking.has(request.layer)) return coarse;
    const name = `${request.layer},${request.head}`;
    if (coarse && enough(coarse)) return coarse;
    const cells = request.cells.map((count) =>
      Math.max(1, Math.min(MOST_CELLS, Math.round(count))),
    );
    const query = `layer=${request.layer}&head=${request.head}&rows=${rows}&columns=${columns}&cells=${cells}`;
    const known = this.kept.get(query);
    if (known) return known;
    try {
      const answer = await this.ask(`tile?${query}`, request.abort);
      if (answer.status === 200) {
        const tile = this.decode(await answer.arrayBuffer(), name, coarse);
        if (this.kept.size >= KEPT) this.kept.delete(this.kept.keys().next().value!);
        this.kept.set(query, tile);
        return tile;
      }
      if (answer.status === 204) this.lacking.add(request.layer);
      if (answer.status === 202) {
        const { done } = (await answer.json()) as { done: number };
        this.await(name, query);
        return coarse && { ...coarse, pending: done };
      }
    } catch {
      // Given up by the page, which no longer needs it; or whoever was asked has stopped.
      if (!request.abort?.aborted) return coarse && { ...coarse, silent: this.who };
    }
    return coarse;
  }

  async token(
    layer: number,
    head: number,
    place: number,
    side: "query" | "key",
    abort: AbortSignal,
  ) {
    if (this.lacking.has(layer)) return null;
    const route = `token?layer=${layer}&head=${head}&token=${place}&side=${side}`;
    const answer = await this.ask(route, abort);
    if (answer.status === 204) this.lacking.add(layer);
    return answer.status === 200 ? ((await answer.json()) as TokenNumbers) : null;
  }

  async pair(layer: number, head: number, query: number, key: number, abort: AbortSignal) {
    if (this.lacking.has(layer)) return null;
    const route = `pair?layer=${layer}&head=${head}&query=${query}&key=${key}`;
    const answer = await this.ask(route, abort);
    if (answer.status === 204) this.lacking.add(layer);
    return answer.status === 200 ? ((await answer.json()) as PairStages) : null;
  }

  async writes(layer: number, head: number, query: number, abort: AbortSignal) {
    const answer = await this.ask(`writes?layer=${layer}&head=${head}&query=${query}`, abort);
    if (answer.status > 299) throw new Error(await answer.text());
    return answer.status === 200 ? ((await answer.json()) as Written) : null;
  }

  /** So many at once and no more. */
  private async ask(route: string, abort?: AbortSignal): Promise<Response> {
    if (this.running >= AT_ONCE) await new Promise<void>((go) => this.waiting.push(go));
    this.running++;
    try {
      return await this.get(route, abort);
    } finally {
      this.running--;
      this.waiting.shift()?.();
    }
  }

  /** Ask again until the head has been gone over. */
  private await(name: string, query: string) {
    if (this.awaited.has(name)) return;
    this.awaited.add(name);
    const again = async () => {
      const status = await this.ask(`tile?${query}`).then(
        (answer) => answer.status,
        () => 0,
      );
      if (status === 202) setTimeout(again, PATIENCE);
      else this.awaited.delete(name);
      // Also tells how far it is.
      if (status !== 0) this.changed.value++;
    };
    setTimeout(again, PATIENCE);
  }

  private decode(bytes: ArrayBuffer, name: string, coarse: Tile | null): Tile {
    const head = new Uint32Array(bytes, 0, 6);
    const [row, lastRow, rows, column, lastColumn, columns] = head as unknown as [
      number,
      number,
      number,
      number,
      number,
      number,
    ];
    const values = new Float32Array(bytes, BEFORE_VALUES);
    const grain: [number, number] = [(lastRow - row) / rows, (lastColumn - column) / columns];
    // Where the colours end: as in the page where it knows cells of this size, else as far as was seen.
    const size = `${name}/${grain}`;
    const largest = (at: number) =>
      largestOf((place) => values[place]!, at * columns, (at + 1) * columns);
    const own = endOf(rows, largest);
    const top =
      coarse && `${cellOf(coarse)}` === `${grain}`
        ? coarse.top
        : Math.max(own, this.tops.get(size) ?? 0);
    this.tops.set(size, top);
    return {
      rows: [row, lastRow],
      columns: [column, lastColumn],
      cells: [rows, columns],
      values,
      top,
      grain: [1, 1],
      links: 0,
      exact: true,
    };
  }
}

/** Whether a tile of the payload is as fine as was asked for. Where the payload has all weights it is
 * not: they are rounded. */
function enough({ rows, columns, cells, grain, links }: Tile): boolean {
  if (links || Math.max(...grain) === 1) return false;
  return (
    (rows[1] - rows[0]) / cells[0] > grain[0] && (columns[1] - columns[0]) / cells[1] > grain[1]
  );
}

function cellOf({ rows, columns, cells }: Tile): [number, number] {
  return [(rows[1] - rows[0]) / cells[0], (columns[1] - columns[0]) / cells[1]];
}

/** Whole tokens around a range, as far as there are any, up to where its last cell ends: a cell that is
 * cut short has less than is there. */
function within(
  [from, to]: [number, number],
  length: number,
  cells: number,
): [number, number] | null {
  const first = Math.max(0, Math.floor(from));
  const last = Math.min(length, Math.ceil(to));
  if (first >= last) return null;
  const most = Math.max(1, Math.min(MOST_CELLS, Math.round(cells)));
  const size = Math.ceil((last - first) / most);
  return [first, Math.min(length, first + Math.ceil((last - first) / size) * size)];
}

async function overNetwork(route: string, abort?: AbortSignal): Promise<Response> {
  // Beside the page: the address holds the token.
  return fetch(route, {
    cache: "no-store",
    credentials: "omit",
    referrerPolicy: "no-referrer",
    signal: abort ?? null,
  });
}

function fetchedOnce(): Reader {
  let whole: Promise<Uint8Array> | null = null;
  return async (start, bytes) => {
    whole ??= fetchBytes("payload");
    return (await whole).subarray(start, start + bytes);
  };
}

async function fetchBytes(route: string): Promise<Uint8Array> {
  const answer = await overNetwork(route);
  if (!answer.ok) throw new Error(`The server answered ${answer.status}: ${await answer.text()}`);
  return new Uint8Array(await answer.arrayBuffer());
}
