// The page in a cell of a notebook (drawing/notebook.py): the payload is a value of the widget, and
// tiles are asked for by messages.
import { mount } from "./mount";
import { BytesSource, type Tile, type TileRequest } from "./source";
import { headsTile } from "./views/heads/tiles";

/** What anywidget hands to a widget (https://anywidget.dev/en/afm). */
export interface Model {
  get(name: "payload"): DataView;
  get(name: "exact"): boolean;
  send(content: object): void;
  on(event: "msg:custom", told: Told): void;
  off(event: "msg:custom", told: Told): void;
}

type Told = (content: Answer, buffers: DataView[]) => void;

interface Answer {
  kind?: string;
  id?: number;
  done?: number;
  error?: string;
}

/** Milliseconds until a tile is asked for again that is being worked out. */
const PATIENCE = 200;

export class WidgetSource extends BytesSource {
  private readonly model: Model;
  private readonly waiting = new Map<number, (answer: Answer, buffers: DataView[]) => void>();
  private readonly told: Told;
  private last = 0;
  private closed = false;

  constructor(model: Model) {
    const { buffer, byteOffset } = model.get("payload");
    super((start, bytes) => new Uint8Array(buffer as ArrayBuffer, byteOffset + start, bytes), headsTile);
    this.model = model;
    this.told = (content, buffers) => {
      const answer = content.kind === "tile" ? this.waiting.get(content.id!) : undefined;
      if (answer === undefined) return;
      this.waiting.delete(content.id!);
      answer(content, buffers);
    };
    model.on("msg:custom", this.told);
  }

  /** Exact where the kernel has query and key; else what the payload holds. */
  override async tile(request: TileRequest): Promise<Tile | null> {
    const own = await super.tile(request);
    if (!this.model.get("exact")) return own;
    for (;;) {
      const [answer, buffers] = await this.ask(request);
      if (this.closed || answer.error !== undefined) return own;
      if (answer.done === undefined) return readTile(buffers[0]!, own);
      await new Promise((wait) => setTimeout(wait, PATIENCE));
    }
  }

  close() {
    this.closed = true;
    this.model.off("msg:custom", this.told);
    for (const answer of this.waiting.values()) answer({}, []);
    this.waiting.clear();
  }

  private ask(request: TileRequest): Promise<[Answer, DataView[]]> {
    const id = ++this.last;
    return new Promise((found) => {
      this.waiting.set(id, (answer, buffers) => found([answer, buffers]));
      this.model.send({ kind: "tile", id, ...request });
    });
  }
}

/** A tile as Python sends it: where it begins and ends, and its values. */
function readTile(bytes: DataView, own: Tile | null): Tile {
  const [top, bottom, rows, left, right, columns] = Array.from({ length: 6 }, (_, at) =>
    bytes.getUint32(4 * at, true),
  ) as [number, number, number, number, number, number];
  // A buffer of a message may begin anywhere; numbers begin at multiples of four.
  const from = bytes.byteOffset + 24;
  const values = new Float32Array(bytes.buffer.slice(from, from + 4 * rows * columns) as ArrayBuffer);
  return { ...own!, rows: [top, bottom], columns: [left, right], cells: [rows, columns], values };
}

async function render({ model, el }: { model: Model; el: HTMLElement }): Promise<() => void> {
  const source = new WidgetSource(model);
  const clear = await mount(el, source);
  return () => {
    clear();
    source.close();
  };
}

export default { render };
