// The source of a page of heads in a cell of a notebook (drawing/notebook/widget.py): the payload is a value of the
// widget, and exact numbers are asked of the kernel, by messages.
import { type Answered, bytesOf, type Model } from "../page";
import { signal } from "../shared/signals";
import {
  BytesSource,
  type PairStages,
  sizeOfCell,
  type Tile,
  type TileRequest,
  type TokenNumbers,
} from "../source";
import { endOfGrid, type HeadsData } from "../views/heads/data";
import { headsTile } from "../views/heads/tiles";

/** Milliseconds after which a kernel without an answer is treated as busy or gone: a notebook may be read without. */
const PATIENCE = 3000;
const MOST_CELLS = 1024;

/** The source of a widget, and a function that ends it. */
export function kernelSource(model: Model): [BytesSource, () => void] {
  if (!model.get("exact")) return [new BytesSource(bytesOf(model), headsTile), () => {}];
  const source = new KernelSource(model);
  model.on("msg:custom", source.receive);
  return [source, () => model.off("msg:custom", source.receive)];
}

interface Answer {
  found: unknown;
  numbers: DataView | undefined;
}

class KernelSource extends BytesSource {
  /** Goes up when a kernel that was silent answers. */
  readonly changed = signal(0);
  private readonly waiting = new Map<number, (answer: Answer) => void>();
  private readonly tops = new Map<string, number>();
  private last = 0;
  private silent = false;
  private turn: Promise<unknown> = Promise.resolve();

  constructor(private readonly model: Model) {
    super(bytesOf(model), headsTile);
  }

  readonly receive: Answered = ({ kind, id, found }, [numbers]) => {
    if (kind !== "answer") return;
    this.waiting.get(id!)?.({ found, numbers });
    this.waiting.delete(id!);
    if (this.silent) {
      this.silent = false;
      this.changed.value++;
    }
  };

  override async tile(request: TileRequest): Promise<Tile | null> {
    const { layer, head, abort } = request;
    const about = ((await this.head()).data as HeadsData).layers[layer];
    if (!about) return null;
    const coarse = await super.tile(request);
    if (coarse && isEnough(coarse)) return coarse;
    const cells = request.cells.map((n) => Math.max(1, Math.min(MOST_CELLS, Math.round(n))));
    const rows = within(request.rows, about.queries, cells[0]!);
    const columns = within(request.columns, about.keys, cells[1]!);
    if (!rows || !columns) return coarse;
    try {
      const answer = await this.ask({ what: "tile", layer, head, rows, columns, cells }, abort);
      return answer?.found ? this.decode(answer, `${layer},${head}`, coarse) : coarse;
    } catch {
      return coarse && { ...coarse, silent: true };
    }
  }

  async token(
    layer: number,
    head: number,
    token: number,
    side: "query" | "key",
    abort: AbortSignal,
  ) {
    const answer = await this.ask({ what: "token", layer, head, token, side }, abort);
    return (answer?.found ?? null) as TokenNumbers | null;
  }

  async pair(layer: number, head: number, query: number, key: number, abort: AbortSignal) {
    const answer = await this.ask({ what: "pair", layer, head, query, key }, abort);
    return (answer?.found ?? null) as PairStages | null;
  }

  /** Ask one question at a time; null for one that nobody waits for any more. */
  private ask(request: object, abort?: AbortSignal): Promise<Answer | null> {
    const asked = this.turn.then(() => (abort?.aborted ? null : this.send(request)));
    this.turn = asked.catch(() => null);
    return asked;
  }

  private send(request: object): Promise<Answer> {
    const id = ++this.last;
    return new Promise((found, failed) => {
      const patience = setTimeout(
        () => {
          this.silent = true;
          this.waiting.delete(id);
          failed(new Error("The kernel has not answered."));
        },
        this.silent ? 0 : PATIENCE,
      );
      this.waiting.set(id, (answer) => {
        clearTimeout(patience);
        found(answer);
      });
      this.model.send({ kind: "ask", id, ...request });
    });
  }

  private decode({ found, numbers }: Answer, name: string, coarse: Tile | null): Tile {
    const { rows, columns } = found as Record<"rows" | "columns", [number, number, number]>;
    const cells: [number, number] = [rows[2], columns[2]];
    const size = [(rows[1] - rows[0]) / cells[0], (columns[1] - columns[0]) / cells[1]];
    const { buffer, byteOffset, byteLength } = numbers!;
    const values = new Float32Array(
      buffer.slice(byteOffset, byteOffset + byteLength) as ArrayBuffer,
    );
    // Where the colours end: as in the page where it knows cells of this size, else as far as was seen.
    const seen = `${name}/${size}`;
    const top =
      coarse && `${sizeOfCell(coarse)}` === `${size}`
        ? coarse.top
        : Math.max(
            endOfGrid((at) => values[at]!, cells),
            this.tops.get(seen) ?? 0,
          );
    this.tops.set(seen, top);
    return {
      rows: [rows[0], rows[1]],
      columns: [columns[0], columns[1]],
      cells,
      values,
      top,
      grain: [1, 1],
      links: 0,
      exact: true,
    };
  }
}

/** Whether a tile of the payload is as fine as was asked for. A payload with all weights has rounded ones. */
function isEnough(tile: Tile): boolean {
  const [tall, wide] = sizeOfCell(tile);
  const [queries, keys] = tile.grain;
  return !tile.links && Math.max(queries, keys) > 1 && tall > queries && wide > keys;
}

/** Whole tokens around a range, up to where its last cell ends: a cell that is cut short would have less. */
function within(
  [from, to]: [number, number],
  length: number,
  cells: number,
): [number, number] | null {
  const first = Math.max(0, Math.floor(from));
  const last = Math.min(length, Math.ceil(to));
  if (first >= last) return null;
  const size = Math.ceil((last - first) / cells);
  return [first, Math.min(length, first + Math.ceil((last - first) / size) * size)];
}
