// Where a bundle draws its view: in the page that it is the script of, or in a cell of a notebook, as anywidget has it
// (https://anywidget.dev/en/afm).
import { type ComponentType, render } from "preact";
import type { Reader } from "./payload";
import { BytesSource, fromBase64, type Source, type Tiler, type ViewProps } from "./source";

type View = ComponentType<ViewProps>;

/** What anywidget hands to a widget. */
export interface Model {
  get(name: "payload"): DataView;
  get(name: "exact"): boolean;
  send(content: object): void;
  on(event: "msg:custom", answered: Answered): void;
  off(event: "msg:custom", answered: Answered): void;
}

export type Answered = (
  content: { kind?: string; id?: number; found?: unknown },
  buffers: DataView[],
) => void;

/** Draw what the source holds into an element; returns what takes it away again. */
async function mount(element: Element, source: Source, View: View): Promise<() => void> {
  element.classList.add("clearhead");
  try {
    const head = await source.head();
    render(<View head={head} source={source} />, element);
  } catch (error) {
    const words = error instanceof Error ? error.message : String(error);
    render(
      <p role="alert" class="failed">
        {words}
      </p>,
      element,
    );
  }
  return () => render(null, element);
}

/** Draw the page that holds this script, if it is one. */
export function draw(View: View, tiler?: Tiler) {
  const payload = document.getElementById("clearhead-payload");
  const place = document.getElementById("clearhead-page");
  if (payload === null || place === null) return;
  const text = (payload.textContent ?? "").trim();
  const read: Reader = (start, bytes) => fromBase64(text, start, bytes);
  void mount(place, new BytesSource(read, tiler), View);
}

/** The bytes of a widget, whose numbers begin anywhere in their buffer. */
export function bytesOf(model: Model): Reader {
  const { buffer, byteOffset } = model.get("payload");
  return (start, bytes) => new Uint8Array(buffer as ArrayBuffer, byteOffset + start, bytes);
}

/** A view as a widget; its source comes with what ends it. */
export function widget(
  View: View,
  sourceOf: (model: Model) => [Source, () => void] = (model) => [
    new BytesSource(bytesOf(model)),
    () => {},
  ],
) {
  return {
    async render({ model, el }: { model: Model; el: HTMLElement }): Promise<() => void> {
      const [source, close] = sourceOf(model);
      const clear = await mount(el, source, View);
      return () => {
        clear();
        close();
      };
    },
  };
}
