// The source of a page of heads in a cell of a notebook (drawing/notebook/widget.py): the payload is a value of the
// widget, and what a server would be asked for is asked of the kernel, by messages.
import { bytesOf, type Model, type Told } from "../page";
import { BytesSource, type Source } from "../source";
import { headsTile } from "../views/heads/tiles";
import { type Get, ServerSource } from "./server";

/** Milliseconds after which a kernel that says nothing is taken for one that is busy, or gone: a
 * notebook may be looked at without one. */
const PATIENCE = 3000;

/** The source of a widget, and what ends it. */
export function kernelSource(model: Model): [Source, () => void] {
  const read = bytesOf(model);
  if (!model.get("exact")) return [new BytesSource(read, headsTile), () => {}];

  const waiting = new Map<number, (answer: Response) => void>();
  let last = 0;
  let silent = false;
  const told: Told = (content, buffers) => {
    if (content.kind !== "answer") return;
    // A status without content has none, not an empty one.
    const body = content.status === 204 ? null : (buffers[0] as BodyInit);
    waiting.get(content.id!)?.(new Response(body, { status: content.status! }));
    waiting.delete(content.id!);
    if (silent) {
      silent = false;
      source.changed.value++;
    }
  };
  const ask: Get = (route, abort) => {
    const id = ++last;
    const answer = new Promise<Response>((found) => waiting.set(id, found));
    model.send({ kind: "ask", id, route });
    return new Promise((found, failed) => {
      const give = () => {
        waiting.delete(id);
        failed(new Error("The kernel has not answered."));
      };
      const patience = setTimeout(
        () => {
          silent = true;
          give();
        },
        silent ? 0 : PATIENCE,
      );
      abort?.addEventListener("abort", give);
      void answer.then((response) => {
        clearTimeout(patience);
        found(response);
      });
    });
  };
  const source = new ServerSource("kernel", ask, read);
  model.on("msg:custom", told);
  return [source, () => model.off("msg:custom", told)];
}
