// In a frame: the page around it is told how high the content is, so that nothing in it has to be scrolled, and may
// say whether it is light or dark.

export type Theme = "light" | "dark";

/** Tell the page around the height of a content, and hear its theme, null where it has none; returns what ends both. */
export function inFrame(
  content: Element,
  height: () => number,
  around: (theme: Theme | null) => void,
): () => void {
  if (window.parent === window) return () => {};
  const tell = () =>
    window.parent.postMessage({ clearhead: "height", height: Math.ceil(height()) }, "*");
  const watch = new ResizeObserver(tell);
  watch.observe(content);
  const told = ({ source, data }: MessageEvent) => {
    if (source !== window.parent || data?.clearhead !== "theme") return;
    const { theme } = data;
    around(theme === "dark" || theme === "light" ? theme : null);
  };
  window.addEventListener("message", told);
  return () => {
    watch.disconnect();
    window.removeEventListener("message", told);
  };
}
