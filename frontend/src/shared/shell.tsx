// What every view stands in: the title, the tools, the help, dark and light.

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { useKeys } from "./keys";
import { label } from "./labels";
import { theme, toggleTheme } from "./theme";

interface ShellProps {
  title: string;
  /** One line under the title. */
  note?: string;
  /** Buttons on the right of the title. */
  tools?: ComponentChildren;
  /** Without the title and the tools, inside another page. */
  bare?: boolean;
  /** What the help begins with. */
  guide?: ComponentChildren;
  /** Keys and what they do, shown by "?". */
  keys: [string, string][];
  children: ComponentChildren;
}

/** Tell the page around a frame how high its content is, so that nothing in it has to be scrolled. */
function tellHeight(shell: HTMLElement): (() => void) | undefined {
  if (window.parent === window || !shell.closest("#clearhead-page")) return;
  const observer = new ResizeObserver(() => {
    const height = Math.ceil(shell.getBoundingClientRect().height);
    window.parent.postMessage({ clearhead: "height", height }, "*");
  });
  observer.observe(shell);
  return () => observer.disconnect();
}

export function Shell({ title, note, tools, bare = false, guide, keys, children }: ShellProps) {
  const root = useRef<HTMLDivElement>(null);
  const help = useRef<HTMLDialogElement>(null);
  const open = () => help.current!.showModal();
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "?" && !(event.target instanceof HTMLInputElement)) {
      event.preventDefault();
      open();
    }
  };
  useKeys(root, onKeyDown);
  useEffect(() => tellHeight(root.current!), []);
  return (
    <div class="ch-shell" data-theme={theme.value} ref={root}>
      {!bare && (
        <header class="ch-header">
          <div class="ch-titles">
            <h1 dir="auto">{label(title).replaceAll("␣", " ")}</h1>
            {note && <p class="ch-note">{note}</p>}
          </div>
          <div class="ch-tools">
            {tools}
            <button type="button" class="ch-button" onClick={toggleTheme}>
              {theme.value === "dark" ? "Light" : "Dark"}
            </button>
            <button type="button" class="ch-button" onClick={open} aria-keyshortcuts="?">
              Help
            </button>
          </div>
        </header>
      )}
      {children}
      <dialog class="ch-help" ref={help} aria-labelledby="ch-help-title">
        <form method="dialog" class="ch-help-close">
          <button type="submit" class="ch-button">
            Close
          </button>
        </form>
        {guide}
        <h2 id="ch-help-title">Keys</h2>
        <dl>
          {keys.map(([key, does]) => (
            <div key={key}>
              <dt>
                <kbd>{key}</kbd>
              </dt>
              <dd>{does}</dd>
            </div>
          ))}
        </dl>
      </dialog>
    </div>
  );
}
