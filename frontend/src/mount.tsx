import { render } from "preact";
import type { Source } from "./source";
import { views } from "./views/registry";

/** Draw what the source holds into an element; returns what takes it away again. */
export async function mount(element: Element, source: Source): Promise<() => void> {
  element.classList.add("clearhead");
  try {
    const head = await source.head();
    const View = views[head.kind];
    if (View === undefined) throw new Error(`No view draws the kind ${head.kind}.`);
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
