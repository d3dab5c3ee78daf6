// Keys of a view: of the whole page where it is the page, else only while the focus is in it.
import { useLayoutEffect, useRef } from "preact/hooks";

export function useKeys(
  root: { current: HTMLElement | null },
  handler: (event: KeyboardEvent) => void,
) {
  const latest = useRef(handler);
  latest.current = handler;
  useLayoutEffect(() => {
    const place = root.current!;
    const target: HTMLElement | Document = place.closest("#clearhead-page") ? document : place;
    const listen = (event: Event) => latest.current(event as KeyboardEvent);
    target.addEventListener("keydown", listen);
    return () => target.removeEventListener("keydown", listen);
  }, [root]);
}
